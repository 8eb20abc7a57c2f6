"""The environment: an agent at a service desk, with a policy, a database behind tools, and a user.

Telecom is played alone: a ticket says what is wrong, and the agent has the tools of the desk and
the phone of the user. In retail and airline the agent talks to a user, and a turn without a call is
what the user reads. In the end the world is asked, not the agent: is the database what it would be
had everything been done right, do tau2's assertions hold, did the user get the required answers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentrl.env import Action, AgentInstance, Observation, Solution, StepResult
from agentrl.errors import ConfigError, ToolError
from agentrl.sandbox import Sandbox
from agentrl.tool import Tool
from agentrl.types import (
    Explanation,
    Message,
    Task,
    Termination,
    ToolCall,
    ToolResult,
    ToolStatus,
)
from agentrl_envs.host_process import HostProcess
from agentrl_envs.tau2.tasks import policy
from agentrl_envs.tau2.users import ScriptedUser, ServedUser, User

_HOST = f"{Path(__file__).with_name('host.py')}:Tau2Host"
_STATUS = {
    "ok": ToolStatus.OK,
    "error": ToolStatus.ERROR,
    "invalid": ToolStatus.INVALID_ARGUMENTS,
}
_MESSAGE_CHARS = 4000
_CPU_S = 10
_SYSTEM = """You work at a service desk. Keep to the policy below, whatever you are asked for.
{how}

