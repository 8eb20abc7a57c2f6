"""Rollouts of an agent program in a real sandbox, whose model is a script."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from agentrl_envs.harness import HarnessTask
from agentrl_envs.harness.agents import HarnessAgent

from agentrl.chat import build_chat, build_parser
from agentrl.config.schema import ChatSection, RolloutSection
from agentrl.env import Action, AgentInstance, Observation, StepResult
from agentrl.gateway import ProgramAgent
from agentrl.rollout import RolloutWorker
from agentrl.sandbox import SandboxBackend, SandboxLimits
from agentrl.serving import TokenClient
from agentrl.testing import ByteTokenizer, ScriptedEngine
from agentrl.types import SamplingParams, Task, Trajectory
from tests.rollout.rollout_fakes import call

SCRIPT = "agentrl_envs.harness.script:SCRIPT"
LIMITS = SandboxLimits(wall_s=20.0, processes=64)


class Echoes(AgentInstance):
    """Pays for the last words `yes`, and asks for them."""

    async def reset(self, task: Task) -> Observation:
        return Observation(content=f"Say {task.label}.")

    async def step(self, action: Action) -> StepResult:
        return StepResult(rewards=float(action.text.strip() == "yes"), done=True)


class Thinks(Echoes):
    """Pays for one turn with a thought, as it was sampled."""

    async def step(self, action: Action) -> StepResult:
        read = (action.thought, action.text, action.whole_text, action.raw_text)
        whole = "<think>\nhm\n</think>\n\nyes"
        return StepResult(rewards=float(read == ("hm", "yes", whole, whole)), done=True)


ECHOES = "tests.envs.harness.harness_rollout:Echoes"
YES = Task(id="echo", prompt="Say yes.", label="yes")

CURL = """
import json, os, urllib.request
def ask(content, seed=0):
    request = urllib.request.Request(
        os.environ["URL"] + "/v1/chat/completions",
        json.dumps({"model": "policy", "seed": seed,
                    "messages": [{"role": "user", "content": content}]}).encode(),
        {"content-type": "application/json", "authorization": "Bearer " + os.environ["KEY"]})
    return json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]
"""


def agent_of(body: str) -> HarnessAgent:
    """An agent whose whole program is some Python after `ask`."""
    return HarnessAgent(
        name="test",
        wire="chat",
        command="python3 {home}/agent.py",
        environment={"URL": "{base_url}", "KEY": "{key}"},
        files={"agent.py": f"{CURL}\n{body}\n"},
    )


TWO_TURNS = agent_of('print(ask("one")); print(ask("two"))')
CRASHES = agent_of('ask("one"); raise SystemExit(7)')
CRASHES_FIRST = agent_of('print("no luck"); raise SystemExit(7)')
KILLS_ITSELF = agent_of('ask("one"); os.kill(os.getpid(), 9)')
HANGS = agent_of('print(ask("one"), flush=True); import time; time.sleep(600)')
HANGS_FIRST = agent_of("import time; time.sleep(600)")
NEVER_ENOUGH = agent_of(
    "n = 0\nwhile True:\n    n += 1\n    try:\n        ask(str(n))\n    except OSError: pass"
)
HUNGRY = agent_of(
    'ask("one"); import time; kept = []\n'
    'while True:\n    kept.append(b"x" * 2**20 + b"")\n    time.sleep(0.005)'
)
LOUD = agent_of('print(ask("one"))\nfor n in range(200_000): print("line", n)')
RUNS_A_FILE = agent_of(
    "import sys\nfrom pathlib import Path\nhere = Path(sys.argv[1])\n"
    'say = lambda text: print(text, (here.parent / "x/y").read_text())\nexec(here.read_text())'
)
ABSENT = HarnessAgent(name="absent", wire="chat", command="no-such-agent-program {prompt_file}")


def named(agent: str) -> str:
    return f"tests.envs.harness.harness_rollout:{agent}"


def bash(command: str) -> str:
    """A turn that calls the tool of the script agent."""
    return call("bash", json.dumps({"command": command}))


async def rolled_out(
    backend: SandboxBackend,
    task: Task,
    replies: Sequence[str] | Callable[[Sequence[int], str], str],
    *,
    agent: str = SCRIPT,
    grade: str = ECHOES,
    limits: SandboxLimits = LIMITS,
    fail: Any = None,
    args: dict[str, Any] | None = None,
    n: int = 1,
    **section: Any,
) -> tuple[Trajectory, ...]:
    """The rows of a group."""
    usual = {
        "max_response_tokens": 40_000, "max_context_tokens": 80_000, "max_turn_tokens": 2000,
        "max_assistant_turns": 10, "retries": 0, "timeout_s": 30.0, "env_timeout_s": 60.0,
    }  # fmt: skip
    worker = RolloutWorker(
        generator=TokenClient([ScriptedEngine(replies, ByteTokenizer(), fail=fail)]),
        chat=build_chat(ByteTokenizer(), ChatSection(tool_parser="hermes")),
        parser=build_parser("hermes"),
        make_env=lambda: ProgramAgent(HarnessTask(agent=agent, grade=grade, **(args or {}))),
        sandboxes=backend,
        sandbox_limits=limits,
        section=RolloutSection(**(usual | section)),
    )
    group = await worker.run_group(
        task, group_id="group", n=n, sampling=SamplingParams(max_tokens=1000), seed=0
    )
    return group.trajectories
