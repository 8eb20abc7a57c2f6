"""The environment: an unmodified agent program works in the sandbox, and its model is the policy.

Its requests reach the gateway through a port of the sandbox, so the sandbox needs no network. An
environment of ours, or yours, gives the task and grades what the agent leaves.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any

from agentrl.env import (
    Action,
    AgentInstance,
    ModelEndpoint,
    Observation,
    PlayedProgram,
    ProgramEnv,
    StepResult,
)
from agentrl.errors import ConfigError
from agentrl.plugins.imports import resolve
from agentrl.sandbox import Sandbox
from agentrl.types import Explanation, Task
from agentrl_envs.harness.agents import HarnessAgent, find_agent, installed
from agentrl_envs.harness.handover import Handover, handover_of
from agentrl_envs.harness.runner import AgentRun

_ANSWER_BYTES = 2**20


class HarnessTask(ProgramEnv):
    """Run an agent program on the tasks of another environment.

    The agent is ended, and then graded in its own sandbox, so that nothing of it runs meanwhile.

    Args:
        agent: name of an agent (`agentrl harness list`), or import string of a `HarnessAgent`.
        grade: import string of the environment that sets the task and grades.
        grade_args: its arguments.
        bin: folder of the agent's programs inside the sandbox, where it is part of an image; empty
            takes the folder that `agentrl harness install` has made, which the sandbox must show.
        folder: where the agent starts, below the work directory; None leaves it to `grade`.
        answer: file in that folder whose text is graded, instead of the last words of the model,
            which then count for nothing; None leaves it to `grade`.
        instruction: text behind that of the task; None leaves it to `grade`.
        variables: environment variables of the agent, beside its own.
        options: shell text behind the agent's command: options of its own, as its system prompt.
        files: texts by their path below the agent's home folder: settings beside its own. As in
            `options`, `{home}` and the other placeholders of a `HarnessAgent` may stand in them.
    """

    def __init__(
        self,
        agent: str,
        grade: str,
        grade_args: Mapping[str, Any] | None = None,
        bin: str = "",
        folder: str | None = None,
        answer: str | None = None,
        instruction: str | None = None,
        variables: Mapping[str, str] | None = None,
        options: str = "",
        files: Mapping[str, str] | None = None,
    ) -> None:
        known = find_agent(agent)
        self.agent = dataclasses.replace(
            known,
            command=f"{known.command} {options}".strip(),
            files={**known.files, **(files or {})},
        )
        self._bin = bin or _installed(self.agent)
        kind = _environment(grade)
        given = {
            name: value
            for name, value in (
                ("folder", folder),
                ("answer", answer),
                ("instruction", instruction),
            )
            if value is not None
        }
        self._handover: Handover = dataclasses.replace(handover_of(kind), **given)
        self._inner = _made(kind, {**self._handover.args, **(grade_args or {})})
        self._variables = dict(variables or {})
        self.reward_range = self._inner.reward_range

    async def reset(self, task: Task) -> Observation:
        """Begin the environment that grades, and see that the agent can start.

        Raises:
            EnvError: the agent is not in the sandbox.
            SandboxError: the sandbox failed.
        """
        # An agent has tools of its own.
        self._inner.context = dataclasses.replace(self.context, tools=())
        shown = await self._inner.reset(task)
        sandbox = await self.context.open_sandbox()
        self._run = AgentRun(
            agent=self.agent,
            sandbox=sandbox,
            bin=self._bin,
            folder=self._handover.folder,
            prompt=self._prompt(shown),
            variables=self._variables,
        )
        await self._run.prepare()
        return Observation(content=self._run.prompt)

    async def play(self, endpoint: ModelEndpoint) -> PlayedProgram:
        """Run the agent; see `ProgramEnv.play`."""
        return await self._run.play(endpoint)

    async def step(self, action: Action) -> StepResult:
        """Grade what the agent left."""
        run = self._run
        found = await self._answer(run.sandbox, action.text)
        words = dataclasses.replace(
            action, raw_text=action.whole_text, last=True, tool_calls=(), tool_results=()
        )
        if self._handover.answer:  # a file, which has no thought
            text = found or ""
            words = dataclasses.replace(
                words, text=text, thought="", whole_text=text, raw_text=text
            )
        step = await self._inner.step(words)
        logs = {"agent_crashed": float(run.crashed), "agent_stopped": float(run.outcome is None)}
        return dataclasses.replace(
            step,
            done=True,
            environment_feedback="",
            extra_logs={**step.extra_logs, **logs},
            explanation=self._explained(step.explanation, answered=found is not None),
        )

    async def close(self) -> None:
        """Close the environment that grades."""
        await self._inner.close()

    def _prompt(self, shown: Observation) -> str:
        if isinstance(shown.content, str):
            texts = [shown.content]
        else:
            kept = ("user", "system") if self._handover.system else ("user",)
            texts = [message.content for message in shown.content if message.role in kept]
        return "\n\n".join(filter(None, (*map(str.strip, texts), self._handover.instruction)))

    async def _answer(self, sandbox: Sandbox, words: str) -> str | None:
        """The text that is graded; None if the agent left no file where one is expected.

        Words instead of the file would pay for not using the agent's tools.
        """
        handover = self._handover
        if not handover.answer:
            return words
        path = f"{handover.folder}/{handover.answer}".lstrip("/")
        try:
            text = (await sandbox.read_file(path, max_bytes=_ANSWER_BYTES)).decode("utf-8")
        except (OSError, ValueError):
            return None  # none that can be read, which is the agent's doing
        return f"```python\n{text}\n```" if path.endswith(".py") else text

    def _explained(self, explanation: Explanation | None, *, answered: bool) -> Explanation:
        """The reasons of the reward, with what became of the file and what the agent printed."""
        explanation = explanation or Explanation()
        if not answered:
            reason = f"The agent left no text file {self._handover.answer}. {explanation.reason}"
            explanation = dataclasses.replace(explanation, reason=reason.strip())
        return _with_printed(explanation, self._run)


def _installed(agent: HarnessAgent) -> str:
    if agent.installer is None:
        return ""
    folder = installed(agent)
    if folder is None:
        raise ConfigError(
            f"agent {agent.name!r} is not installed; run `agentrl harness install {agent.name}` "
            "and name the folder it prints in sandbox.read_only, or install it in the image of the "
            "sandbox and say with env.args.bin where its programs are"
        )
    return str(folder / agent.bin_folder)


def _environment(target: str) -> type[AgentInstance]:
    found: Any = resolve(target)
    if not (isinstance(found, type) and issubclass(found, AgentInstance)) or issubclass(
        found, ProgramEnv
    ):
        raise ConfigError(
            f"env.args.grade is {target!r}, expected the import string of an environment that sets "
            "tasks and grades them, as agentrl_envs.swe:RepairTask, agentrl_envs.swe:HarborTask or "
            "agentrl_envs.code:CodeTask"
        )
    return found


def _made(kind: type[AgentInstance], args: Mapping[str, Any]) -> AgentInstance:
    try:
        return kind(**args)
    except TypeError as error:
        raise ConfigError(
            f"env.args.grade_args do not fit {kind.__name__}{inspect.signature(kind)}: {error}"
        ) from error


def _with_printed(explanation: Explanation, run: AgentRun) -> Explanation:
    """The reasons of the reward, with the end of what the agent printed."""
    if not run.printed:
        return explanation
    said = f"{run.agent.name} printed:\n{run.printed}"
    output = f"{explanation.grader_output}\n\n{said}" if explanation.grader_output else said
    return dataclasses.replace(explanation, grader_output=output)