<policy>
{policy}
</policy>"""
_TALKING = "In each turn either call tools or write to the user; what you write ends your turn."
_ALONE = (
    "You work on a ticket, and nobody reads what you write. Call tools until everything is done "
    "that can be; then reply without a call, which closes the ticket. You have the phone of the "
    "user in your hands, so what the policy asks the user to do you do yourself."
)
_right_hashes: dict[str, str] = {}
"""Of databases as they should be, by task; worked out once, as all rollouts of a task share it."""


class Tau2Task(AgentInstance):
    """One task of tau2; 1 if every part of its reward is earned, and 0 otherwise.

    Parts are tau2's: `DB`, `ENV_ASSERTION`, `ACTION` and `COMMUNICATE`, of which a task names
    those that count. tau2 also has sentences about the conversation that a language model judges;
    they count for no task here. A user reads the last 4,000 characters of a message. A message
    of more than 100 different numbers answers nothing, and an agent that says more than 20 that
    stand in nothing it read has given none.

    Args:
        user_url: where a model that plays the user is served, such as `http://host:8000/v1`; empty
            for `ScriptedUser`. Telecom has no user.
        user_model: its name there.
        user_api_key_env: the environment variable that holds the key for it, if it needs one.
        user_temperature: how it is sampled.
        max_messages: what the agent may write to the user; then the user hangs up.
    """

    reward_range = (0.0, 1.0)

    def __init__(
        self,
        user_url: str = "",
        user_model: str = "",
        user_api_key_env: str = "",
        user_temperature: float = 0.0,
        max_messages: int = 20,
    ) -> None:
        if bool(user_url) != bool(user_model):
            raise ConfigError(
                "Tau2Task needs user_url and user_model together, got "
                f"{user_url!r} and {user_model!r}; leave both empty for the scripted user"
            )
        if max_messages < 1 or user_temperature < 0:
            raise ConfigError(
                "Tau2Task needs max_messages >= 1 and user_temperature >= 0, got "
                f"{max_messages} and {user_temperature}"
            )
        self.user_url = user_url
        self.user_model = user_model
        self.user_api_key_env = user_api_key_env
        self.user_temperature = user_temperature
        self.max_messages = max_messages
        self.world: HostProcess | None = None
        """Process of the episode; None before `reset`."""
        self._user: User | None = None

    async def reset(self, task: Task) -> Observation:
        """Make the world, and get the user's request.

        Raises:
            ValueError: the task is not one of tau2.
        """
        try:
            label, scene = dict(task.label), task.metadata
            made_with = {name: label[name] for name in ("expected", "checks")}
            made_with |= {name: scene[name] for name in ("domain", "begin")}
            made_with["answers"] = label["told"]
            self._reference = _reference(label)
            self._basis, scenario = tuple(label["basis"]), scene["scenario"]
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"task {task.id!r}: Tau2Task needs the tasks of agentrl_envs.tau2:tau2_tasks; "
                f"{type(error).__name__} {error}"
            ) from None
        self._task_id = task.id
        self._said: list[str] = []
        self._shown: list[str] = []
        self._calls = self._failed = 0
        self._acted = self._done = False
        await self.close()
        self.world = await HostProcess.start(
            _HOST, made_with, what=f"tau2's {scene['domain']}", cpu_s=_CPU_S
        )
        tools = [_WorldTool(item, self.world) for item in await self.world.ask("tools")]
        if scene["domain"] == "telecom":
            how, opening = _ALONE, f"<ticket>\n{task.prompt}\n</ticket>"
        else:
            self._user = self._make_user(scenario)
            how, opening = _TALKING, await self._user.reply("", acted=False) or ""
            self._shown.append(opening)
        system = _SYSTEM.format(how=how, policy=policy(scene["domain"]))
        return Observation(
            content=(
                Message(role="system", content=system),
                Message(role="user", content=opening),
            ),
            tools=tuple(tools),
        )

    def _make_user(self, scenario: Mapping[str, Any]) -> User:
        if not self.user_url:
            return ScriptedUser(scenario)
        return ServedUser(
            scenario,
            url=self.user_url,
            model=self.user_model,
            api_key_env=self.user_api_key_env,
            temperature=self.user_temperature,
            seed=self.context.seed,
        )

    async def step(self, action: Action) -> StepResult:
        """Go on while tools are called; without a call the user answers, or the ticket closes."""
        if self._done or self.world is None:
            raise RuntimeError("Tau2Task.step was called before reset or after done")
        self._calls += len(action.tool_calls)
        self._failed += sum(result.status is not ToolStatus.OK for result in action.tool_results)
        if self.world.stopped is not None:
            return self._final({}, self.world.stopped)
        if action.tool_calls and not action.last:
            self._acted = True
            return StepResult()
        answer = None
        if self._user is not None and not action.tool_calls:
            self._said.append(action.text[-_MESSAGE_CHARS:])
            if not action.last and len(self._said) < self.max_messages:
                answer = await self._user.reply(self._said[-1] or "(silence)", acted=self._acted)
        self._acted = False
        if answer is not None:
            self._shown.append(answer)
            return StepResult(environment_feedback=answer)
        try:
            found = await self.world.ask(
                "verdict",
                said=self._said,
                shown=self._shown,
                right_hash=_right_hashes.get(self._task_id, ""),
            )
        except ToolError:
            return self._final({}, self.world.stopped or Termination.TOOL_TIMEOUT)
        _right_hashes[self._task_id] = found["right_hash"]
        return self._final(found["parts"], Termination.ENV_DONE)

    def _final(self, parts: Mapping[str, bool], termination: Termination) -> StepResult:
        self._done = True
        counted = {name: parts.get(name, False) for name in self._basis if name != "NL_ASSERTION"}
        solved = bool(counted) and all(counted.values())
        return StepResult(
            rewards=float(solved),
            done=True,
            scores=float(solved),
            termination=termination,
            extra_logs={
                "solved": float(solved),
                "calls": float(self._calls),
                "calls_failed": float(self._failed),
                "messages": float(len(self._said)),
                **{name.lower(): float(value) for name, value in counted.items()},
            },
            explanation=Explanation(
                reference=self._reference,
                tests="\n".join(
                    f"{'passed' if value else 'FAILED'} {name}" for name, value in counted.items()
                ),
                reason="" if parts else "The conversation ended before tau2 could judge it.",
            ),
        )

    def solution(self, task: Task) -> Solution:
        """tau2's reference actions, one a turn, then the answers the user must get."""
        calls = [
            ToolCall(id="", name=item["name"], arguments=item["arguments"], raw="")
            for item in task.label["expected"]
        ]
        told = "; ".join(task.label["told"])
        return [*calls, f"Everything is done. {told}".strip()]

    async def close(self) -> None:
        """End the process of the simulated world."""
        if self.world is not None:
            await self.world.close()


def _reference(label: Mapping[str, Any]) -> str:
    """The expected actions, one a line, and what the user must be told."""
    actions = [f"{item['name']}({json.dumps(item['arguments'])})" for item in label["expected"]]
    return "\n".join([*actions, *(f"tell the user: {text}" for text in label["told"])])


class _WorldTool(Tool):
    """One of tau2's tools."""

    # The process bounds every call, by processor time.
    timeout_s = 120.0

    def __init__(self, entry: Mapping[str, Any], world: HostProcess) -> None:
        self.name = entry["name"]
        self.description = entry["description"]
        self.parameters = entry["parameters"]
        self.world = world

    async def call(self, arguments: Mapping[str, Any], sandbox: Sandbox | None) -> ToolResult:
        """Ask the world; see `Tool.call`."""
        answer = await self.world.ask("call", name=self.name, arguments=dict(arguments))
        return ToolResult(text=answer["text"], status=_STATUS[answer["status"]])
