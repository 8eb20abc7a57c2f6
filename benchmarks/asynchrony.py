"""What asynchrony is worth when rollouts have a long tail, with the real drivers on fake stages.

    .venv/bin/python benchmarks/asynchrony.py --repeats 5

The engine has S slots and gives each one token per tick; lengths are log-normal with sigma 1. One
set of devices does everything: the engine stands still while the trainer trains, which takes so
long that rollouts are 70 % of a synchronous step. So no driver can beat

    work-conservation bound = T_sync / (B * E[len] / S + t_train)        B in rollouts

where no slot ever stands empty. Every mode makes the same number of steps from the same tasks and
the same draws, from an empty engine to the last step, and time is the loop's own: the clock jumps
to the next event, so that the numbers are those of the drivers' decisions and not of this machine.

A group keeps its places until its last rollout has ended, when most of the others have long left
their slots: three rollouts in flight per slot keep the slots taken, two leave an eighth empty.

Prints, for each mode, speed-up over the synchronous driver, share of the bound, how old trained
tokens are (mean, p95 and maximum over tokens, p95 of the oldest token of a rollout), the bound on
the age that the schedule sets, and the share of rollouts that were dropped because of it. The issue
asks of `d` for 2.3x, 90 % of the bound, a p95 of at most 4 and a maximum within the bound.
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import logging
import math
import selectors
import statistics
import tempfile
import time
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from agentrl.config import RunConfig, parse_config
from agentrl.config.schema import ScheduleSection
from agentrl.data import TaskCursor, TrajectoryStore
from agentrl.data.staleness import Pace, oldest_allowed
from agentrl.metrics import MetricBag
from agentrl.metrics.sinks import MetricsLog
from agentrl.runtime.ages import is_stale
from agentrl.runtime.asynchronous import AsynchronousRun
from agentrl.runtime.drivers import make_run
from agentrl.runtime.progress import Progress
from agentrl.runtime.records import History, Parts
from agentrl.runtime.run_dir import RunDir
from agentrl.runtime.stages import GroupReport, RolloutReport, Stages
from agentrl.runtime.stop import StopSwitch
from agentrl.types import SamplingParams, Task, Termination, TrajectoryGroup

MEDIAN_TOKENS = 200
SIGMA = 1.0
ROLLOUT_SHARE = 0.7

MODES: dict[str, dict[str, Any]] = {
    "a: on-policy": {},
    "b: trigger 2": {"trigger_parameter_sync_step": 2},
    "one step off": {"one_step_off": True},
    "c: staleness 1": {"staleness_threshold": 1.0},
    "d: staleness 1.5, lag 8": {
        "staleness_threshold": 1.5,
        "partial_rollout": True,
        "max_version_lag": 8,
    },
    "d: staleness 12, waits": {"staleness_threshold": 12.0, "partial_rollout": True},
    "oversample 1.5": {"oversample": 1.5},
}


class JumpingSelector(selectors.SelectSelector):
    """Moves the clock of its loop instead of waiting for a timer."""

    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        """As the base, without the waiting; with no timer set, only a thread can wake us."""
        if timeout is None:
            return super().select(None)
        events = super().select(0)
        if not events and timeout > 0:
            self.now += timeout
        return events


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop whose time passes at once."""

    def __init__(self) -> None:
        self._jumping = JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Seconds of work that was pretended."""
        return self._jumping.now


@dataclass(eq=False, slots=True)
class Slot:
    """One sequence being decoded; times are ticks of the engine."""

    end: float
    begin: float
    done: asyncio.Future[None]

    def __lt__(self, other: Slot) -> bool:
        return self.end < other.end


class FakeEngine:
    """S slots, a token per tick and slot; first come, first served. Is its own `EngineStage`."""

    shares_weights = False

    def __init__(self, slots: int, *, tick_s: float) -> None:
        self.slots, self.tick_s = slots, tick_s
        self.version = 0
        self.changes: list[tuple[float, int]] = [(0.0, 0)]  # (tick, version from then on)
        self.running: list[Slot] = []
        self.waiting: deque[tuple[int, asyncio.Future[None], list[Slot]]] = deque()
        self.clock = 0.0  # ticks
        self.since: float | None = None  # loop time at which the clock was right; None is paused
        self.timer: asyncio.TimerHandle | None = None

    async def decode(self, tokens: int) -> dict[int, int]:
        """Sample so many tokens; how many came from which weights."""
        loop = asyncio.get_running_loop()
        self._tick()
        done: asyncio.Future[None] = loop.create_future()
        slot: list[Slot] = []
        self.waiting.append((tokens, done, slot))
        self._seat()
        try:
            await done
        except asyncio.CancelledError:
            self._tick()
            self.waiting = deque(item for item in self.waiting if item[1] is not done)
            self.running = [item for item in self.running if item.done is not done]
            heapq.heapify(self.running)
            self._seat()
            raise
        return self._versions(slot[0])

    def _versions(self, sequence: Slot) -> dict[int, int]:
        counts: dict[int, int] = {}
        place = bisect_right(self.changes, (sequence.begin, math.inf)) - 1
        begin, tokens = sequence.begin, 0
        while begin < sequence.end:
            following = self.changes[place + 1][0] if place + 1 < len(self.changes) else math.inf
            end = min(following, sequence.end)
            upto = round(end - sequence.begin)
            if upto > tokens:
                counts[self.changes[place][1]] = upto - tokens
            tokens, begin, place = upto, end, place + 1
        return counts

    async def pause(self) -> None:
        """No token until `resume`."""
        self._tick()
        self.since = None
        self._aim()

    def resume(self) -> None:
        self.since = asyncio.get_running_loop().time()
        self._aim()

    async def sync(self, version: int) -> MetricBag:
        await self.pause()
        self.version = version
        self.changes.append((self.clock, version))
        self.resume()
        return MetricBag()

    def stats(self) -> Mapping[str, Any]:
        return {}

    def _tick(self) -> None:
        """Bring the clock to now, and free the slots of those that have ended."""
        if self.since is not None:
            now = asyncio.get_running_loop().time()
            self.clock += (now - self.since) / self.tick_s
            self.since = now
        while self.running and self.running[0].end <= self.clock + 1e-6:
            sequence = heapq.heappop(self.running)
            if not sequence.done.done():
                sequence.done.set_result(None)

    def _seat(self) -> None:
        while self.waiting and len(self.running) < self.slots:
            tokens, done, slot = self.waiting.popleft()
            slot.append(Slot(end=self.clock + tokens, begin=self.clock, done=done))
            heapq.heappush(self.running, slot[0])
        self._aim()

    def _aim(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        if self.since is not None and self.running:
            wait_s = (self.running[0].end - self.clock) * self.tick_s
            self.timer = asyncio.get_running_loop().call_at(self.since + wait_s, self._due)

    def _due(self) -> None:
        self._tick()
        self._seat()


@dataclass(frozen=True, slots=True, kw_only=True)
class Handle:
    """A group without tokens."""

    report: GroupReport


class FakeRollouts:
    """A `RolloutStage`: a group is `n` sequences whose lengths are drawn from its seed."""

    def __init__(self, engine: FakeEngine) -> None:
        self.engine = engine
        self.tokens = self.rollouts = 0

    async def run_group(
        self, task: Task, *, group_id: str, n: int, sampling: SamplingParams, seed: int
    ) -> Handle:
        # By the task and not by the seed, so that every mode decodes the same lengths.
        rng = np.random.default_rng([seed_of(task), n])
        lengths = np.ceil(rng.lognormal(math.log(MEDIAN_TOKENS), SIGMA, n)).astype(int)
        counts = await asyncio.gather(*(self.engine.decode(int(length)) for length in lengths))
        self.tokens += int(lengths.sum())
        self.rollouts += n
        rollouts = tuple(
            RolloutReport(
                rollout_id=f"{group_id}/{index}",
                termination=Termination.ENV_DONE,
                detail="",
                verdict=0.0,
                tokens=sum(count.values()),
                tokens_by_version=count,
            )
            for index, count in enumerate(counts)
        )
        return Handle(report=GroupReport(group_id=group_id, task_id=task.id, rollouts=rollouts))

    def adopt(self, group: TrajectoryGroup) -> Handle:
        raise NotImplementedError


def seed_of(task: Task) -> int:
    return int(task.id) + int(task.metadata["seed"]) * 10**6


class FakeLearner:
    """A `LearnStage` on the devices of the engine, which stands still meanwhile."""

    def __init__(self, engine: FakeEngine, schedule: ScheduleSection, *, train_s: float) -> None:
        self.engine, self.schedule, self.train_s = engine, schedule, train_s
        self.dropped = 0
        self.version = 0
        self.ended_s = 0.0
        self.lags: Counter[int] = Counter()
        self.oldest: list[int] = []
        self.groups = 0

    async def learn(self, step: int, groups: Sequence[Handle], **kwargs: Any) -> MetricBag:
        oldest = oldest_allowed(self.schedule, self.version)
        for handle in groups:
            for rollout in handle.report.rollouts:
                if is_stale(rollout, oldest):
                    self.dropped += 1
                    continue
                for version, count in rollout.tokens_by_version.items():
                    self.lags[self.version - version] += count
                assert rollout.oldest_version is not None
                self.oldest.append(self.version - rollout.oldest_version)
        self.groups += len(groups)
        await self.engine.pause()
        await asyncio.sleep(self.train_s)
        self.engine.resume()
        self.version += 1
        self.ended_s = asyncio.get_running_loop().time()
        return MetricBag()

    async def keep(self, step: int, kind: str, groups: Sequence[Handle]) -> None: ...

    def save(self, folder: Path) -> None:
        (folder / "weights").write_text("none")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One run."""

    total_s: float
    tokens: int
    rollouts: int
    lags: Counter[int]
    oldest: list[int]
    dropped: int
    cpu_s: float


