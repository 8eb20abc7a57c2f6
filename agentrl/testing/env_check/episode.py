"""One episode under examination: calls are guarded, answers checked, all of it written down."""

from __future__ import annotations

import asyncio
import copy
import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from agentrl.env import Action, AgentInstance, EnvContext, Observation
from agentrl.errors import EnvError, GraderError, SandboxError, ToolError
from agentrl.plugins.user_code import hangs_in
from agentrl.rollout.coerce import (
    as_observation,
    as_reward_range,
    as_step_result,
    sampling_overrides,
)
from agentrl.sandbox import SandboxBackend, SandboxLimits
from agentrl.testing.env_check.findings import broken
from agentrl.testing.env_check.sandboxes import EpisodeSandboxes
from agentrl.testing.env_check.script import EpisodeScript, Played, Shown, Turn
from agentrl.testing.env_check.values import (
    check_observation,
    check_result,
    finite_reward,
    history_of,
    is_done,
    messages_of,
    result_fields,
    shown,
    text_of,
)
from agentrl.testing.env_check.watch import Blocked, BlockingWatch, NoCoroutine
from agentrl.tool import Tool, ToolContext
from agentrl.types import Message, Task, ToolResult, ToolStatus
from agentrl.types.finding import Finding

_UNCOMPARED = ("extra_logs", "explanation", "reward_parts")
"""What a step gives to readers alone: it may hold times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckLimits:
    """Limits of the check in seconds, turns and tasks."""

    step_s: float = 10.0
    """Wall-clock seconds of one `reset`, `step` or `close`."""
    block_s: float = 1.0
    """Wall-clock seconds a call may hold the event loop without awaiting."""
    max_steps: int = 32
    """Steps after which an episode must be done; the last has `Action.last` set."""
    repeat_s: float = 1.0
    """Wall-clock seconds that the same episodes are repeated, after the first time."""
    tasks: int = 3
    """Tasks tried, from the front of the list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Settings that every episode of a check shares."""

    make_env: Callable[[], AgentInstance]
    """Makes a fresh instance, as for each rollout."""
    limits: CheckLimits
    """Limits of the check in seconds, turns and tasks."""
    watch: BlockingWatch
    """Interrupts what blocks the event loop."""
    add: Callable[[Finding], None]
    """Takes every finding."""
    tools: Sequence[Tool] = ()
    """Offered to the environment in its context."""
    backend: SandboxBackend | None = None
    """Makes sandboxes."""
    sandbox_limits: SandboxLimits = field(default_factory=SandboxLimits)
    """Limits of each sandbox."""
    seed: int = 0
    """`EnvContext.seed`."""
    tried: TriedCounts = field(default_factory=lambda: TriedCounts())
    """Counts what is called."""
    ids: set[str] = field(default_factory=set[str])
    """Ids of the rollouts that go on now: no two at once have the same, as in a run."""

    def fresh(self, task: Task) -> Task:
        """A copy of a task for one episode, so that one that changes its own changes no other."""
        try:
            return copy.deepcopy(task)
        except Exception:  # a label may be anything, also what cannot be copied
            return task


@dataclass(slots=True)
class TriedCounts:
    """Counts of everything a check has tried on an environment."""

    tasks: int = 0
    """Tasks that episodes began with."""
    resets: int = 0
    """Calls of `reset`."""
    steps: int = 0
    """Calls of `step`."""
    calls: int = 0
    """Calls of tools."""
    malformed: dict[str, int] = field(default_factory=dict[str, int])
    """Turns no model should write, by kind: empty, huge, malformed."""
    processes: int = 0
    """Other processes that episodes were played in."""
    sandbox: bool = False
    """Whether a sandbox was opened."""

    def text(self, seed: int) -> str:
        """One line for a report."""
        kinds = ", ".join(f"{count} {kind}" for kind, count in self.malformed.items())
        return (
            f"{self.tasks} tasks, {self.resets} resets, {self.steps} steps, "
            f"{sum(self.malformed.values())} turns no model should write"
            f"{f' ({kinds})' if kinds else ''}, {self.calls} tool calls, "
            f"{self.processes} other processes, seed {seed}"
        )


class Failed(Exception):
    """A call into the environment failed and the finding is recorded."""


class NoSuchTool(Exception):
    """A script calls a tool that the environment does not offer."""


class Episode:
    """One instance on its way through an episode."""

    def __init__(self, setting: Setting, env: AgentInstance, task: Task) -> None:
        """Wrap an instance that has its context."""
        self.env = env
        self.lines: list[str] = []
        """What it showed, as comparable text: the observation, then each step."""
        self.shown: list[Shown] = []
        """Texts that the model read, in order."""
        self.steps = 0
        self.done = False
        self.score: float | None = None
        """The last one that it gave."""
        self.total = 0.0
        """Sum of its rewards."""
        self.closed = False
        self._setting = setting
        self._task, self._given = setting.fresh(task), task
        self._comparable = _same(self._task, task)
        self._tools: dict[str, Tool] = {}
        context = env.context
        self._rollout = ToolContext(
            task=self._task, seed=context.seed, rollout_id=context.rollout_id, state=context.state
        )
        self._history = ""
        self._messages: tuple[Message, ...] = ()

    @classmethod
    async def begin(
        cls, setting: Setting, stack: AsyncExitStack, task: Task, *, code: str = "E101"
    ) -> Episode:
        """Make an instance and reset it; it is closed with its sandbox when the stack is left."""
        try:
            tools = tuple(tool.fresh() for tool in setting.tools)
            env = setting.make_env()
        except Exception as error:  # a user's constructor may raise anything: recorded
            setting.add(broken("E101", f"the constructor {raised(error)}"))
            raise Failed from None
        ids = (f"check-{task.id}-{number}" for number in count())
        own = next(name for name in ids if name not in setting.ids)
        setting.ids.add(own)
        context = EnvContext(seed=setting.seed, rollout_id=own, tools=tools)
        sandboxes = None
        if setting.backend:
            sandboxes = EpisodeSandboxes(setting.backend, setting.sandbox_limits, setting.add)
            context = replace(context, open_sandbox=sandboxes.open, new_sandbox=sandboxes.fresh)
        env.context = context
        episode = cls(setting, env, task)

        async def finish() -> None:
            try:
                if not episode.closed:
                    with suppress(Failed):  # recorded; the rest is closed all the same
                        await episode.close("after the episode")
                for tool in tools:
                    with suppress(Failed):
                        await call(setting, "E402", f"close of the tool {tool.name}", tool.close)
            finally:
                setting.ids.discard(own)
                episode._rollout.close()
                if sandboxes is not None:
                    setting.tried.sandbox |= sandboxes.used
                    await sandboxes.close()

        stack.push_async_callback(finish)
        await episode.reset(code=code)
        return episode

    @property
    def tools(self) -> Sequence[Tool]:
        """Tools that the model may call now."""
        return tuple(self._tools.values())

    def tool(self, name: str) -> Tool:
        """The tool of this rollout that has a name.

        Raises:
            NoSuchTool: there is none.
        """
        if name not in self._tools:
            raise NoSuchTool(name)
        return self._tools[name]

    async def reset(self, *, code: str = "E101") -> None:
        """Reset it, for the first time or again."""
        self.lines, self.shown, self.steps = [], [], 0
        self.done, self.total, self.score = False, 0.0, None
        self._setting.tried.resets += 1
        value = await call(self._setting, code, "reset", lambda: self.env.reset(self._task))
        for finding in check_observation(value):
            self._setting.add(finding)
            raise Failed
        self._refused("E103", as_observation, value)
        self._history = text_of(value)
        self._messages = messages_of(value)
        offered = value.tools if isinstance(value, Observation) else ()
        self._tools = {}
        self._offer((*self.env.context.tools, *offered))
        self.shown.append(("the first observation", self._history))
        self.lines.append(f"observation {value!r}")
        self._check_task("reset")

    async def step(self, action: Action, *, code: str = "E201") -> None:
        """Take one step and check what it gives."""
        what = f"step({shown(action.text)})"
        self._setting.tried.steps += 1
        value = await call(self._setting, code, what, self.stepping(action))
        wrong = list(check_result(value, wants_history=self.env.wants_history))
        for finding in wrong:
            self._setting.add(finding)
        fields = result_fields(value)
        if fields is None:
            raise Failed
        if not wrong:
            result = self._refused("E308", as_step_result, value)
            self._refused(
                "E308", sampling_overrides, result.sampling_params, self.env.context.sampling
            )
            self._check_data(result.data)
            self._offer(result.tools)
        self.steps += 1
        self.done = is_done(value)
        self.total += finite_reward(value) or 0.0
        if not wrong and fields["scores"] is not None:
            self.score = float(fields["scores"])
        feedback = text_of(fields["environment_feedback"])
        self._history += action.text + feedback
        said = (*self._messages, _said(action), *messages_of(fields["environment_feedback"]))
        self._messages = history_of(value) or said
        if not self.done:
            self.shown.append(("feedback", feedback))
        # As text, because a NaN differs from itself.
        same = {name: item for name, item in fields.items() if name not in _UNCOMPARED}
        self.lines.append(f"step {same!r}")
        self._check_task("step")
        if self.done and not wrong:
            self._check_range()

    async def play(self, script: EpisodeScript) -> Played:
        """Send the turns of a script, the last of them again and again until done.

        Raises:
            Failed: something went wrong, and is recorded.
            NoSuchTool: a turn calls what is not offered.
        """
        began = time.monotonic()
        limit = self._setting.limits.max_steps
        for turn in range(limit):
            said = script.turns[min(turn, len(script.turns) - 1)]
            action = await self.act(said)
            code = "E201" if isinstance(said, str) else "E601"
            await self.step(replace(action, turn=turn, last=turn == limit - 1), code=code)
            if self.done:
                break
        else:
            message = f"not done after {limit} steps, the last with action.last=True"
            self._setting.add(broken("E207", message))
        return Played(
            script=script,
            lines=tuple(self.lines),
            total=self.total,
            score=self.score,
            shown=tuple(self.shown),
            seconds=time.monotonic() - began,
        )

    @classmethod
    async def played(cls, setting: Setting, task: Task, script: EpisodeScript) -> Played | None:
        """Play a script on a fresh instance to its end; None where that failed."""
        async with AsyncExitStack() as stack:
            with suppress(Failed, NoSuchTool):
                return await (await cls.begin(setting, stack, task)).play(script)
        return None

    async def act(self, said: Turn) -> Action:
        """The action of one turn; a call has been made in it."""
        if isinstance(said, str):
            return Action(text=said, raw_text=said)
        result = await self.call_tool(self.tool(said.name), said.arguments)
        result = replace(result, name=said.name, call_id=said.id)
        text = json.dumps({"name": said.name, "arguments": dict(said.arguments)}, default=str)
        return Action(text=text, raw_text=text, tool_calls=(said,), tool_results=(result,))

    async def call_tool(
        self, tool: Tool, arguments: Mapping[str, Any], *, code: str = "E601"
    ) -> ToolResult:
        """Call a tool as the loop does; a `ToolError` becomes its text."""
        self._setting.tried.calls += 1

        async def run() -> Any:
            sandbox = await self.env.context.open_sandbox() if tool.needs_sandbox else None
            await tool.make_ready()
            try:
                with self._rollout.entered():
                    return await tool.call(tool.validate(arguments), sandbox)
            except ToolError as error:
                return ToolResult(text=str(error), status=ToolStatus.ERROR)

        what = f"the call {tool.name}({shown(dict(arguments))})"
        result = await call(self._setting, code, what, run)
        if not isinstance(result, ToolResult) or not isinstance(result.text, str):
            self._setting.add(broken("E603", f"{what} returned {shown(result)}"))
            raise Failed
        self.shown.append((f"what the tool {tool.name} returns", result.text))
        self.lines.append(f"tool {tool.name} {result.text!r}")
        return result

    async def step_after_done(self, text: str) -> None:
        """Raising or staying done is right, in whatever way; only going on is wrong."""
        setting = self._setting
        try:
            async with asyncio.timeout(setting.limits.step_s):
                action = Action(text=text, raw_text=text, turn=self.steps)
                limit_s = setting.limits.step_s
                value = await setting.watch.guard(self.stepping(action), limit_s=limit_s)
        except (Exception, Blocked):
            return
        if result_fields(value) is not None and not is_done(value):
            setting.add(broken("E401", "a step after done returned done=False"))

    async def close(self, when: str, *, code: str = "E402") -> None:
        """Close it; `when` goes into the message."""
        self.closed = True
        await close(self._setting, self.env, when, code=code)

    def stepping(self, action: Action) -> Callable[[], Any]:
        """A call of its `step`, with what it asks for filled in."""
        if self.env.wants_observation_text:
            raw_text = action.raw_text or action.text
            action = replace(action, raw_text=raw_text, observation_text=self._history)
        if self.env.wants_history:
            action = replace(action, history=(*self._messages, _said(action)))
        return lambda: self.env.step(action)

    def _offer(self, tools: Sequence[Tool]) -> None:
        for tool in tools:
            self._tools.setdefault(tool.name, tool)
            self.shown.append((f"the description of the tool {tool.name}", repr(tool.schema())))

    def _refused(self, code: str, read: Callable[..., Any], *values: Any) -> Any:
        """What the loop makes of a value; what it refuses is a finding."""
        try:
            return read(*values)
        except (EnvError, GraderError) as error:
            self._setting.add(broken(code, str(error)))
            raise Failed from None

    def _check_data(self, data: Mapping[str, Any]) -> None:
        try:
            json.dumps(data)
        except (TypeError, ValueError) as error:
            self._setting.add(broken("E311", f"step returned data that is no JSON: {error}"))

    def _check_task(self, what: str) -> None:
        if _same(self._task, self._given) or not self._comparable:
            return
        changed = [
            name
            for name in ("label", "metadata", "prompt")
            if repr(getattr(self._task, name)) != repr(getattr(self._given, name))
        ]
        now = ", ".join(f"{name} is {shown(getattr(self._task, name))}" for name in changed)
        self._setting.add(broken("E108", f"{what} changed task {self._given.id!r}: {now}"))

    def _check_range(self) -> None:
        if self.env.reward_range is None:
            return
        try:
            low, high = as_reward_range(self.env.reward_range)
        except EnvError as error:
            self._setting.add(broken("E303", str(error)))
            return
        if not low - 1e-9 <= self.total <= high + 1e-9:
            message = f"an episode's rewards sum to {self.total}, outside [{low}, {high}]"
            self._setting.add(broken("E303", message))


async def close(setting: Setting, env: AgentInstance, when: str, *, code: str = "E402") -> None:
    """Close an instance; `when` goes into the message."""
    await call(setting, code, f"close ({when})", lambda: env.close())


async def call(setting: Setting, code: str, what: str, start: Callable[[], Any]) -> Any:
    """Call into the environment; what goes wrong becomes a finding of this code.

    Raises:
        Failed: something went wrong.
        SandboxError: the sandbox failed, which says nothing about the environment.
    """
    huge = code == "E203"
    limits = setting.limits
    try:
        async with asyncio.timeout(limits.step_s) as scope:
            return await setting.watch.guard(start, limit_s=limits.step_s)
    except SandboxError:
        raise
    except Blocked:
        message = f"{what} held the event loop for more than {limits.block_s:g} s"
        setting.add(broken("E208" if huge else "E206", message))
    except NoCoroutine as error:
        setting.add(broken("E209", f"{what} {error}"))
    except Exception as error:  # an environment may raise anything: recorded as a finding
        if isinstance(error, TimeoutError) and scope.expired():
            message = f"{what} took more than {limits.step_s:g} s{hangs_in(error)}"
            setting.add(broken("E208" if huge else "E205", message))
        else:
            setting.add(broken(code, f"{what} {raised(error)}"))
    raise Failed


def _same(task: Task, other: Task) -> bool:
    """True for equal tasks; a label whose values do not compare counts by its text."""
    try:
        return bool(task == other) or repr(task) == repr(other)
    except Exception:  # a label may be anything, as an array that has no truth
        return repr(task) == repr(other)


def _said(action: Action) -> Message:
    return Message(role="assistant", content=action.text, tool_calls=action.tool_calls)


def raised(error: BaseException) -> str:
    """An error for a message, short and in ASCII."""
    text = str(error).encode("ascii", "backslashreplace").decode()
    return f"raised {type(error).__name__}: {text[:200]}"
