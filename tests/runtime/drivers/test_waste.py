"""The ledger of a run: what its steps say became of the tokens is all that was ever sampled."""

from __future__ import annotations

import asyncio
import json
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentrl.config import RunConfig
from agentrl.config.reward import DynamicFilter, RewardSection
from agentrl.data import TrajectoryStore
from agentrl.disk.stored_groups import stored_names
from agentrl.machine.processes.stop import Interrupted, StopSwitch
from agentrl.types import SamplingParams, Task, Termination, TrajectoryGroup
from tests.data.small_steps import small_step
from tests.runtime.driver_fakes import Fuse, StreamingWorker, drive, fake_config
from tests.runtime.drivers.test_asynchronous import stored
from tests.runtime.drivers.test_driver import StopAt

MODES: dict[str, dict[str, Any]] = {
    "synchronous": {},
    "one step off": {"staleness_threshold": 1.0},
    "asynchronous": {"staleness_threshold": 1.0, "max_version_lag": 0},
    "masking": {"staleness_threshold": 1.0, "max_version_lag": {"mask": 0}},
    "tail": {"oversample": 1.5},
    "tail filtered": {"oversample": 2.0},
}
FILTER = RewardSection(dynamic_filtering=DynamicFilter(keep=(0.15, 0.45)))
SERVED = ("one step off", "asynchronous", "masking")
"""Modes whose engines do not share the trainer's weights."""


def config_of(tmp_path: Path, mode: str) -> RunConfig:
    engine = "vllm" if mode in SERVED else "embedded"
    config = fake_config(tmp_path, schedule=MODES[mode], engine=engine)
    return config.model_copy(update={"reward": FILTER}) if "filtered" in mode else config


class Meter(StreamingWorker):
    """Counts what its engine samples, token by token, as the engine would."""

    pace_s = 0.001

    def __init__(self, fuse: Fuse) -> None:
        super().__init__(fuse)
        self.sampled = self._cut_before = 0
        self.on_evaluated = lambda: None

    async def run_group(
        self, task: Task, *, group_id: str, n: int, sampling: SamplingParams, seed: int
    ) -> TrajectoryGroup:
        tokens = 0
        try:
            group = await super().run_group(
                task, group_id=group_id, n=n, sampling=sampling, seed=seed
            )
            tokens = sum(row.num_action_tokens for row in group.trajectories)
        except asyncio.CancelledError:
            tokens = self.cancelled.tokens - self._cut_before
            self._cut_before = self.cancelled.tokens
            raise
        finally:
            if not group_id.startswith("eval-"):
                self.sampled += tokens
            elif tokens:
                self.on_evaluated()
        return group


class StopInside(StopAt):
    """Presses Ctrl-C when the first group of a phase has ended."""

    inside = False

    def phase(self, name: str, total: int = 0) -> None:
        self.inside = name == self.wanted and self.steps >= self.after

    def advance(self, rollouts: int, tokens: int) -> None:
        if self.inside:
            self.inside = False  # a second signal ends the process at once
            self.stop.request(signal.SIGTERM)


class StopEvaluating(StopAt):
    """Presses Ctrl-C when the first group of an evaluation has ended, shown or beside training."""

    pressed = False

    def phase(self, name: str, total: int = 0) -> None: ...

    def group_ended(self) -> None:
        if self.steps >= self.after and not self.pressed:
            self.pressed = True  # a second signal ends the process at once
            self.stop.request(signal.SIGTERM)


def ledgers(config: RunConfig) -> dict[int, dict[str, float]]:
    """Tokens by use of every step that was trained."""
    path = Path(config.run.dir) / config.run.name / "metrics.jsonl"
    prefix = "waste/tokens/"
    found = {}
    for text in path.read_text().splitlines():
        line = json.loads(text)
        uses = {k.removeprefix(prefix): v for k, v in line.items() if k.startswith(prefix)}
        if uses:
            found[line["step"]] = {**found.get(line["step"], {}), **uses}
    return found


@pytest.mark.parametrize("mode", MODES)
async def test_the_uses_of_every_step_add_up(mode: str, tmp_path: Path) -> None:
    """Fails if groups that were cut, or those that came too late, are in no ledger."""
    config = config_of(tmp_path, mode)

    def end(index: int) -> Termination:
        return Termination.SANDBOX_FAILED if index == 2 else Termination.ENV_DONE

    worker = StreamingWorker(Fuse(), end=end)
    result, _ = await drive(config, worker=worker)
    told = ledgers(config)
    assert list(told) == list(range(1, result.steps + 1))
    aborted = 0.0
    for step, groups in stored(config).items():
        sampled = sum(row.num_action_tokens for group in groups for row in group.trajectories)
        uses = told[step]
        aborted += uses["aborted"]
        assert sum(uses.values()) - uses["aborted"] == sampled
        lost = sum(
            row.num_action_tokens
            for group in groups
            for row in group.trajectories
            if row.termination is Termination.SANDBOX_FAILED
        )
        assert uses["infrastructure"] == lost > 0
    assert (sum(uses["filtered"] for uses in told.values()) > 0) == ("filtered" in mode)
    if mode.startswith("tail"):
        # What ended together with the last group that was wanted is paid for as well.
        ended = [group for group in worker.rolled_out if not group.group_id.startswith("eval-")]
        paid = sum(row.num_action_tokens for group in ended for row in group.trajectories)
        kept = sum(sum(uses.values()) for uses in told.values()) - aborted
        assert aborted == worker.cancelled.tokens + paid - kept > 0
    else:
        assert aborted == 0
    stale = sum(uses["stale"] for uses in told.values())
    assert (stale > 0) == (mode in ("asynchronous", "masking"))


@pytest.mark.parametrize(
    ("at", "phase"),
    [
        (StopAt, "rollout"),
        (StopInside, "rollout"),
        (StopAt, "train"),
        (StopAt, "sync"),
        (StopEvaluating, "eval held"),
    ],
)
@pytest.mark.parametrize("mode", MODES)
async def test_what_the_engines_sampled_is_what_became_of_it(
    mode: str, at: type[StopAt], phase: str, tmp_path: Path
) -> None:
    """Fails if groups that were cut, or had ended and wait to be trained when a run is stopped, are
    in no ledger, if those of a stored step are in two, or if those of an evaluation are in one."""
    config = config_of(tmp_path, mode)
    sampled = 0
    for after in (0, 1, 2, 100):
        worker, stop = Meter(Fuse()), StopSwitch()
        progress = at(stop, phase, after)
        if isinstance(progress, StopEvaluating):
            worker.on_evaluated = progress.group_ended
        if after < 100:
            with pytest.raises(Interrupted):
                await drive(config, worker=worker, stop=stop, progress=progress)
        else:
            result, _ = await drive(config, worker=worker, stop=stop, progress=progress)
            assert result.steps == 7
        sampled += worker.sampled
        assert sum(sum(uses.values()) for uses in ledgers(config).values()) == sampled


def test_names_of_stored_groups_are_read_without_their_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if they are not those of the groups, or if whoever stops a run waits for all of it."""
    store = TrajectoryStore(tmp_path)
    groups, _, _ = small_step(1)
    groups[0] = replace(
        groups[0],
        group_id="\ud800",
        trajectories=tuple(replace(row, group_id="\ud800") for row in groups[0].trajectories),
    )
    store.write(1, "train", groups)
    assert stored_names(store, "train", 1) == {group.group_id for group in groups}
    assert stored_names(store, "train", 2) == set()
    monkeypatch.setattr(TrajectoryStore, "read", None)
    assert len(stored_names(store, "train", 1)) == len(groups)