def config_of(args: argparse.Namespace, schedule: Mapping[str, Any], folder: Path) -> RunConfig:
    return parse_config(
        {
            "run": {"dir": str(folder), "name": "bench"},
            "env": {"target": "x:Y"},
            "dataset": {"source": "x.jsonl"},
            "rollout": {"prompts_per_step": args.prompts, "n_samples_per_prompt": args.samples},
            "train": {"steps": args.steps},
            "checkpoint": {"every_steps": 10**6},
            "log": {"tensorboard": False},
            "schedule": dict(schedule),
            "serving": {"engine": "vllm"},
        }
    )


async def drive(
    args: argparse.Namespace,
    schedule: Mapping[str, Any],
    *,
    seed: int,
    train_s: float,
    always_async: bool = False,
) -> Outcome:
    """One run of the driver of a schedule, on stages that only keep the time."""
    began = time.process_time()
    with tempfile.TemporaryDirectory() as temporary:
        config = config_of(args, schedule, Path(temporary))
        directory = RunDir.create(config, base=Path(temporary))
        engine = FakeEngine(args.slots, tick_s=args.tick_s)
        engine.resume()
        rollouts, learner = (
            FakeRollouts(engine),
            FakeLearner(engine, config.schedule, train_s=train_s),
        )
        tasks = [
            Task(id=str(number), prompt="?", metadata={"seed": seed})
            for number in range(args.prompts * args.steps * 2)
        ]
        parts = Parts(
            stages=Stages(rollouts=rollouts, engines=engine, learner=learner),  # pyright: ignore[reportArgumentType]
            cursor=TaskCursor(tasks, seed=seed),
            eval_tasks={},
            store=TrajectoryStore(directory.trajectories),
            metrics=MetricsLog([]),
            in_flight=args.in_flight * args.slots,
        )
        make = AsynchronousRun if always_async else make_run
        run = make(
            config, directory, parts, history=History(), progress=Progress(), stop=StopSwitch()
        )
        await run.run()
        directory.close()
    assert learner.groups >= args.prompts * args.steps, "not the same number of passes"
    return Outcome(
        total_s=learner.ended_s,
        tokens=rollouts.tokens,
        rollouts=rollouts.rollouts,
        lags=learner.lags,
        oldest=learner.oldest,
        dropped=learner.dropped,
        cpu_s=time.process_time() - began,
    )


