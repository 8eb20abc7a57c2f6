"""Answers of a worker that its parent cannot read; the process is a fake."""

from __future__ import annotations

import asyncio
import pickle
from pathlib import Path
from typing import Any

import pytest

from agentrl.config import parse_config
from agentrl.config.plan import plan_run
from agentrl.errors import EngineError
from agentrl.machine.processes.child_main import Frame
from agentrl.runtime.children.worker_child import WorkerChild, WorkerLost
from agentrl.runtime.children.worker_main import WorkerSetup, _portable

UNREADABLE = b"cno_such_module\nThing\n."
"""A pickle of a class in a module that is not here."""


class Process:
    """Answers every question with the next of `bodies`."""

    bodies: list[bytes]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.asked: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def send_async(self, head: dict[str, Any], body: bytes) -> None:
        if head:
            self.asked.put_nowait(head)

    async def receive_async(self) -> Frame:
        head = await self.asked.get()
        if not self.bodies:
            raise ValueError("not a frame")
        return Frame({"id": head["id"], "error": False}, self.bodies.pop(0))

    def close(self) -> None: ...


async def test_an_answer_that_cannot_be_read_fails_its_question_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if the run waits for ever for it, or for the answers behind it."""
    monkeypatch.setattr("agentrl.runtime.children.worker_child.ChildProcess", Process)
    Process.bodies = [pickle.dumps((7, "report")), UNREADABLE, pickle.dumps("well")]
    config = parse_config({"env": {"target": "x:Y"}, "dataset": {"source": "x.jsonl"}})
    setup = WorkerSetup(
        plan=plan_run(config, tmp_path).rollouts,
        wait_s=0.0,
        index=0,
        sharers=1,
        log=tmp_path / "log",
        policy_copy=None,
    )
    child = WorkerChild(setup)
    async with asyncio.timeout(120):
        assert await child.open([]) == "report"
        with pytest.raises(RuntimeError, match=r"cannot be read here.*no_such_module"):
            await child.ask("run_group")
        assert await child.ask("run_group") == "well"
        # What is no frame ends the reading: nobody may wait for an answer any more.
        with pytest.raises(WorkerLost, match=r"not read any more.*not a frame"):
            await child.ask("run_group")
        assert child.lost
        await child.close()


def test_only_exceptions_that_the_parent_knows_go_through_as_they_are() -> None:
    class Own(Exception):
        pass

    ours = EngineError("gone")
    assert _portable(ours) is ours
    carried = _portable(Own("broken"))
    assert type(carried) is RuntimeError
    assert str(carried) == "Own: broken"
