"""One episode under examination: calls are guarded, answers checked, all of it written down."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from agentrl.env import Action, AgentInstance, EnvContext, Observation
from agentrl.errors import EnvError, SandboxError
from agentrl.plugins.user_code import hangs_in
from agentrl.rollout.coerce import as_reward_range
from agentrl.sandbox import Sandbox, SandboxBackend, SandboxLimits, SandboxSpec
from agentrl.sandbox.wrapper import Operation, SandboxWrapper
from agentrl.testing.env_check.findings import broken
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
from agentrl.tool import Tool
from agentrl.types import Message, Task
from agentrl.types.finding import Finding

_COMMANDS_END_S = 60.0
"""Time that commands get to end once their sandbox is closed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckLimits:
    """Limits of the check in seconds, turns and tasks."""

    step_s: float = 10.0
    """Wall-clock seconds of one `reset`, `step` or `close`."""
    block_s: float = 1.0
    """Wall-clock seconds a call may hold the event loop without awaiting."""
    max_steps: int = 32
    """Steps after which an episode must be done; the last has `Action.last` set."""
    tasks: int = 3
    """Tasks tried, from the front of the list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Settings that every episode of a check shares."""

    make_env: Callable[[], AgentInstance]
    """Makes a fresh instance, as for each rollout."""
    limits: CheckLimits
    """Limits of the check in seconds, turns and tasks."""
    tools: Sequence[Tool]
    """Offered to the environment in its context."""
    backend: SandboxBackend | None
    """Makes sandboxes."""
    sandbox_limits: SandboxLimits
    """Limits of each sandbox."""
    seed: int
    """`EnvContext.seed`."""
    watch: BlockingWatch
    """Interrupts what blocks the event loop."""
    add: Callable[[Finding], None]
    """Takes every finding."""
    tried: TriedCounts
    """Counts what is called."""


@dataclass(slots=True)
class TriedCounts:
    """Counts of everything a check has tried on an environment."""

    tasks: int = 0
    """Tasks that episodes began with."""
    resets: int = 0
    """Calls of `reset`."""
    steps: int = 0
    """Calls of `step`."""
    malformed: dict[str, int] = field(default_factory=dict[str, int])
    """Turns no model should write, by kind: empty, huge, malformed."""

    def text(self, seed: int) -> str:
        """One line for a report."""
        kinds = ", ".join(f"{count} {kind}" for kind, count in self.malformed.items())
        return (
            f"{self.tasks} tasks, {self.resets} resets, {self.steps} steps, "
            f"{sum(self.malformed.values())} turns no model should write"
            f"{f' ({kinds})' if kinds else ''}, seed {seed}"
        )


class Failed(Exception):
    """A call into the environment failed and the finding is recorded."""


