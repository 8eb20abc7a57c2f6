"""What a trainer rank does before a step trains: stored by one rank, and in parts by all of them.

    .venv/bin/python benchmarks/step_parts.py

Groups of a synthetic step come pickled, as they do from rollout workers. Every rank fetches all of
them and builds the whole batch; what it stores is the whole step on rank 0, or its part. The ranks
are measured one after the other in this process, so that they do not share its cores.

Prints seconds of the slowest rank, and megabytes that it writes.
"""

from __future__ import annotations

import argparse
import pickle
import tempfile
import time
from pathlib import Path

import numpy as np

from agentrl.config import parse_config
from agentrl.data import TrajectoryStore
from agentrl.runtime.assembly.step_batch import StepMaker
from agentrl.runtime.ray.worker_group import partition
from agentrl.types import Termination, Trajectory, TrajectoryGroup


def make_row(rng: np.random.Generator, group: int, index: int, tokens: int) -> Trajectory:
    mask = rng.random(tokens) < 0.6
    mask[:8] = True
    return Trajectory(
        task_id=f"t{group}",
        group_id=f"g{group}",
        rollout_id=f"g{group}/{index}",
        prompt_ids=tuple(rng.integers(0, 50_000, 500).tolist()),
        response_ids=tuple(rng.integers(0, 50_000, tokens).tolist()),
        response_mask=tuple(mask.astype(int).tolist()),
        rollout_log_probs=tuple((-rng.random(tokens) * mask).tolist()),
        policy_versions=(0,) * tokens,
        reward=float(rng.random()),
        termination=Termination.ENV_DONE,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="What a rank does before a step trains.")
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=8192, help="of a response")
    parser.add_argument("--ranks", type=int, nargs="*", default=[2, 4, 8])
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    blobs = [
        pickle.dumps(
            TrajectoryGroup(
                group_id=f"g{group}",
                task_id=f"t{group}",
                trajectories=tuple(
                    make_row(rng, group, index, args.tokens) for index in range(args.samples)
                ),
            )
        )
        for group in range(args.prompts)
    ]
    config = parse_config(
        {
            "env": {"target": "x:Y"},
            "dataset": {"source": "x.jsonl"},
            "rollout": {
                "prompts_per_step": args.prompts,
                "n_samples_per_prompt": args.samples,
                "max_response_tokens": args.tokens,
                "max_context_tokens": args.tokens + 1000,
            },
            "train": {"steps": 1, "micro_batch_tokens": 4 * args.tokens},
        }
    )
    maker = StepMaker(config)
    began = time.perf_counter()
    groups: list[TrajectoryGroup] = [pickle.loads(blob) for blob in blobs]
    fetched = time.perf_counter()
    prepared = maker.prepare(1, groups)
    built = time.perf_counter()
    before_s = built - began
    print(
        f"{args.prompts * args.samples * (args.tokens + 500) / 1e6:.1f} M tokens: fetch "
        f"{fetched - began:.1f} s, build {built - fetched:.1f} s on every rank\n\n"
        f"{'ranks':>5} {'stored':>9} {'store s':>8} {'all s':>6} {'MB':>6}"
    )
    for ranks in (1, *args.ranks):
        seconds, sizes = [], []
        with tempfile.TemporaryDirectory() as folder:
            store = TrajectoryStore(Path(folder))
            for rank in range(ranks):
                own = partition(prepared.groups, ranks)[rank]
                began = time.perf_counter()
                path = store.write_part(
                    1, "train", own, prepared.batch.advantages, part=rank, parts=ranks
                )
                seconds.append(time.perf_counter() - began)
                sizes.append(path.stat().st_size / 1e6)
        how = "whole" if ranks == 1 else "in parts"
        print(
            f"{ranks:5} {how:>9} {max(seconds):8.2f} {before_s + max(seconds):6.1f} "
            f"{max(sizes):6.1f}"
        )


if __name__ == "__main__":
    main()
