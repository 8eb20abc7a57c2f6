"""What recording costs: seconds of a training step, and bytes of a response token.

    OMP_NUM_THREADS=1 python benchmarks/recording.py runs/quickstart --from-step 21

Trains stored steps of a run again, from its checkpoint that is nearest, with two trainers over the
same weights: one notes every token and writes the file, the other does not. Each step is trained by
both, in changing order. "step" is the median over the steps of the processor seconds of the second,
"recording" the median over the pairs of what the first took more. They are seconds of the processor
since those of the clock are those of whatever else runs; "writing" is by the clock, since it waits
for the disk.

Bytes are those of the trajectory files and the token files of these steps, footers included, over
response tokens: sampled ones and those that the environment put between them. "in one file" is the
same content as one large step: what a file costs beside its tokens counts for little there.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness import options, show_table

from agentrl.batch.records import StepBatch
from agentrl.config import RunConfig
from agentrl.config.load import load_stored_config
from agentrl.config.plan import plan_run
from agentrl.data import TokenStore, TrajectoryStore
from agentrl.disk.checkpoint import list_checkpoints
from agentrl.disk.stored_groups import stored_groups
from agentrl.runtime.assembly.step_batch import StepMaker
from agentrl.train import Trainer, load_pretrained
from agentrl.types import TrainedTokens, TrajectoryGroup


@dataclass(slots=True, kw_only=True)
class Costs:
    """What was measured, by step."""

    plain_s: list[float] = field(default_factory=list)
    """Processor seconds without recording."""
    noting_s: list[float] = field(default_factory=list)
    """Processor seconds with it."""
    write_s: list[float] = field(default_factory=list)
    """Of these, waiting for the file, by the clock."""
    tokens: int = 0
    """Response tokens."""
    files: dict[str, int] = field(default_factory=dict)
    """Bytes by what they hold."""


class Timed:
    """The store as a trainer's listener, with a clock around it."""

    def __init__(self, store: TokenStore) -> None:
        self.store, self.seconds = store, 0.0
        self.rows: dict[int, Sequence[TrainedTokens]] = {}

    def __call__(self, step: int, rank: int, rows: Sequence[TrainedTokens]) -> None:
        began = time.perf_counter()
        self.store.write(step, rank, rows, ranks=1)
        self.seconds = time.perf_counter() - began
        self.rows[step] = rows


def seconds(trainer: Trainer, batch: StepBatch) -> float:
    began = time.process_time()
    trainer.step(batch)
    return time.process_time() - began


def measure(run: Path, config: RunConfig, steps: Sequence[int], folder: Path) -> Costs:
    store, costs = TrajectoryStore(run / "trajectories"), Costs()
    checkpoints = [c for c in list_checkpoints(run / "checkpoints") if c.state.step < steps[0]]
    checkpoint = max(checkpoints, key=lambda c: c.state.step, default=None)
    path = str(checkpoint.path) if checkpoint else config.model.path
    model = load_pretrained(config.model.model_copy(update={"path": path})).model
    plan = plan_run(config, run).schedule
    maker = StepMaker(plan, checkpoint=checkpoint.path if checkpoint else None)
    listener = Timed(TokenStore(folder))
    made = {"train": config.train, "algorithm": config.resolved_algorithm()}
    plain, noting = Trainer(model, **made), Trainer(model, record=listener, **made)
    for number, step in enumerate(steps):
        groups = stored_groups(store, "train", step)
        batch = maker.prepare(step, groups).batch
        costs.tokens += sum(len(row.response_ids) for g in groups for row in g.trajectories)
        if number == 0:  # the first pass fills caches and makes the moments
            for trainer in (plain, noting):
                seconds(trainer, batch)
            listener.rows.clear()
        for trainer in (plain, noting) if number % 2 else (noting, plain):
            spent = costs.plain_s if trainer is plain else costs.noting_s
            spent.append(seconds(trainer, batch))
        costs.write_s.append(listener.seconds)
    tokens = listener.store
    noted = [row for rows in listener.rows.values() for row in rows]
    costs.files["tokens"] = sum(tokens.path(v, 0).stat().st_size for v in listener.rows)
    costs.files["tokens in one file"] = tokens.write(0, 0, noted).stat().st_size
    return costs


def trajectory_bytes(run: Path, steps: Sequence[int], folder: Path) -> dict[str, int]:
    """Of the trajectories of these steps, as this version writes them."""
    store, again = TrajectoryStore(run / "trajectories"), TrajectoryStore(folder)
    groups: list[TrajectoryGroup] = []
    known: dict[str, float] = {}
    size = 0
    for step in steps:
        own = {s.trajectory.rollout_id: s.advantage for s in store.read("train", step=step)}
        advantages = {name: value for name, value in own.items() if value is not None}
        found = stored_groups(store, "train", step)
        size += again.write(step, "train", found, advantages).stat().st_size
        groups += found
        known |= advantages
    whole = again.write(0, "train", groups, known).stat().st_size
    return {"trajectories": size, "trajectories in one file": whole}


def main() -> None:
    args = options(__doc__, run_=Path, from_step=1, to_step=10**9)
    config = load_stored_config(args.run / "config.yaml")
    found = TrajectoryStore(args.run / "trajectories").steps("train")
    steps = [step for step in found if args.from_step <= step <= args.to_step]
    with tempfile.TemporaryDirectory() as folder:
        costs = measure(args.run, config, steps, Path(folder) / "tokens")
        costs.files |= trajectory_bytes(args.run, steps, Path(folder) / "trajectories")
    step_s = statistics.median(costs.plain_s)
    more_s = statistics.median(b - a for a, b in zip(costs.plain_s, costs.noting_s, strict=True))
    rows = [
        ("steps, response tokens", f"{len(steps)}, {costs.tokens}"),
        ("step", f"{step_s:.3f} s"),
        ("recording", f"{more_s * 1e3:.1f} ms, {more_s / step_s:.2%} of the step"),
        ("writing, by the clock", f"{statistics.median(costs.write_s) * 1e3:.1f} ms"),
    ]
    for ending in ("", " in one file"):
        sizes = {name: costs.files[name + ending] for name in ("trajectories", "tokens")}
        for name, size in {**sizes, "together": sum(sizes.values())}.items():
            rows.append((f"{name}{ending}, bytes a token", f"{size / costs.tokens:.2f}"))
    show_table("", ("what", "value"), rows)


if __name__ == "__main__":
    main()
