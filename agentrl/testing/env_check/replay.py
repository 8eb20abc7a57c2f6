"""The process in which episodes are played again.

It begins as soon as a check does, is asked when there is something to play, and answers once: the
tasks that it loaded, and what each episode showed.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

from agentrl.config.sandboxes import sandbox_section
from agentrl.config.schema import DatasetSection, EnvSection
from agentrl.data import load_tasks
from agentrl.machine.processes.child_main import ChildChannel
from agentrl.testing.env_check.clock import shift_clock
from agentrl.testing.env_check.episode import CheckLimits, Episode, Setting
from agentrl.testing.env_check.opened import opened_env
from agentrl.testing.env_check.script import script_from
from agentrl.testing.env_check.watch import BlockingWatch
from agentrl.types.finding import Finding


def serve(channel: ChildChannel) -> None:
    """Answer one request of the parent; `ChildProcess` calls it."""
    channel.end_with_parent()
    logging.disable(logging.ERROR)
    request = channel.receive().head
    channel.send(asyncio.run(_answer(request)))


async def _answer(request: dict[str, Any]) -> dict[str, Any]:
    shift_clock(request["clock_s"])
    base = Path(request["base"])
    sandbox = request["sandbox"]
    tasks = load_tasks(DatasetSection(**request["dataset"]), base=base)[: request["tasks"]]
    section = sandbox and sandbox_section(sandbox.pop("backend"), **sandbox)
    plays: dict[int, list[str] | None] = {}
    async with opened_env(EnvSection(**request["env"]), section, base=base) as env:
        watch = BlockingWatch(request["limits"]["block_s"])
        failed: list[Finding] = []
        setting = Setting(
            make_env=env.make_env,
            limits=CheckLimits(**request["limits"]),
            tools=env.tools,
            backend=env.backend,
            seed=request["seed"],
            watch=watch,
            add=failed.append,
        )
        numbered = list(enumerate(map(script_from, request["scripts"])))
        with watch.armed():
            for number, script in numbered[::-1] if request["reversed"] else numbered:
                played = await Episode.played(setting, tasks[script.task], script)
                plays[number] = played and list(played.lines)
    # Of a set as a label the order says nothing yet: what an episode shows of it does.
    named = [[task.id, repr(task.prompt)] for task in tasks]
    return {"tasks": named, "plays": [plays[number] for number in range(len(plays))]}
