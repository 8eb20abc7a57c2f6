"""Stages that only keep the time; see `asynchrony.py`."""

from __future__ import annotations

import argparse
import asyncio
import heapq
import math
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from agentrl.config import RunConfig, parse_config
from agentrl.config.fleet import ScheduleSection
from agentrl.data.staleness import oldest_allowed
from agentrl.metrics import MetricBag
from agentrl.runtime.drivers.filters.token_ages import is_stale
from agentrl.runtime.stages import GroupReport, RolloutReport
from agentrl.types import SamplingParams, Task, Termination, TrajectoryGroup

MEDIAN_TOKENS = 200
SIGMA = 1.0


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

    def counts(self) -> MetricBag:
        return MetricBag()


def timed_config(args: argparse.Namespace, folder: Path, **sections: Any) -> RunConfig:
    """The config of a run on these stages.

    Args:
        args: `prompts`, `samples` and `steps`.
        folder: of the run.
        sections: of the config, beside those.
    """
    return parse_config(
        {
            "run": {"dir": str(folder), "name": "bench"},
            "env": {"target": "x:Y"},
            "dataset": {"source": "x.jsonl"},
            "rollout": {"prompts_per_step": args.prompts, "n_samples_per_prompt": args.samples},
            "train": {"steps": args.steps},
            "checkpoint": {"every_steps": 10**6},
            "log": {"tensorboard": False},
            "serving": {"engine": "vllm"},
            **sections,
        }
    )


def seed_of(task: Task) -> int:
    return int(task.id) + int(task.metadata["seed"]) * 10**6


class FakeLearner:
    """A `LearnStage` on the devices of the engine, which stands still meanwhile."""

    def __init__(self, engine: FakeEngine, schedule: ScheduleSection, *, train_s: float) -> None:
        self.engine, self.schedule, self.train_s = engine, schedule, train_s
        self.dropped = 0
        self.version = 0
        self.mid_step = False
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

    async def learn_early(self, step: int, minibatch: int, groups: Mapping[int, Handle]) -> None:
        raise NotImplementedError("it shares the devices of the engine")

    def abandon(self) -> None:
        raise NotImplementedError("no signal with a grace period comes here")

    async def keep(self, step: int, kind: str, groups: Sequence[Handle]) -> None: ...

    def save(self, folder: Path) -> None:
        (folder / "weights").write_text("none")
