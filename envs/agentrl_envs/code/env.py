"""The environment: the model writes a function, sees what went wrong, and tries again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from agentrl.env import Action, AgentInstance, Observation, StepResult
from agentrl.errors import ConfigError, SandboxError, choices
from agentrl.types import Explanation, Message, Task, Termination
from agentrl_envs.clean_sandbox import CleanSandbox
from agentrl_envs.code.extract import defines, extract_code, parses
from agentrl_envs.code.runner import Problem, Report, cases_of, examples_of, run_solution
from agentrl_envs.fault import Graded, graded


class CodeTask(AgentInstance):
    """Write a Python function that passes hidden tests, in a few turns.

    Each turn the code of the reply runs against the public and the hidden cases, in a sandbox that
    no tool uses and that is wiped between two turns. If a public case fails, the model reads which
    and tries again. When the public cases pass, or on the last turn, the hidden cases decide the
    reward. Code that keeps its own test from ending earns nothing; see `agentrl_envs.fault`.

    A task carries its cases in `label` as `{"entry_point", "public", "hidden"}` (lists of
    `{"args": [...], "expected": ...}`), or has the HumanEval columns `entry_point`, `test` and
    `prompt` in its label or metadata.

    Args:
        max_turns: tries.
        compact_after_turns: after every so many tries the model goes on from the task, its last
            code and what is wrong with it, without the tries before; 0 keeps them all. A context
            that is full is made shorter in this way, too.
        reward: `all` gives 1 if every case passes, `fraction` the share of hidden cases.
        public_weight: shaping; this times the share of public cases, when not solved.
        parse_weight: shaping; this much for code that runs, when not solved.
        turn_penalty: shaping; this much less for every try after the first.
        wall_s: seconds of a processor the tested code may take in one try, and four times as many
            on the clock, as the machine may be busy.
        python: the interpreter inside the sandbox.
    """

    def __init__(
        self,
        max_turns: int = 3,
        compact_after_turns: int = 0,
        reward: Literal["all", "fraction"] = "all",
        public_weight: float = 0.0,
        parse_weight: float = 0.0,
        turn_penalty: float = 0.0,
        wall_s: float = 2.0,
        python: str = "python3",
    ) -> None:
        if reward not in ("all", "fraction"):
            raise ConfigError(f"CodeTask reward: {choices(reward, ('all', 'fraction'))}")
        if max_turns < 1 or wall_s <= 0:
            raise ConfigError(
                f"CodeTask needs max_turns >= 1 and wall_s > 0, got {max_turns} and {wall_s}"
            )
        if compact_after_turns < 0:
            raise ConfigError(
                f"CodeTask compact_after_turns is {compact_after_turns}, expected 0 (never) or "
                "the number of tries after which the conversation is made shorter"
            )
        self.max_turns = max_turns
        self.compact_after_turns = compact_after_turns
        self.wants_history = compact_after_turns > 0
        self.reward = reward
        self.public_weight = public_weight
        self.parse_weight = parse_weight
        self.turn_penalty = turn_penalty
        self.wall_s = wall_s
        self.python = python
        self.reward_range = (
            min(0.0, -turn_penalty * (max_turns - 1)),
            max(1.0, 1.0 + public_weight + parse_weight),
        )

    async def reset(self, task: Task) -> Observation:
        """Show the model its prompt.

        Raises:
            ValueError: the task has neither cases nor HumanEval columns.
        """
        self._problem = problem_of(task)
        self._reference = reference_of(task)
        self._turns = 0
        self._done = False
        self._tested = CleanSandbox(self.context.new_sandbox)
        # The code of a check is the task's, so what it leaves behind is kept from nothing but the
        # next check; it shares nothing with the tested code.
        self._checks = CleanSandbox(self.context.new_sandbox)
        self._logs: dict[str, float] = {}
        prompt = task.prompt
        said = (Message(role="user", content=prompt),) if isinstance(prompt, str) else prompt
        self._prompt = tuple(said)
        return Observation(content=task.prompt)

    async def step(self, action: Action) -> StepResult:
        """Test the code of this turn."""
        if self._done:
            raise RuntimeError("CodeTask.step was called after done; reset first")
        self._turns += 1
        compact = self._compacts(action)
        last = (action.last and not compact) or self._turns >= self.max_turns
        name = self._problem.entry_point
        code = self._code(action)
        report = _failed(self._problem, "No Python code was found.")
        if code is not None:
            found = await self._grade(code)
            self._logs = found.logs
            report = found.verdict or _failed(self._problem, "The code could not be tested.")
        # A public example may itself be wrong (HumanEval/47); the hidden cases have the last word.
        if report.public_ok or report.solved or last:
            self._done = True
            return self._final(report)
        hint = "" if code is not None else " Reply with one ```python block."
        again = f"{report.problem}{hint} Write the whole function {name} again."
        if compact:
            return StepResult(history=self._shorter(code, again))
        return StepResult(environment_feedback=again)

    def _compacts(self, action: Action) -> bool:
        if not self.compact_after_turns:
            return False
        if action.last or action.context_left < 0:
            return action.context_left < 0
        return self._turns % self.compact_after_turns == 0

    def _shorter(self, code: str | None, again: str) -> tuple[Message, ...]:
        """The task as it was given, the code of this turn and what is wrong with it."""
        tried = f"Your last code:\n```python\n{code}\n```\n" if code else ""
        # One message of the user: some templates take no two of them in a row.
        *before, asked = self._prompt
        return (*before, replace(asked, content=f"{asked.content}\n\n{tried}{again}"))

    def solution(self, task: Task) -> str | None:
        """The reference of `make_tasks`, or HumanEval's own; None for tasks that bring neither."""
        reference = reference_of(task)
        return f"```python\n{reference}```" if reference else None

    async def _grade(self, code: str) -> Graded[Report]:
        # Before anything of the model runs: no failure until then can be its doing.
        await self._tested.ready()
        if self._problem.check:
            await self._checks.ready()
        stub = f"def {self._problem.entry_point}(*args): return None"
        return await graded(lambda: self._run(code), control=lambda: self._run(stub))

    async def _run(self, code: str) -> Report:
        try:
            # In this order: what still runs of the turn before is ended first.
            sandbox = await self._tested.lend()
            judge = await self._checks.lend() if self._problem.check else None
            return await run_solution(
                sandbox,
                code,
                self._problem,
                wall_s=self.wall_s,
                python=self.python,
                check_sandbox=judge,
            )
        except SandboxError:
            await self._tested.discard()
            await self._checks.discard()
            raise

    def _code(self, action: Action) -> str | None:
        problem = self._problem
        code = extract_code(action.text, action.tool_calls, problem.entry_point)
        if problem.check and (code is None or not defines(code, problem.entry_point)):
            # A completion: the body that follows the prompt, with or without a fence.
            body = f"{problem.setup}{code or action.text}"
            return body if len(action.text) < 50_000 and parses(body) else code
        return code

    def _final(self, report: Report) -> StepResult:
        share = report.hidden_passed / report.hidden_total
        parts = {"tests": share if self.reward == "fraction" else float(report.solved)}
        if not report.solved and self.public_weight and report.public_total:
            parts["public"] = self.public_weight * report.public_passed / report.public_total
        if not report.solved and self.parse_weight:
            parts["parse"] = self.parse_weight * report.loaded
        if self.turn_penalty:
            parts["turns"] = -self.turn_penalty * (self._turns - 1)
        return StepResult(
            rewards=sum(parts.values()),
            done=True,
            scores=float(report.solved),
            reward_parts=parts,
            termination=Termination.TOOL_TIMEOUT if report.timed_out else Termination.ENV_DONE,
            extra_logs={
                "solved": float(report.solved),
                "public_passed": report.public_passed / max(1, report.public_total),
                "hidden_passed": share,
                "parsed": float(report.loaded),
                "timed_out": float(report.timed_out),
                "tries": float(self._turns),
                **self._logs,
            },
            explanation=Explanation(
                reference=self._reference,
                tests=report.tests or self._problem.check,
                grader_output=report.said,
                reason=f"{report.problem} {_passed(report)}".strip(),
            ),
        )


