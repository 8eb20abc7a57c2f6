"""The process in which episodes are played again: `python -m agentrl.testing.env_check.replay`.

It begins as soon as a check does, reads one line of JSON when there is something to play, and
answers with one line: the tasks that it loaded, and what each episode showed.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from agentrl.config.sandboxes import sandbox_section
from agentrl.config.schema import DatasetSection, EnvSection
from agentrl.data import load_tasks
from agentrl.sandbox import SandboxLimits
from agentrl.testing.env_check.clock import shift_clock
from agentrl.testing.env_check.episode import (
    CheckLimits,
    Episode,
    Failed,
    NoSuchTool,
    Setting,
    TriedCounts,
)
from agentrl.testing.env_check.opened import opened_env
from agentrl.testing.env_check.script import script_from
from agentrl.testing.env_check.watch import BlockingWatch
from agentrl.types.finding import Finding


def main() -> None:
    """Answer the one request of standard input; end without one."""
    out = os.dup(1)
    os.dup2(2, 1)  # what the environment prints is no answer
    logging.disable(logging.ERROR)
    line = sys.stdin.readline()
    if not line:
        return
    answer = asyncio.run(_answer(json.loads(line)))
    with os.fdopen(out, "w", encoding="utf-8") as stream:
        stream.write(json.dumps(answer) + "\n")
    os._exit(0)  # what the environment leaves behind does not hold this up


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
            sandbox_limits=SandboxLimits(),
            seed=request["seed"],
            watch=watch,
            tried=TriedCounts(),
            add=failed.append,
        )
        numbered = list(enumerate(map(script_from, request["scripts"])))
        with watch.armed():
            for number, script in numbered[::-1] if request["reversed"] else numbered:
                async with AsyncExitStack() as stack:
                    try:
                        episode = await Episode.begin(setting, stack, tasks[script.task])
                        plays[number] = list((await episode.play(script)).lines)
                    except (Failed, NoSuchTool):
                        plays[number] = None
    # Of a set as a label the order says nothing yet: what an episode shows of it does.
    named = [[task.id, repr(task.prompt)] for task in tasks]
    return {"tasks": named, "plays": [plays[number] for number in range(len(plays))]}


if __name__ == "__main__":
    main()
