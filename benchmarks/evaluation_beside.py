"""What an evaluation costs an asynchronous run: beside training, and with training stopped for it.

    .venv/bin/python benchmarks/evaluation_beside.py

The real driver on stages that only keep the time (`jumping_stages`): engines with S slots and
log-normal lengths, and a trainer on devices of its own that takes as long as the rollouts of a
step. Every few steps an evaluation rolls out as many rollouts as half a step has. The clock jumps
to the next event, so that the numbers are those of the driver's decisions.

Prints the time of the run, the share of it in which the trainer stood still, and the share of slots
that stood empty, for no evaluation, for training stopped meanwhile and for training beside it.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jumping_stages import (
    FakeEngine,
    FakeLearner,
    FakeRollouts,
    Handle,
    JumpingLoop,
    timed_config,
)

from agentrl.config import RunConfig
from agentrl.config.plan import plan_run
from agentrl.data import TaskCursor, TrajectoryStore
from agentrl.disk.run_directory import RunDir
from agentrl.machine.processes.stop import StopSwitch
from agentrl.metrics import MetricBag
from agentrl.metrics.sinks import MetricsLog
from agentrl.runtime.drivers.asynchronous import AsynchronousRun
from agentrl.runtime.drivers.make_parts import make_driver_parts
from agentrl.runtime.launch import slots_per_engine
from agentrl.runtime.progress import Progress
from agentrl.runtime.records import Parts, RunHistory
from agentrl.runtime.stages import Stages
from agentrl.types import Task

WAYS = ("no evaluation", "training stops", "beside training")
SCHEDULES: dict[str, dict[str, Any]] = {
    "staleness 1": {"staleness_threshold": 1.0, "partial_rollout": True},
    "staleness 3": {"staleness_threshold": 3.0, "partial_rollout": True},
}


class OwnDevices(FakeLearner):
    """A learner beside the engines, which sample on while it trains."""

    rollouts: FakeRollouts
    decoded = 0

    async def learn(self, step: int, groups: Sequence[Handle], **kwargs: Any) -> MetricBag:
        await asyncio.sleep(self.train_s)
        self.version += 1
        self.ended_s = asyncio.get_running_loop().time()
        self.decoded = self.rollouts.tokens
        return MetricBag()


def config_of(args: argparse.Namespace, schedule: dict[str, Any], folder: Path) -> RunConfig:
    evaluation = {
        "datasets": {"held": {"source": "x.jsonl"}},
        "every_steps": args.every,
        "n_samples": args.samples,
    }
    return timed_config(args, folder, schedule=schedule, eval=evaluation)


async def drive(args: argparse.Namespace, schedule: str, way: str, seed: int) -> dict[str, float]:
    """One run; its time and the shares of it that were idle."""
    with tempfile.TemporaryDirectory() as temporary:
        config = config_of(args, SCHEDULES[schedule], Path(temporary))
        directory = RunDir.create(config, base=Path(temporary))
        plan = plan_run(config, Path(temporary))
        engine = FakeEngine(args.slots, tick_s=args.tick_s)
        engine.resume()
        rollouts = FakeRollouts(engine)
        learner = OwnDevices(engine, config.schedule, train_s=args.train_s)
        learner.rollouts = rollouts

        def tasks(count: int, first: int) -> list[Task]:
            names = range(first, first + count)
            return [Task(id=str(name), prompt="?", metadata={"seed": seed}) for name in names]

        held = {} if way == "no evaluation" else {"held": tasks(args.prompts // 2, 500_000)}
        parts = Parts(
            stages=Stages(rollouts=rollouts, engines=engine, learner=learner),  # pyright: ignore[reportArgumentType]
            cursor=TaskCursor(tasks(args.prompts * args.steps * 2, 0), seed=seed),
            eval_tasks=held,
            store=TrajectoryStore(directory.trajectories),
            metrics=MetricsLog([]),
            slots_per_engine=slots_per_engine(plan.engines.serving),
            in_flight=args.slots * 3,
        )
        made = make_driver_parts(
            plan.schedule,
            directory,
            parts,
            history=RunHistory(),
            progress=Progress(),
            stop=StopSwitch(),
            now=asyncio.get_running_loop().time,
        )
        run = AsynchronousRun(
            made,
            rollout=config.rollout,
            reward=config.reward,
            schedule=config.schedule,
            steps=args.steps,
            beside=way == "beside training",
        )
        await run.run()
        directory.close()
    # From the first sync to the end of the last step; the last evaluation is the same for all.
    total_s, decoded_s = learner.ended_s, learner.decoded * args.tick_s
    return {
        "total_s": total_s,
        "trainer_idle": 1 - args.steps * args.train_s / total_s,
        "slots_idle": 1 - decoded_s / (args.slots * total_s),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="What an evaluation costs a run ahead.")
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--slots", type=int, default=256)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--every", type=int, default=5, help="steps between two evaluations")
    parser.add_argument("--tick-s", type=float, default=0.02)
    parser.add_argument("--train-s", type=float, default=13.0)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    print(
        f"{args.prompts} prompts x {args.samples} samples, {args.slots} slots, {args.steps} steps "
        f"of {args.train_s:g} s, {args.repeats} repeats (medians)\n"
    )
    print(
        f"{'schedule':14} {'evaluation':16} {'run s':>8} {'trainer idle':>13} {'slots empty':>12}"
    )
    for schedule in SCHEDULES:
        for way in WAYS:
            found = []
            for seed in range(args.repeats):
                with asyncio.Runner(loop_factory=JumpingLoop) as runner:
                    found.append(runner.run(drive(args, schedule, way, seed)))
            total_s, trainer, slots = (
                statistics.median(one[key] for one in found) for key in found[0]
            )
            print(f"{schedule:14} {way:16} {total_s:8.0f} {trainer:13.0%} {slots:12.0%}")


if __name__ == "__main__":
    main()
