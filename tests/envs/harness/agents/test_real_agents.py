"""Real agents, unmodified, against a served gateway: what they do to a rollout.

Agents are installed by `agentrl harness install NAME`. In CI two of them are, and must be.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
from agentrl_envs.harness.agents import AgentValues, HarnessAgent, agents, installed

from agentrl.chat import ChatFormat, build_chat
from agentrl.config.schema import ChatSection
from agentrl.gateway.listen import listening
from agentrl.testing import ByteTokenizer, ScriptedEngine
from tests.gateway.gateway_fakes import Served, serve
from tests.rollout.rollout_fakes import call

IN_CI = ("mini-swe-agent", "pi")
"""The others take another 1.5 GB."""
SHELLS = {
    "claude-code": ("Bash", "command"),
    "codex": ("exec_command", "cmd"),
    "mini-swe-agent": ("bash", "command"),
    "opencode": ("bash", "command"),
    "pi": ("bash", "command"),
    "qwen-code": ("run_shell_command", "command"),
}
"""Name of the shell tool of each agent, and of its argument for the command."""
MORE = {"opencode": {"description": "Makes a file"}, "qwen-code": {"is_background": False}}
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
LIMIT_S = 120.0
CONTEXT = 400_000


@dataclass(frozen=True)
class AgentEnd:
    """What became of an agent."""

    status: int | None
    output: str
    workdir: Path


@pytest.fixture(scope="module")
def chat() -> ChatFormat:
    return build_chat(ByteTokenizer(), ChatSection(tool_parser="hermes"))


@pytest.fixture(params=[name for name in sorted(agents()) if name in IN_CI or not os.getenv("CI")])
def agent(request: pytest.FixtureRequest) -> HarnessAgent:
    found = agents()[request.param]
    if installed(found) is None:
        pytest.skip(f"{found.name} is not installed: agentrl harness install {found.name}")
    return found


async def play(agent: HarnessAgent, served: Served, folder: Path) -> AgentEnd:
    """Start an agent as a harness does, and wait until it has ended."""
    root = installed(agent)
    assert root is not None
    home, workdir, prompt = folder / "home", folder / "work dir", folder / "prompt.txt"
    home.mkdir()
    workdir.mkdir()
    prompt.write_text('Make the file made.txt.\nSay "it\'s there", $HOME and `all`.\n')
    async with listening(served.gateway) as url:
        values = AgentValues(
            base_url=url, key=served.session.secret, model="policy", prompt_file=str(prompt),
            workdir=str(workdir), home=str(home), bin=str(root / agent.bin_folder),
            context=str(CONTEXT), reply="4096",
        )  # fmt: skip
        for path, text in agent.written(values).items():
            (home / path).parent.mkdir(parents=True, exist_ok=True)
            (home / path).write_text(text)
        process = await asyncio.create_subprocess_exec(
            "sh",
            "-c",
            agent.started(values),
            cwd=workdir,
            env={"PATH": os.environ["PATH"], "HOME": str(home), **agent.variables(values)},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            output, _ = await asyncio.wait_for(process.communicate(), LIMIT_S)
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                await process.communicate()
    return AgentEnd(process.returncode, output.decode(errors="replace"), workdir)


def shell(agent: HarnessAgent, command: str, number: int) -> str:
    """A call of the shell tool, spelled as no serialiser would."""
    name, argument = SHELLS[agent.name]
    arguments = json.dumps(
        {**MORE.get(agent.name, {}), argument: command},
        separators=((" , ", " :"), (",", ":"))[number % 2],
    )
    return call(name, arguments)


def served_by_script(chat: ChatFormat, agent: HarnessAgent, **limits: int) -> Served:
    first = shell(agent, "echo made-$((40+2)) > made.txt; cat made.txt", 0)
    second = shell(agent, "echo then-$((40+3)); exit 3", 1)
    submits = agent.name == "mini-swe-agent"  # ends by a command instead of by words
    last = "I submit." + shell(agent, SUBMIT, 0) if submits else "It is there."
    replies = [f"\n\nI make the <b>file</b>. \u4e16\n{first}", second, last]
    usual = {"max_response_tokens": 200_000, "max_context_tokens": CONTEXT}
    engine = ScriptedEngine(replies, ByteTokenizer())
    return serve(chat, None, engine=engine, **(usual | limits))


async def test_an_agent_runs_calls_and_ends_by_itself(
    agent: HarnessAgent, chat: ChatFormat, tmp_path: Path
) -> None:
    # Fails if a turn is encoded again where the agent respelled it, if its history begins a branch,
    # if a request is refused, or if the agent asks for more than its turns.
    served = served_by_script(chat, agent)
    end = await play(agent, served, tmp_path)
    assert end.status in agent.finished, end.output
    assert (end.workdir / "made.txt").read_text() == "made-42\n"
    asked = served.engine.requests
    assert len(asked) == 3, end.output
    for before, after in pairwise(asked):
        assert before.generation is not None
        whole = (*before.prompt_ids, *before.generation.ids)
        assert after.prompt_ids[: len(whole)] == whole
    shown = [bytes(i for i in one.prompt_ids if i < 256).decode() for one in asked]
    assert 'Make the file made.txt.\nSay "it\'s there", $HOME and `all`.' in shown[0]
    assert "made-42" in shown[1][len(shown[0]) :]
    assert "then-43" in shown[2][len(shown[1]) :]
    assert served.session.report() == {}
    recorder = served.rows()
    (row,) = recorder.rows
    sampled = [i for one in asked if one.generation for i in one.generation.ids]
    trained = [i for i, on in zip(row.ids[row.prompt_length :], row.mask, strict=True) if on]
    assert trained == sampled


async def test_an_agent_ends_at_a_limit_of_the_rollout(
    agent: HarnessAgent, chat: ChatFormat, tmp_path: Path
) -> None:
    # Fails if an agent repeats for minutes a request that was refused for good.
    served = served_by_script(chat, agent, max_assistant_turns=1)
    end = await play(agent, served, tmp_path)
    assert end.status == 1, end.output
    assert served.session.limit is not None
    assert "max_assistant_turns" in end.output
    assert len(served.engine.requests) == 1
    assert len(served.rows().rows) == 1
