"""What a trainer rank does before a step trains: the whole batch, or its share of it.

    .venv/bin/python benchmarks/step_parts.py
    .venv/bin/python benchmarks/step_parts.py --samples 32 --ranks 4

Groups of a synthetic step come pickled, as they do from rollout workers: turns of about 200 sampled
and 100 observed tokens. With whole batches every rank fetches all of them, builds everything and
stores its part. With shares a rank fetches, checks and outlines its part, plans the step from all
outlines, fetches what else its share needs, builds that and stores its part. Every rank is a
process of its own, and they run one after the other, so that they do not share the cores.

Prints, of the slowest and of the largest rank: CPU seconds by stage, megabytes by which a process
grows at its peak, the largest share of tokens in means, and groups that are fetched.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import pickle
import tempfile
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet  # noqa: F401  # before the ranks are forked, so that none loads it

from agentrl.config import RunConfig, parse_config
from agentrl.data import TrajectoryStore
from agentrl.runtime.assembly.step_batch import StepMaker
from agentrl.runtime.ray.step_parts import StepParts
from agentrl.runtime.ray.worker_group import partition
from agentrl.types import Termination, Trajectory, TrajectoryGroup


def make_row(rng: np.random.Generator, group: int, index: int, tokens: int) -> Trajectory:
    lengths = rng.geometric(1 / np.resize([200.0, 100.0], 1 + tokens // 50))
    mask = np.repeat(np.resize([1, 0], len(lengths)), lengths)[:tokens]
    tokens = len(mask)
    return Trajectory(
        task_id=f"t{group}",
        group_id=f"g{group}",
        rollout_id=f"g{group}/{index}",
        prompt_ids=tuple(rng.integers(0, 50_000, 500).tolist()),
        response_ids=tuple(rng.integers(0, 50_000, tokens).tolist()),
        response_mask=tuple(mask.tolist()),
        rollout_log_probs=tuple((-rng.random(tokens) * mask).tolist()),
        policy_versions=tuple((mask - 1).tolist()),
        reward=float(rng.random()),
        termination=Termination.ENV_DONE,
    )


class Stopwatch:
    """CPU seconds by stage, and the growth of this process since it began."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        self._began = time.process_time()
        self._memory = self._read("VmRSS")

    def lap(self, stage: str) -> None:
        now = time.process_time()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self._began
        self._began = now

    @property
    def peak_mb(self) -> float:
        return self._read("VmHWM") - self._memory

    def _read(self, name: str) -> float:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) / 1e3 for line in lines if line.startswith(name))


class TimedStore(TrajectoryStore):
    """A store that says what the time before its writes was spent on."""

    watch: Stopwatch

    def write_part(self, *args: Any, **kwargs: Any) -> Path:
        self.watch.lap("build")
        path = super().write_part(*args, **kwargs)
        self.watch.lap("store")
        return path


def rank_process(
    pipe: Connection, blobs: Sequence[bytes], config: RunConfig, folder: Path, rank: int, size: int
) -> None:
    store = TimedStore(folder)
    parts = StepParts(StepMaker(config), store, rank=rank, world_size=size)

    def fetch(positions: Sequence[int]) -> list[TrajectoryGroup]:
        return [pickle.loads(blobs[position]) for position in positions]

    gc.collect()
    kind, watch = pipe.recv(), Stopwatch()
    store.watch = watch
    everything = range(len(blobs))
    if kind == "whole":
        groups = fetch(everything)
        watch.lap("fetch")
        _, batch = parts.prepare(1, groups, stored=False)
        fetched = len(groups)
    else:
        own = partition(everything, size)[rank]
        groups = fetch(own)
        watch.lap("fetch")
        outlines = parts.outline(1, groups)
        watch.lap("outline")
        pipe.send(outlines)
        packed = pipe.recv()
        missing = parts.plan(1, packed)
        watch.lap("plan")
        groups = fetch(missing)
        watch.lap("fetch")
        *_, batch = parts.prepare_share(groups, stored=False)
        fetched = len(own) + len(missing)
    pipe.send((watch.seconds, watch.peak_mb, batch.num_tokens, fetched))


def measure(kind: str, blobs: Sequence[bytes], config: RunConfig, size: int) -> list[Any]:
    """By rank: seconds by stage, megabytes, tokens that it trains, groups that it fetches."""
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        pipes, processes = [], []
        for rank in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=rank_process, args=(theirs, blobs, config, Path(folder), rank, size)
            )
            process.start()
            pipes.append(ours)
            processes.append(process)
        found, outlines = [], []
        for pipe in pipes:
            pipe.send(kind)
            (found if kind == "whole" else outlines).append(pipe.recv())
        for pipe in pipes if outlines else ():
            pipe.send(outlines)
            found.append(pipe.recv())
        for process in processes:
            process.join()
    if outlines:
        size_kb = sum(map(len, outlines)) / 1e3
        print(f"{size} ranks: outlines of all groups are {size_kb:.0f} kB")
    return found


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
    rollouts = args.prompts * args.samples
    print(f"{rollouts * (args.tokens + 500) / 1e6:.1f} M tokens in {rollouts} rollouts")
    stages = ("fetch", "outline", "plan", "build", "store")
    print(f"{'ranks':>5} {'batch':>6} {' '.join(f'{stage:>8}' for stage in stages)} "
          f"{'all':>6} {'MB':>6} {'share':>6} {'groups':>6}")  # fmt: skip
    for size in args.ranks:
        for kind in ("whole", "share"):
            found = measure(kind, blobs, config, size)
            slowest = max(found, key=lambda of_rank: sum(of_rank[0].values()))[0]
            tokens = [of_rank[2] for of_rank in found]
            share = max(tokens) * size / sum(tokens)
            print(
                f"{size:5} {kind:>6} "
                f"{' '.join(f'{slowest.get(stage, 0.0):8.2f}' for stage in stages)} "
                f"{sum(slowest.values()):6.1f} {max(of_rank[1] for of_rank in found):6.0f} "
                f"{share:6.2f} {max(of_rank[3] for of_rank in found):6}"
            )


if __name__ == "__main__":
    main()