class Episode:
    """One instance on its way through an episode."""

    def __init__(self, setting: Setting, env: AgentInstance, task: Task) -> None:
        self.env = env
        self.lines: list[str] = []
        """What it showed, as comparable text: the observation, then each step."""
        self.steps = 0
        self.done = False
        self.score: float | None = None
        """The last one that it gave."""
        self.tools: tuple[Tool, ...] = ()
        """Tools that its observation offers."""
        self.closed = False
        self._setting = setting
        self._task = task
        self._total = 0.0
        self._history = ""
        self._messages: tuple[Message, ...] = ()

    @classmethod
    async def begin(
        cls, setting: Setting, stack: AsyncExitStack, task: Task, *, code: str = "E101"
    ) -> Episode:
        """Make an instance and reset it; it is closed with its sandbox when the stack is left."""
        try:
            env = setting.make_env()
        except Exception as error:  # a user's constructor may raise anything: recorded
            setting.add(broken("E101", f"the constructor {_raised(error)}"))
            raise Failed from None
        shared = _SharedSandbox(setting)
        context = EnvContext(
            seed=setting.seed, rollout_id=f"check-{task.id}", tools=tuple(setting.tools)
        )
        if setting.backend:
            context = replace(context, open_sandbox=shared.open, new_sandbox=shared.fresh)
        env.context = context

        episode = cls(setting, env, task)

        async def finish() -> None:
            try:
                if not episode.closed:
                    await episode.close("after the episode")
            except Failed:
                pass  # recorded; the sandbox is closed all the same
            finally:
                await shared.close()

        stack.push_async_callback(finish)
        await episode.reset(code=code)
        return episode

    async def reset(self, *, code: str = "E101") -> None:
        """Reset it, for the first time or again."""
        self.lines, self.steps, self.done, self._total, self.score = [], 0, False, 0.0, None
        self._setting.tried.resets += 1
        value = await call(self._setting, code, "reset", lambda: self.env.reset(self._task))
        for finding in check_observation(value):
            self._setting.add(finding)
            raise Failed
        self._history = text_of(value)
        self._messages = messages_of(value)
        self.tools = value.tools if isinstance(value, Observation) else ()
        self.lines.append(f"observation {value!r}")

    async def step(self, action: Action, *, code: str = "E201") -> None:
        """Take one step and check what it gives."""
        what = f"step({shown(action.text)})"
        self._setting.tried.steps += 1
        value = await call(self._setting, code, what, self._stepping(action))
        wrong = list(check_result(value, wants_history=self.env.wants_history))
        for finding in wrong:
            self._setting.add(finding)
        fields = result_fields(value)
        if fields is None:
            raise Failed
        self.steps += 1
        self.done = is_done(value)
        self._total += finite_reward(value) or 0.0
        if not wrong and fields["scores"] is not None:
            self.score = float(fields["scores"])
        self._history += action.text + text_of(fields["environment_feedback"])
        feedback = messages_of(fields["environment_feedback"])
        said = (*self._messages, _said(action), *feedback)
        self._messages = history_of(value) or said
        # As text, because a NaN differs from itself.
        self.lines.append(f"step {fields!r}")
        if self.done and not wrong:
            self._check_range()

    async def play(self, text: str) -> None:
        """Send the same turn again and again until done."""
        limit = self._setting.limits.max_steps
        for turn in range(limit):
            action = Action(text=text, raw_text=text, turn=turn, last=turn == limit - 1)
            await self.step(action)
            if self.done:
                return
        message = f"not done after {limit} steps, the last with action.last=True"
        self._setting.add(broken("E207", message))

    async def step_after_done(self, text: str) -> None:
        """Raising or staying done is right, in whatever way; only going on is wrong."""
        setting = self._setting
        try:
            async with asyncio.timeout(setting.limits.step_s):
                action = Action(text=text, raw_text=text, turn=self.steps)
                limit_s = setting.limits.step_s
                value = await setting.watch.guard(self._stepping(action), limit_s=limit_s)
        except (Exception, Blocked):
            return
        if result_fields(value) is not None and not is_done(value):
            setting.add(broken("E401", "a step after done returned done=False"))

    async def close(self, when: str, *, code: str = "E402") -> None:
        """Close it; `when` goes into the message."""
        self.closed = True
        await close(self._setting, self.env, when, code=code)

    def _stepping(self, action: Action) -> Callable[[], Any]:
        if self.env.wants_observation_text:
            raw_text = action.raw_text or action.text
            action = replace(action, raw_text=raw_text, observation_text=self._history)
        if self.env.wants_history:
            action = replace(action, history=(*self._messages, _said(action)))
        return lambda: self.env.step(action)

    def _check_range(self) -> None:
        if self.env.reward_range is None:
            return
        try:
            low, high = as_reward_range(self.env.reward_range)
        except EnvError as error:
            self._setting.add(broken("E303", str(error)))
            return
        if not low - 1e-9 <= self._total <= high + 1e-9:
            message = f"an episode's rewards sum to {self._total}, outside [{low}, {high}]"
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
            setting.add(broken(code, f"{what} {_raised(error)}"))
    raise Failed


def _said(action: Action) -> Message:
    return Message(role="assistant", content=action.text, tool_calls=action.tool_calls)


def _raised(error: BaseException) -> str:
    text = str(error).encode("ascii", "backslashreplace").decode()
    return f"raised {type(error).__name__}: {text[:200]}"


class _SharedSandbox:
    """The sandboxes of an episode: a shared one, made on first use, and fresh ones."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._sandbox: _CountingSandbox | None = None
        self._others: list[_CountingSandbox] = []
        self._closed = False
        # Protects `_sandbox` while it is being made: two callers must get the same one.
        self._opening = asyncio.Lock()

    async def open(self, spec: SandboxSpec | None = None) -> Sandbox:
        async with self._opening:
            if self._sandbox is None:
                self._sandbox = await self._make(spec)
        return self._sandbox

    async def fresh(self, spec: SandboxSpec | None = None) -> Sandbox:
        sandbox = await self._make(spec)
        self._others.append(sandbox)
        return sandbox

    async def close(self) -> None:
        self._closed = True
        sandboxes = [*self._others] if self._sandbox is None else [self._sandbox, *self._others]
        if running := sum(sandbox.running for sandbox in sandboxes):
            message = f"{running} commands still ran in the sandbox after close"
            self._setting.add(broken("E407", message))
        for sandbox in sandboxes:
            await sandbox.close()
        # What the closed sandbox ends is E407 already, not a task that was left behind.
        with suppress(TimeoutError):
            async with asyncio.timeout(_COMMANDS_END_S):
                for sandbox in sandboxes:
                    await sandbox.idle.wait()

    async def _make(self, spec: SandboxSpec | None) -> _CountingSandbox:
        if self._closed:
            self._setting.add(broken("E407", "a sandbox was opened after close"))
            raise RuntimeError("the episode is over")
        assert self._setting.backend is not None
        limits = self._setting.sandbox_limits
        return _CountingSandbox(await self._setting.backend.take(spec or SandboxSpec(), limits))


class _CountingSandbox(SandboxWrapper):
    """Passes everything on and counts the commands under way."""

    def __init__(self, inner: Sandbox) -> None:
        super().__init__(inner)
        self.running = 0
        self.idle = asyncio.Event()
        self.idle.set()

    @contextmanager
    def around(self, operation: Operation) -> Iterator[None]:
        if operation != "exec":
            yield
            return
        self.running += 1
        self.idle.clear()
        try:
            yield
        finally:
            self.running -= 1
            if not self.running:
                self.idle.set()
