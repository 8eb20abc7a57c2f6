"""The environment: the model fixes a defect in a real repository, and named tests decide."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from agentrl.env import Action, AgentInstance, Observation, Solution, StepResult
from agentrl.errors import ConfigError, choices
from agentrl.sandbox import Sandbox
from agentrl.types import Explanation, Message, Task, ToolResult, ToolStatus
from agentrl_envs.swe.gold import patch_solution
from agentrl_envs.swe.grade import REASON_WORDS, Reason, RepairGrader, RepairVerdict
from agentrl_envs.swe.prompt import PromptTemplate, shipped
from agentrl_envs.swe.record import REPO_FOLDER, SweTask
from agentrl_envs.swe.run_tests import TestState
from agentrl_envs.swe.workspace import Workspace

SUBMIT = "submit"
"""The tool whose call ends the episode."""
_RAN = (ToolStatus.OK, ToolStatus.ERROR, ToolStatus.TIMEOUT)
_IDLE = "Nothing was done: no tool was called. Call a tool{}."


class RepairTask(AgentInstance):
    """Fix a repository with the tools of the config, until `submit` or the end of a budget.

    The episode is judged once, at its end, by `RepairGrader`. Offer a shell and an editor in
    `env.tools`, and `agentrl_tools.submit:submit`.

    Args:
        reward: `all` gives 1 if every named test passes; `fraction` gives the share of failing
            tests that were fixed, times the share of passing tests that still pass.
        max_calls: tool calls an episode may make; 0 leaves that to the limits of the loop.
        max_tool_s: seconds its tool calls may take together; 0 sets no bound.
        idle_turns: turns without a tool call that are answered with a reminder; the next one ends
            the episode.
        turn_penalty: shaping; this much less for every turn after the first.
        failed_call_penalty: shaping; this much less for every call that was refused or failed.
        test_wall_s: seconds for one run of the tests; 0 takes ten times what their maker needed, at
            least 60. Stay below `rollout.env_timeout_s` with three times this, or with four times
            for tasks of another data set. A change that reaches it earns nothing, unless the gold
            change needs more than half of it at that time: then the rollout is dropped.
        python: the interpreter inside the sandbox that runs the judge.
        unproven: `pay` also believes a repair of a task whose failing tests give no values, by the
            weaker control alone; `drop` drops its rollouts and names the row. See `env/proven`.
        system_prompt: a Jinja2 template, or the path of one that ends in `.jinja`.
        task_prompt: as `system_prompt`, for the first user message.
    """

    needs_label = True

    def __init__(
        self,
        reward: Literal["all", "fraction"] = "all",
        max_calls: int = 0,
        max_tool_s: float = 0.0,
        idle_turns: int = 2,
        turn_penalty: float = 0.0,
        failed_call_penalty: float = 0.0,
        test_wall_s: float = 0.0,
        python: str = "python3",
        unproven: Literal["pay", "drop"] = "pay",
        system_prompt: str = "",
        task_prompt: str = "",
    ) -> None:
        if reward not in ("all", "fraction"):
            raise ConfigError(f"RepairTask reward: {choices(reward, ('all', 'fraction'))}")
        if unproven not in ("pay", "drop"):
            raise ConfigError(f"RepairTask unproven: {choices(unproven, ('pay', 'drop'))}")
        least = min(max_calls, max_tool_s, idle_turns, test_wall_s)
        if min(least, turn_penalty, failed_call_penalty) < 0:
            raise ConfigError("RepairTask: no argument that is a number may be negative")
        self.reward = reward
        self.max_calls = max_calls
        self.max_tool_s = max_tool_s
        self.idle_turns = idle_turns
        self.turn_penalty = turn_penalty
        self.failed_call_penalty = failed_call_penalty
        self.test_wall_s = test_wall_s
        self.python = python
        self.unproven = unproven
        self._system = PromptTemplate(system_prompt or shipped("system.jinja"), "system_prompt")
        self._task = PromptTemplate(task_prompt or shipped("task.jinja"), "task_prompt")
        if not (turn_penalty or failed_call_penalty):
            self.reward_range = (0.0, 1.0)

    async def reset(self, task: Task) -> Observation:
        """Put the repository into the sandbox and show the problem.

        Raises:
            DataError: the row is not a repair task, or its tree is not there.
            SandboxError: the sandbox failed.
            GraderError: the repository could not be set up as the row says.
        """
        self._begin()
        self._workspace = workspace_of(task)
        sandbox = await self.context.open_sandbox(self._workspace.spec())
        values = await self._values(sandbox)
        return Observation(
            content=(
                Message(role="system", content=self._system.render(values)),
                Message(role="user", content=self._task.render(values)),
            )
        )

    def _begin(self) -> None:
        self._turns = self._calls = self._failed = self._idle = 0
        self._tool_s = 0.0
        self._done = False

    async def step(self, action: Action) -> StepResult:
        """Count, and judge when it is over."""
        if self._done:
            raise RuntimeError("RepairTask.step was called after done; reset first")
        self._turns += 1
        results = action.tool_results
        self._calls += sum(result.status in _RAN for result in results)
        self._failed += sum(result.status is not ToolStatus.OK for result in results)
        self._tool_s += sum(result.duration_s for result in results)
        submitted = any(map(_submits, results))
        self._idle = 0 if results else self._idle + 1
        spent = bool(self.max_calls and self._calls >= self.max_calls) or bool(
            self.max_tool_s and self._tool_s >= self.max_tool_s
        )
        if submitted or action.last or spent or self._idle > self.idle_turns:
            self._done = True
            return await self._judge(await self.context.open_sandbox(), submitted, spent)
        return StepResult(environment_feedback="" if results else self._reminder())

    def solution(self, task: Task) -> Solution | None:
        """The gold change, written and applied with the tool `bash`; None where that is missing."""
        return patch_solution(workspace_of(task).task.patch, self.context.tools)

    async def _judge(self, sandbox: Sandbox, submitted: bool, spent: bool) -> StepResult:
        grader = RepairGrader(
            workspace=self._workspace,
            new_sandbox=self.context.new_sandbox,
            wall_s=self.test_wall_s,
            python=self.python,
            only_proven=self.unproven == "drop",
        )
        return self._final(await grader.grade(sandbox), submitted, spent)

    def _reminder(self) -> str:
        tools = [tool.name for tool in self.context.tools]
        return _IDLE.format(", or submit if you are done" if SUBMIT in tools else "")

    async def _values(self, sandbox: Sandbox) -> Mapping[str, Any]:
        task = self._workspace.task
        variables = task.variables(".", await self._workspace.environment(sandbox))
        command = ["env", *(f"{k}={v}" for k, v in variables.items()), *task.test_command]
        return {
            "problem_statement": task.problem_statement,
            "repo": task.repo,
            "root": REPO_FOLDER,
            "test_command": f"cd {REPO_FOLDER} && {shlex.join(command)}",
            "tools": [tool.name for tool in self.context.tools],
            "max_calls": self.max_calls,
        }

    def _parts(self, earned: float) -> dict[str, float]:
        parts = {"tests": earned}
        if self.turn_penalty:
            parts["turns"] = -self.turn_penalty * (self._turns - 1)
        if self.failed_call_penalty:
            parts["failed_calls"] = -self.failed_call_penalty * self._failed
        return parts

    def _final(self, verdict: RepairVerdict, submitted: bool, spent: bool) -> StepResult:
        earned = verdict.fraction if self.reward == "fraction" else float(verdict.solved)
        parts = self._parts(earned)
        changes = verdict.changes
        changed = 0 if changes is None else len(changes.written) + len(changes.deleted)
        return StepResult(
            rewards=sum(parts.values()),
            done=True,
            scores=float(verdict.solved),
            reward_parts=parts,
            extra_logs={
                "solved": float(verdict.solved),
                "fixed": verdict.fixed / verdict.to_fix,
                "kept": verdict.kept / verdict.to_keep if verdict.to_keep else 1.0,
                "calls": float(self._calls),
                "changed_files": float(changed),
                "ignored_files": float(0 if changes is None else len(changes.ignored)),
                "submitted": float(submitted),
                "budget_spent": float(spent),
                "controlled": float(verdict.controlled),
                "proven": float(verdict.proven),
                "grading_broken": float(verdict.reason is Reason.RUINED),
                "grading_repeated": float(verdict.repeated),
                "forged": float(verdict.reason is Reason.FORGED),
                "unearned": float(verdict.unearned),
                "unchanged": float(verdict.reason is Reason.NOTHING),
                "tests_timed_out": float(verdict.run is not None and verdict.run.timed_out),
            },
            data={"patch": changes.patch} if changes is not None and changes.patch else {},
            explanation=_explanation(verdict, self._workspace.task),
        )


def _explanation(verdict: RepairVerdict, task: SweTask) -> Explanation:
    run = verdict.run
    lines = [
        f"{state.name.lower()} {kind} {name}"
        for kind, names in (
            ("fail-to-pass", task.FAIL_TO_PASS),
            ("pass-to-pass", task.PASS_TO_PASS),
        )
        for name in names
        if run is not None
        and (state := run.states.get(name, TestState.MISSING))
        # Of those that are to stay as they are only the others are worth reading.
        and (kind == "fail-to-pass" or state is not TestState.PASSED)
    ]
    limit = ", the tests reached their time limit" if run is not None and run.timed_out else ""
    return Explanation(
        reference=task.patch,
        tests="\n".join(lines),
        grader_output="" if run is None else run.tail,
        reason=f"{REASON_WORDS[verdict.reason]}{limit}: {verdict.fixed} of {verdict.to_fix} "
        f"failing tests pass now, {verdict.kept} of {verdict.to_keep} passing tests still do, "
        f"{verdict.unearned} passes do not count.",
    )


def workspace_of(task: Task) -> Workspace:
    """The source of a row's repository.

    Raises:
        DataError: the label is not a repair task; names the field.
    """
    label = task.label if isinstance(task.label, Mapping) else {}
    row = {**label, **({"instance_id": task.id} if "instance_id" not in label else {})}
    record = SweTask.from_row(row, f"the label of task {task.id!r}")
    workspace: Mapping[str, Any] = label.get("workspace") or {}
    folder = workspace.get("folder")
    return Workspace(
        task=record,
        folder=Path(folder) if folder else None,
        **{
            field.name: workspace[field.name]
            for field in dataclasses.fields(Workspace)
            if field.name in workspace and field.name not in ("task", "folder")
        },
    )


def _submits(result: ToolResult) -> bool:
    return result.name == SUBMIT and result.status is ToolStatus.OK