def run_in_jumping_time(work: Any) -> Any:
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        return runner.run(work)


def p95(counts: Counter[int]) -> int:
    below, total = 0, sum(counts.values())
    for value in sorted(counts):
        below += counts[value]
        if below >= 0.95 * total:
            return value
    return 0


def measure(args: argparse.Namespace, seed: int) -> dict[str, dict[str, float]]:
    """Every mode once, with the same draws."""
    rollout_only = run_in_jumping_time(drive(args, {}, seed=seed, train_s=0.0))
    rollout_s = rollout_only.total_s / args.steps
    train_s = rollout_s * (1 - ROLLOUT_SHARE) / ROLLOUT_SHARE
    sync = run_in_jumping_time(drive(args, {}, seed=seed, train_s=train_s))
    work_s = sync.tokens * args.tick_s / args.slots + train_s * args.steps
    results: dict[str, dict[str, float]] = {
        "": {
            "sync_step_s": sync.total_s / args.steps,
            "rollout_share": 1 - train_s * args.steps / sync.total_s,
            "bound": sync.total_s / work_s,
            "mean_tokens": sync.tokens / sync.rollouts,
        }
    }
    for name, schedule in args.modes.items():
        outcome = run_in_jumping_time(
            drive(args, schedule, seed=seed, train_s=train_s, always_async=name.startswith("a:"))
        )
        pace = Pace.of(config_of(args, schedule, Path("/")).schedule, prompts_per_step=args.prompts)
        speedup = sync.total_s / outcome.total_s
        tokens = sum(outcome.lags.values())
        results[name] = {
            "speedup": speedup,
            "of_bound": speedup * work_s / sync.total_s,
            "lag_mean": sum(lag * count for lag, count in outcome.lags.items()) / tokens,
            "lag_p95": p95(outcome.lags),
            "oldest_p95": p95(Counter(outcome.oldest)),
            "lag_max": max(outcome.oldest),
            "lag_bound": schedule.get("max_version_lag", pace.lag_bound),
            "dropped": outcome.dropped / outcome.rollouts,
            "cpu_ms_per_group": 1000 * outcome.cpu_s / (args.prompts * args.steps),
        }
    return results