def reference_of(task: Task) -> str:
    """Source that solves a task, of `make_tasks` or HumanEval's own; empty where it brings none."""
    fields = {**task.metadata, **(task.label if isinstance(task.label, Mapping) else {})}
    if fields.get("reference"):
        return str(fields["reference"])
    if fields.get("canonical_solution") and fields.get("prompt"):
        return f"{fields['prompt']}{fields['canonical_solution']}\n"
    return ""


def problem_of(task: Task) -> Problem:
    """The cases that a task's solution is tested against.

    Raises:
        ValueError: the task has neither cases nor HumanEval columns.
    """
    fields: dict[str, Any] = dict(task.metadata)
    if isinstance(task.label, Mapping):
        fields.update(task.label)
    elif isinstance(task.label, str):
        fields.setdefault("test", task.label)
    if fields.get("entry_point") and fields.get("hidden"):
        return Problem(
            entry_point=fields["entry_point"],
            public=cases_of(fields.get("public") or ()),
            hidden=cases_of(fields["hidden"]),
        )
    if fields.get("entry_point") and fields.get("test"):
        prompt = fields.get("prompt") or (task.prompt if isinstance(task.prompt, str) else "")
        setup = prompt if parses(prompt) else ""
        return Problem(
            entry_point=fields["entry_point"],
            public=examples_of(prompt, fields["entry_point"]),
            setup=setup,
            check=fields["test"],
        )
    raise ValueError(
        f"task {task.id!r}: CodeTask needs 'entry_point' with 'hidden' cases or a 'test' in its "
        f"label or metadata, got {sorted(fields) or 'nothing'}"
    )


def _passed(report: Report) -> str:
    return (
        f"{report.public_passed} of {report.public_total} public and {report.hidden_passed} of "
        f"{report.hidden_total} hidden tests passed."
    )


def _failed(problem: Problem, why: str) -> Report:
    return Report(
        loaded=False,
        public_passed=0,
        public_total=len(problem.public),
        hidden_passed=0,
        hidden_total=max(1, len(problem.hidden) + bool(problem.check)),
        problem=why,
    )
