"""The tool calls of one turn. Every call gets a result the model can read; none vanishes.

A call that cannot run (malformed, unknown tool, bad arguments, beyond the cap) is the model's
doing and comes back as text. A tool that raises anything but `ToolError` is infrastructure, and
its exception leaves `run_calls`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentrl.chat.truncate import surely_fits
from agentrl.errors import DataError, EnvError, ToolError, choices
from agentrl.images import placed
from agentrl.plugins.user_code import text_of, user_call, user_code
from agentrl.rollout.clock import in_ticks
from agentrl.rollout.limits import RolloutLimits
from agentrl.rollout.long_texts import LongTexts
from agentrl.rollout.sandbox import SharedSandbox
from agentrl.rollout.watch import DeadlineWatch
from agentrl.tool import Tool, ToolContext
from agentrl.types import CallStatus, ToolCall, ToolResult, ToolStatus

if TYPE_CHECKING:
    from agentrl.chat import ChatFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRunner:
    """Runs the tool calls of all turns of a rollout."""

    tools: Mapping[str, Tool]
    """Offered tools by name."""
    sandbox: SharedSandbox
    """Given to tools that want one."""
    chat: ChatFormat
    """Shortens results."""
    limits: RolloutLimits
    """The cap on parallel calls and the length of results."""
    long_texts: LongTexts
    """Shortens long results beside the event loop."""
    watch: DeadlineWatch
    """The watch of the rollout's task, for a call that runs alone."""
    rollout: ToolContext
    """Given to tools that ask for it."""

    async def run(self, calls: Sequence[ToolCall], *, left_s: float) -> tuple[ToolResult, ...]:
        """Run what can be run, at the same time, and answer every call.

        Args:
            calls: as parsed, in order.
            left_s: wall clock the rollout has left; bounds every call beside its own time-out.

        Returns:
            One result per call, in the same order, shortened to `max_tool_tokens`.
        """
        if len(calls) == 1 and self._refuse(calls[0]) is None:
            return (await self._run_alone(calls[0], left_s),)
        results: dict[int, ToolResult] = {}
        runnable: list[int] = []
        for index, call in enumerate(calls):
            refusal = self._refuse(call)
            if refusal is None and len(runnable) >= self.limits.max_parallel_calls:
                refusal = ToolResult(
                    status=ToolStatus.OVER_CAP,
                    text=f"Error: this call was not run. At most {self.limits.max_parallel_calls} "
                    "calls run per turn; make it again in your next turn.",
                )
            if refusal is None:
                runnable.append(index)
            else:
                results[index] = await self._finish(call, refusal, 0.0)
        if len(runnable) == 1:
            results[runnable[0]] = await self._run_alone(calls[runnable[0]], left_s)
        elif runnable:
            done = await self._run_many([calls[index] for index in runnable], left_s)
            results.update(zip(runnable, done, strict=True))
        return tuple(results[index] for index in range(len(calls)))

    async def _run_alone(self, call: ToolCall, left_s: float) -> ToolResult:
        """One call in the task of the rollout; a task of its own would cost more than the call."""
        return await self._run_one(call, left_s, self.watch)

    async def _run_many(self, calls: Sequence[ToolCall], left_s: float) -> list[ToolResult]:
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._run_in_task(call, left_s)) for call in calls]
        except BaseExceptionGroup as failed:
            # One broken tool ends the rollout; its siblings were cancelled by the group.
            raise failed.exceptions[0] from None
        return [task.result() for task in tasks]

    async def _run_in_task(self, call: ToolCall, left_s: float) -> ToolResult:
        watch = DeadlineWatch()
        try:
            return await self._run_one(call, left_s, watch)
        finally:
            watch.close()

    def _refuse(self, call: ToolCall) -> ToolResult | None:
        named = call.status in (CallStatus.OK, CallStatus.INVALID_ARGUMENTS)
        if named and call.name not in self.tools:
            return ToolResult(
                status=ToolStatus.UNKNOWN_TOOL,
                text=f"Error: unknown tool: {choices(call.name, self.tools)}",
            )
        if call.status is CallStatus.INVALID_ARGUMENTS:
            return ToolResult(status=ToolStatus.INVALID_ARGUMENTS, text=f"Error: {call.error}")
        if call.status is not CallStatus.OK:
            return ToolResult(
                status=ToolStatus.MALFORMED,
                text=f"Error: this tool call could not be read ({call.status}): {call.error}",
            )
        return None

    async def _run_one(self, call: ToolCall, left_s: float, watch: DeadlineWatch) -> ToolResult:
        tool = self.tools[call.name]
        try:
            with user_code(limit_s=self.limits.env_timeout_s, who=f"the tool {call.name}"):
                arguments = tool.validate(call.arguments)
        except ToolError as error:
            refusal = ToolResult(status=ToolStatus.INVALID_ARGUMENTS, text=_words(error))
            return await self._finish(call, refusal, 0.0)
        # Making the sandbox is not the model's doing, so it is outside the clock of the call.
        sandbox = await self.sandbox.open() if tool.needs_sandbox else None
        began = started = time.monotonic()
        try:
            with watch.limit(left_s):
                await user_call(tool.make_ready, limit_s=left_s)
            started = time.monotonic()
            left_s -= started - began
            limit_s = min(tool.timeout_s, left_s)
            with watch.limit(limit_s):
                with self.rollout.entered():
                    result = await user_call(tool.call, arguments, sandbox, limit_s=limit_s)
        except ToolError as error:
            result = ToolResult(status=ToolStatus.ERROR, text=_words(error))
        except TimeoutError:
            if not watch.expired:
                raise
            late = started == began or tool.timeout_s > left_s
            result = ToolResult(status=ToolStatus.TIMEOUT, text=_timeout_text(tool, late))
        if not isinstance(result, ToolResult):
            raise EnvError(
                f"tool {tool.name!r} returned {type(result).__name__}, expected ToolResult"
            )
        return await self._finish(call, result, in_ticks(time.monotonic() - started))

    async def _finish(self, call: ToolCall, result: ToolResult, duration_s: float) -> ToolResult:
        if result.images:
            try:
                result = placed(result)
            except DataError as error:
                raise EnvError(f"tool {call.name!r}: {error}") from None
        text, truncated, most = result.text, False, self.limits.max_tool_tokens
        if not result.images and not surely_fits(text, most):
            text, truncated = await self.long_texts.run(
                len(text), self.chat.truncate_middle, text, most
            )
        return ToolResult(
            text=text,
            status=result.status,
            call_id=call.id,
            name=call.name,
            duration_s=duration_s,
            truncated=result.truncated or truncated,
            data=result.data,
            images=result.images,
        )


def _words(error: ToolError) -> str:
    """What the model reads of an error; whole, since it is shortened to its tokens later."""
    try:
        return str(error)
    except Exception:  # boundary to the `__str__` of a user
        return text_of(error)


def _timeout_text(tool: Tool, late: bool) -> str:
    if not late:
        return f"Error: {tool.name} was stopped after {tool.timeout_s:g} s."
    return f"Error: {tool.name} was stopped because the time of the whole task ran out."