def show(repeats: list[dict[str, dict[str, float]]], args: argparse.Namespace) -> None:
    def median(mode: str, key: str) -> float:
        return statistics.median(result[mode][key] for result in repeats)

    print(
        f"{args.prompts} prompts x {args.samples} samples, {args.slots} slots, {args.steps} steps, "
        f"at most {args.in_flight} x slots in flight, {len(repeats)} repeats (medians, range)\n"
        f"mean length {median('', 'mean_tokens'):.0f} tokens, synchronous step "
        f"{median('', 'sync_step_s'):.1f} s, rollout share {median('', 'rollout_share'):.0%}, "
        f"work-conservation bound {median('', 'bound'):.2f}x\n\n"
        f"{'mode':30} {'speed-up':>18} {'of bound':>9} {'lag mean':>9} {'p95':>4} "
        f"{'oldest p95':>11} {'max':>4} {'bound':>6} {'dropped':>8} {'CPU ms/group':>13}"
    )
    for mode in args.modes:
        speeds = [result[mode]["speedup"] for result in repeats]
        print(
            f"{mode:30} {median(mode, 'speedup'):6.2f} ({min(speeds):.2f}-{max(speeds):.2f})"
            f" {median(mode, 'of_bound'):9.0%} {median(mode, 'lag_mean'):9.2f}"
            f" {median(mode, 'lag_p95'):4.0f} {median(mode, 'oldest_p95'):11.0f}"
            f" {max(result[mode]['lag_max'] for result in repeats):4.0f}"
            f" {median(mode, 'lag_bound'):6.0f} {median(mode, 'dropped'):8.2%}"
            f" {median(mode, 'cpu_ms_per_group'):13.2f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="What asynchrony is worth.")
    parser.add_argument("--prompts", type=int, default=128)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--slots", type=int, default=512)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--tick-s", type=float, default=0.02)
    parser.add_argument("--in-flight", type=float, default=3, help="rollouts in flight per slot")
    parser.add_argument("--staleness", type=float, nargs="*", help="more modes d with these")
    parser.add_argument("--lag", type=int, help="max_version_lag of those")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    if args.quick:
        args.steps, args.repeats = 12, 1
    args.modes = dict(MODES)
    for staleness in args.staleness or ():
        args.modes[f"d: staleness {staleness:g}, partial"] = {
            "staleness_threshold": staleness,
            "partial_rollout": True,
            "max_version_lag": args.lag,
        }
    logging.disable(logging.WARNING)
    show([measure(args, seed) for seed in range(args.repeats)], args)


if __name__ == "__main__":
    main()
