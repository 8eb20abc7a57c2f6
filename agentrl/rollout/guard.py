"""Everything a rollout awaits, within its time limit, with its time booked and its errors named.

A turn of the model has a limit of its own, whose clock the engine side holds while the turn waits
(`agentrl.engine.TURN_CLOCK`).

The three methods, and `bounded_turn`, are the recording boundaries of the loop: whatever an
environment, a tool or an engine raises becomes the ending of the rollout here and nowhere else.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from agentrl.engine import TURN_CLOCK, Generator
from agentrl.env import asked
from agentrl.errors import EngineError, NoEngine
from agentrl.plugins.user_code import hangs_in, user_call, was_cancelled
from agentrl.rollout.calls import CallRunner
from agentrl.rollout.clock import RolloutClock
from agentrl.rollout.endings import crash, ended
from agentrl.rollout.sandbox import SharedSandbox
from agentrl.rollout.under_way.in_flight import Activity, WaitsFor
from agentrl.rollout.watch import DeadlineWatch
from agentrl.types import Generation, ImageSpan, SamplingParams, Termination, ToolCall, ToolResult


class EnvGuard:
    """Awaits for one rollout; make it inside the task that runs the rollout."""

    def __init__(
        self,
        *,
        clock: RolloutClock,
        sandbox: SharedSandbox,
        env_timeout_s: float,
        turn_limit_s: float,
        activity: Activity,
    ) -> None:
        self.watch = DeadlineWatch()
        TURN_CLOCK.set(self.watch)
        sandbox.watch, sandbox.activity = self.watch, activity
        self._activity = activity
        self._clock = clock
        self._sandbox = sandbox
        self._env_timeout_s = env_timeout_s
        self._turn_limit_s = turn_limit_s

    async def generate(
        self,
        generator: Generator,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        session_id: str,
        images: Sequence[ImageSpan] = (),
    ) -> Generation:
        """A turn of at least one and at most `max_tokens` tokens.

        Raises:
            RolloutEnded: the engine failed, or took longer than the limit of a turn.
        """
        self._activity.turn += 1
        self._activity.wait(WaitsFor.MODEL)
        return await bounded_turn(
            self.watch,
            generator,
            prompt_ids,
            sampling,
            session_id,
            limit_s=self._turn_limit_s,
            images=images,
        )

    async def run(self, runner: CallRunner, calls: Sequence[ToolCall]) -> tuple[ToolResult, ...]:
        """The results of the calls of one turn; their time is the model's own.

        Raises:
            RolloutEnded: a tool raised something that is not for the model, or a sandbox failed
                and the tool made a result of it.
        """
        self._activity.wait(WaitsFor.TOOL)
        try:
            results = await runner.run(calls, left_s=self._clock.left_s())
        except asyncio.CancelledError as error:
            if was_cancelled():
                raise
            raise crash("tool", error) from error
        except Exception as error:  # recording boundary: a tool may fail in any way
            raise crash("tool", error) from error
        self._trust_sandboxes("tool")
        # The calls ran at the same time.
        self._clock.add("action", max(result.duration_s for result in results))
        return results

    async def ask(self, what: str, method: Callable[[Any], Awaitable[Any]], given: Any) -> Any:
        """Call `reset` or `step` of the environment under a time limit.

        A limit that ran out while commands of the model ran in the sandbox is the model's doing;
        otherwise the environment is slow, which is infrastructure.

        Raises:
            RolloutEnded: the environment raised or took too long, or a sandbox failed and the
                environment went on all the same.
        """
        self._activity.wait(WaitsFor.ENVIRONMENT)
        limit_s = self._env_timeout_s
        started, busy_s = time.monotonic(), self._sandbox.busy_s
        opening_s = self._sandbox.opening_s
        try:
            with self.watch.limit(limit_s):
                answer = await user_call(functools.partial(asked, method, given), limit_s=limit_s)
        except asyncio.CancelledError as error:
            if was_cancelled():
                raise
            raise crash(what, error) from error
        except Exception as error:  # recording boundary: authors raise whatever they like
            if not (isinstance(error, TimeoutError) and self.watch.expired):
                raise crash(what, error) from error
            self._trust_sandboxes(what)
            acted_s = self._sandbox.busy_s - busy_s
            own = acted_s > limit_s / 2
            raise ended(
                Termination.TOOL_TIMEOUT if own else Termination.ENV_CRASHED,
                f"env_timeout_s: {what} took longer than {limit_s:g} s, "
                f"{acted_s:.1f} s of it in sandbox commands{hangs_in(error)}",
            ) from error
        finally:
            acted_s = self._sandbox.busy_s - busy_s
            if acted_s:
                self._clock.add("action", acted_s)
            opening_s = self._sandbox.opening_s - opening_s
            self._clock.add("env", time.monotonic() - started - acted_s - opening_s)
        self._trust_sandboxes(what)
        return answer

    def _trust_sandboxes(self, what: str) -> None:
        """End the rollout if one of its sandboxes failed, even if the error was caught on its way.

        A reward of 0 for it, or its message as a tool's result, would be laid to the model.
        """
        if failure := self._sandbox.failure:
            raise ended(Termination.SANDBOX_FAILED, f"{what}: {failure}")


async def bounded_turn(
    watch: DeadlineWatch,
    generator: Generator,
    prompt_ids: Sequence[int],
    sampling: SamplingParams,
    session_id: str,
    *,
    limit_s: float,
    images: Sequence[ImageSpan] = (),
) -> Generation:
    """A turn of at least one and at most `max_tokens` tokens.

    Args:
        watch: of the present task, and its `TURN_CLOCK`.
        generator: samples the turn.
        prompt_ids: everything before it.
        sampling: how it is sampled.
        session_id: conversation with the engines.
        limit_s: seconds of decoding that it may take.
        images: among `prompt_ids`.

    Raises:
        RolloutEnded: the engine failed, or took longer than the limit.
    """
    started = time.monotonic()
    try:
        with watch.limit(limit_s):
            if images:
                turn = generator.generate(prompt_ids, sampling, session_id, images)
            else:
                turn = generator.generate(prompt_ids, sampling, session_id)
            generation = await turn
        if not 0 < len(generation.ids) <= sampling.max_tokens:
            raise EngineError(
                f"the engine returned {len(generation.ids)} tokens, expected 1 to "
                f"{sampling.max_tokens}"
            )
        return generation
    except asyncio.CancelledError as error:
        if was_cancelled():
            raise
        raise crash("engine", error, Termination.ENGINE_FAILED) from error
    except Exception as error:  # recording boundary: an engine may fail in any way
        if isinstance(error, NoEngine):
            raise crash("engine", error, Termination.NO_ENGINE) from error
        if not (isinstance(error, TimeoutError) and watch.expired):
            raise crash("engine", error, Termination.ENGINE_FAILED) from error
        raise ended(
            Termination.ENGINE_FAILED,
            f"limit of a turn: a turn of at most {sampling.max_tokens} tokens was not done after "
            f"{limit_s:g} s of decoding, {time.monotonic() - started:.1f} s after it "
            "was asked for",
        ) from error
