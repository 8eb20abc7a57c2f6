"""The environment: a user with several wishes, one after the other, and functions to fulfil them.

Every wish is a user turn. The model calls functions for as many of its own turns as it wants; a
turn without a call ends the user turn, whatever it says. Then BFCL's own checkers compare the
state of the back-ends and the results of the calls with those of the expected calls, and the user
says the next thing. The model is rewarded once every user turn was right.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from agentrl.env import Action, AgentInstance, Observation, Solution, StepResult
from agentrl.errors import ConfigError, ToolError, choices
from agentrl.tool import Tool
from agentrl.types import (
    CallStatus,
    Explanation,
    Message,
    Task,
    Termination,
    ToolCall,
    ToolStatus,
)
from agentrl_envs.bfcl.functions import BackendTool, documents, owners
from agentrl_envs.bfcl.tasks import expected_calls
from agentrl_envs.host_process import HostProcess

_HOST = f"{Path(__file__).with_name('host.py')}:BfclHost"
_ERRORS = ("empty", "state", "response")


_WORDS = {
    "empty": "it called no function where one was expected",
    "state": "the back-ends are in another state than after the expected calls",
    "response": "the results of the expected calls are missing",
}


class BfclTask(AgentInstance):
    """One multi-turn conversation of BFCL.

    Calls and states are judged as BFCL judges them, with two differences: a call that cannot be
    read is reported to the model and does not end the user turn, and the expected calls run before
    the model's.

    Args:
        reward: `all` gives 1 if every user turn was right, `fraction` the share of user turns
            before the first one that was not. A user turn is no share if it expects no call, as
            BFCL takes it for right whatever happens, nor if no function it expects has to be given
            an argument: a model that calls all such functions would be paid for it.
        max_steps: model turns with calls in one user turn; one more ends the episode.
        system_prompt: said before the first turn; BFCL says nothing.
        cpu_s: processor seconds one call may use.
        memory_mb: address space of the back-ends in MiB.
    """

    reward_range = (0.0, 1.0)

    def __init__(
        self,
        reward: Literal["all", "fraction"] = "all",
        max_steps: int = 20,
        system_prompt: str = "",
        cpu_s: int = 2,
        memory_mb: int = 1024,
    ) -> None:
        if reward not in ("all", "fraction"):
            raise ConfigError(f"BfclTask reward: {choices(reward, ('all', 'fraction'))}")
        if max_steps < 1 or cpu_s < 1 or memory_mb < 256:
            raise ConfigError(
                "BfclTask needs max_steps >= 1, cpu_s >= 1 and memory_mb >= 256, got "
                f"{max_steps}, {cpu_s} and {memory_mb}"
            )
        self.reward = reward
        self.max_steps = max_steps
        self.system_prompt = system_prompt
        self.cpu_s = cpu_s
        self.memory_mb = memory_mb
        self.backends: HostProcess | None = None
        """Process of the episode; None before `reset`."""

    async def reset(self, task: Task) -> Observation:
        """Start the back-ends and return the first message.

        Raises:
            ValueError: the task is not a conversation of BFCL.
        """
        try:
            self._turns = list(task.metadata["turns"])
            classes, config = task.metadata["classes"], task.metadata["config"]
            expected, category = task.label["expected"], task.metadata["category"]
            self._reference = "\n".join(
                f"turn {number}: {', '.join(calls)}" for number, calls in enumerate(expected)
            )
        except (KeyError, TypeError) as error:
            raise ValueError(
                f"task {task.id!r}: BfclTask needs the tasks of "
                f"agentrl_envs.bfcl:multi_turn_tasks; there is no {error} in its label and metadata"
            ) from None
        await self.close()
        self.backends = await HostProcess.start(
            _HOST,
            {
                "functions": owners(classes),
                "classes": classes,
                "config": config,
                "expected": expected,
                "long_context": category == "long_context",
            },
            what="the BFCL back-ends",
            cpu_s=self.cpu_s,
            memory_bytes=self.memory_mb << 20,
        )
        tools = {
            item["name"]: BackendTool(item, self.backends)
            for backend in classes
            for item in documents(backend)
        }
        self._late: dict[str, Tool] = {
            name: tools.pop(name) for turn in self._turns for name in turn["new"]
        }
        self._turn = self._right = self._steps = self._attempted = self._calls = self._failed = 0
        self._error = ""
        asking = {
            item["name"]
            for backend in classes
            for item in documents(backend)
            if item["parameters"].get("required")
        }
        self._shares = [any(text.split("(")[0] in asking for text in calls) for calls in expected]
        self._done = False
        said = (Message(role="user", content=self._turns[0]["text"]),)
        system = (Message(role="system", content=self.system_prompt),) if self.system_prompt else ()
        return Observation(content=(*system, *said), tools=tuple(tools.values()))

    async def step(self, action: Action) -> StepResult:
        """Go on while the model calls functions; judge the user turn when it does not."""
        if self._done or self.backends is None:
            raise RuntimeError("BfclTask.step was called before reset or after done")
        self._calls += len(action.tool_calls)
        self._failed += sum(result.status is not ToolStatus.OK for result in action.tool_results)
        # Named by the model, so it tried; BFCL counts names that do not exist, too.
        self._attempted += sum(call.status is CallStatus.OK for call in action.tool_calls)
        if self.backends.stopped is not None:
            return self._final(self.backends.stopped)
        self._steps += bool(action.tool_calls)
        too_many = self._steps > self.max_steps
        if action.tool_calls and not action.last and not too_many:
            return StepResult()
        try:
            verdict = await self.backends.ask("turn", attempted=self._attempted)
        except ToolError:
            return self._final(self.backends.stopped or Termination.TOOL_TIMEOUT)
        if not verdict["valid"]:
            self._error = self._error or verdict["error"]
        elif not self._error:
            self._right += self._shares[self._turn]
        self._turn += 1
        if self._turn == len(self._turns) or action.last or too_many:
            return self._final(Termination.ENV_DONE)
        self._steps = self._attempted = 0
        turn = self._turns[self._turn]
        return StepResult(
            environment_feedback=turn["text"],
            tools=tuple(self._late[name] for name in turn["new"]),
        )

    def _final(self, termination: Termination) -> StepResult:
        self._done = True
        unfinished = self._turn < len(self._turns)
        solved = not unfinished and not self._error
        shares = sum(self._shares)
        share = self._right / shares if shares else float(solved)
        return StepResult(
            rewards=float(solved) if self.reward == "all" else share,
            done=True,
            scores=float(solved),
            termination=termination,
            extra_logs={
                "solved": float(solved),
                "turns_right": share,
                "calls": float(self._calls),
                "calls_failed": float(self._failed),
                "unfinished": float(unfinished),
                **{f"wrong_{name}": float(self._error == name) for name in _ERRORS},
            },
            explanation=Explanation(
                reference=self._reference,
                reason=_reason(self._error, self._turn, len(self._turns)),
            ),
        )

    def solution(self, task: Task) -> Solution | None:
        """BFCL's expected calls, one a turn; None where a user turn has more than `max_steps`."""
        turns: list[str | ToolCall] = []
        for calls in expected_calls(task):
            if len(calls) > self.max_steps:
                return None
            turns += [ToolCall(id="", name=name, arguments=given, raw="") for name, given in calls]
            turns.append("Done.")
        return turns

    async def close(self) -> None:
        """End the process of the back-ends."""
        if self.backends is not None:
            await self.backends.close()


def _reason(error: str, turn: int, turns: int) -> str:
    """Words for the first user turn that was not right, and for user turns that were not begun."""
    said = [f"The first wrong user turn: {_WORDS.get(error, error)}."] if error else []
    if turn < turns:
        said.append(f"Only {turn} of {turns} user turns were ended.")
    return " ".join(said) or "Every user turn was right."
