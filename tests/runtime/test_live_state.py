"""What a run writes of itself while it runs: whole, once a second, gone in the end."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path

import pytest

from agentrl.rollout.under_way.in_flight import InFlight, InFlightReport, WaitsFor, merged
from agentrl.runtime import live_state
from agentrl.runtime.live_state import LiveState
from agentrl.runtime.progress import Progress, RunPlan
from agentrl.serving.records import EngineState, EngineStats, Routed, Served


class Heard(Progress):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def phase(self, name: str, total: int = 0) -> None:
        self.said.append(f"{name} {total}")

    def note(self, text: str) -> None:
        self.said.append(text)


def engine() -> EngineStats:
    return EngineStats(
        name="vllm-0", state=EngineState.QUARANTINED, why="silent", version=3, in_flight=70,
        routed=Routed(), served=Served(),
    )  # fmt: skip


def two_workers() -> InFlightReport:
    """Three rollouts on two workers, the oldest on the second."""
    workers = [InFlight(), InFlight()]
    old = workers[1].begin("g1/0", "task-1")
    workers[0].begin("g0/0", "task-0").wait(WaitsFor.MODEL)
    workers[1].begin("g1/1", "task-1").wait(WaitsFor.MODEL)
    old.turn = 7
    return merged((one.report(9, {"g1/0": "vllm-0"}.get) for one in workers), 1)


async def test_the_file_says_what_the_run_does_and_goes_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if a look that fails ends the looking, or the file outlives the run."""
    monkeypatch.setattr(live_state, "LOOK_S", 0.01)
    path, view, looks = tmp_path / "live.json", Heard(), []

    async def look(most: int) -> InFlightReport:
        looks.append(most)
        if len(looks) == 1:
            raise RuntimeError("a worker is gone")
        return two_workers()

    live = LiveState(path, view, slots_per_engine=64)
    with live.open():
        assert json.loads(path.read_bytes())["phase"]["name"] == "loading"
        live.started(
            RunPlan(
                run_dir=tmp_path, steps=9, done=2, max_minutes=None, model="", sandbox="",
                tasks=1, rollouts_per_step=3,
            )
        )  # fmt: skip
        live.phase("rollout", 3)
        live.advance(1, 40)
        live.engines({"vllm-0": engine()})
        live.finished_groups(2, 4.25)
        async with live.watching(look), asyncio.timeout(120):
            while len(looks) < 3:
                await asyncio.sleep(0.01)
        said = json.loads(path.read_bytes())
        live.note("a note")
    assert view.said == ["rollout 3", "a note"]
    assert (said["steps_done"], said["steps"]) == (2, 9)
    assert (said["phase"]["rollouts_done"], said["phase"]["rollouts"]) == (1, 3)
    assert said["engines"] == [
        {"name": "vllm-0", "state": "quarantined", "why": "silent", "version": 3,
         "in_flight": 70, "slots": 64},
    ]  # fmt: skip
    assert said["finished_groups"] == {"count": 2, "oldest_s": 4.25}
    rollouts = said["rollouts"]
    assert rollouts["count"] == 3
    assert {name: one["count"] for name, one in rollouts["waits"].items()} == {
        "model": 2,
        "environment": 1,
    }
    assert [(one["task_id"], one["turn"], one["engine"]) for one in rollouts["oldest"]] == [
        ("task-1", 7, "vllm-0")
    ]
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_costs_one_line_of_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    live = LiveState(tmp_path / "gone" / "live.json", Progress(), slots_per_engine=1)
    with caplog.at_level(logging.WARNING), live.open():
        live.write(None)
        live.write(None)
    assert len(caplog.records) == 1
    assert "cannot be written" in caplog.text
