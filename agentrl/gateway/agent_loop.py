"""One rollout of an agent: its session, its time, its reward and its ending."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

from agentrl.env import StepResult
from agentrl.errors import EngineError, EnvError
from agentrl.gateway.app import Gateway
from agentrl.gateway.clients import ClientKind, bound_client
from agentrl.gateway.opened import OpenedRollout
from agentrl.gateway.posted import agreed
from agentrl.plugins.user_code import chain_of, hangs_in, user_call, user_code, was_cancelled
from agentrl.rollout.clock import in_ticks
from agentrl.rollout.coerce import as_step_result, number
from agentrl.rollout.endings import RolloutEnded, crash, ended
from agentrl.rollout.limits import Reached
from agentrl.rollout.records import Rollout
from agentrl.types import Task, Termination


class SessionLoop(ABC):
    """Runs whoever asks for turns, and makes its session the rows of a rollout.

    A limit of the rollout that the agent runs into and does not handle is its own doing, and its
    reward is 0. Any other error of it is a crash of the environment.
    """

    def __init__(self, opened: OpenedRollout) -> None:
        """Take a rollout that has begun."""
        self._parts = opened.parts
        self._session = opened.session
        self._watch = opened.guard.watch
        self._sandbox = opened.sandbox
        self._clock = opened.clock
        self._took_s = 0.0
        self._detail = ""

    @abstractmethod
    async def _played(self, task: Task) -> StepResult:
        """Play the rollout, and judge it."""

    @property
    def sampled_tokens(self) -> int:
        """Tokens the policy has sampled so far."""
        return self._session.sampled_tokens

    @property
    def elapsed_s(self) -> float:
        """Wall time since it began, or that it took."""
        return self._took_s or self._clock.elapsed_s()

    async def run(self, task: Task) -> Rollout:
        """Run to the end; failures are the ending of the rollout, not exceptions."""
        step = StepResult()
        try:
            with user_code():
                step = await self._played(task)
            ending = self._ending(step)
        except RolloutEnded as end:
            ending = end.reached
        except Exception as error:  # recording boundary: an agent may raise anything
            ending = self._ending_of(error)
        finally:
            self._watch.close()
        return self._rollout(step, ending)

    def _ending(self, step: StepResult) -> Reached:
        """The ending of an agent that returned."""
        session = self._session
        if failed := self._failed():
            return failed
        if session.limit is not None:
            return session.limit
        last = session.truncated
        if step.termination is Termination.ENV_DONE and last is not None:
            return Reached(
                termination=Termination.MAX_TOKENS,
                detail=f"max_turn_tokens: the last turn was cut off at {len(last.ids)} tokens",
            )
        return Reached(termination=step.termination, detail=self._detail)

    def _ending_of(self, error: Exception) -> Reached:
        """The ending of an agent that raised."""
        if failed := self._failed():
            return failed
        limit = self._session.limit
        if limit is not None and any(_is_refusal(one) for one in chain_of(error)):
            return limit
        if isinstance(error, TimeoutError) and self._watch.expired:
            acted_s = min(self._sandbox.busy_s, self._clock.timeout_s)
            self._clock.add("action", acted_s)
            self._clock.add("env", self._clock.timeout_s - acted_s)
            reached = self._clock.overrun()
            return replace(reached, detail=f"{reached.detail}{hangs_in(error)}")
        return crash("agent", error).reached

    def _failed(self) -> Reached | None:
        """The failure of engine or sandbox, whatever the agent made of it."""
        if failure := self._sandbox.failure:
            return ended(Termination.SANDBOX_FAILED, f"agent: {failure}").reached
        return self._session.failure

    def _rollout(self, step: StepResult, ending: Reached) -> Rollout:
        session = self._session
        result = Rollout(
            reward=step.rewards,
            reward_parts=dict(step.reward_parts),
            score=step.scores,
            extra_logs={**session.report(), **step.extra_logs},
            explanation=step.explanation,
            ending=ending,
        )
        try:
            recorder = session.rows(step.rewards)
        except EngineError as error:  # a log-probability that is no number
            recorder, result.ending = None, crash("engine", error).reached
        else:
            if recorder is None and ending.termination is Termination.ENV_DONE:
                error = EnvError(
                    "the agent returned without a turn of the model, so there is nothing to "
                    "train; ask for turns with the client it is given"
                )
                result.ending = crash("agent", error).reached
        result.requests = session.requests()
        if recorder is not None:
            recorder.attach_data(step.data)
            result.rows = recorder.finish()
            first = result.rows[0]
            result.prompt_text = self._parts.chat.decode_raw(first.ids[: first.prompt_length])
        self._took_s = result.duration_s = in_ticks(self._clock.elapsed_s())
        return result


class AgentLoop(SessionLoop):
    """Runs an agent in this process."""

    def __init__(
        self,
        opened: OpenedRollout,
        *,
        agent: Callable[[Task, Any], Awaitable[Any]],
        client: ClientKind,
        threaded: bool,
    ) -> None:
        """Take the agent and the kind of its client; other arguments as `SessionLoop`."""
        super().__init__(opened)
        self._agent = agent
        self._client: ClientKind = client
        self._threaded = threaded

    async def _played(self, task: Task) -> StepResult:
        gateway, session = Gateway(), self._session
        limit_s = self._parts.limits.timeout_s
        client = bound_client(self._client, gateway, session, threaded=self._threaded)
        gateway.open(session)
        try:
            with self._watch.limit(limit_s):
                returned = await user_call(self._agent, task, client, limit_s=limit_s)
        except asyncio.CancelledError as error:
            if was_cancelled():
                raise
            raise crash("agent", error) from error
        finally:
            await gateway.close(session)
            if not self._threaded:  # a thread that goes on is told by the gateway that it is over
                await client.close()
        return _graded(agreed(session.posted, returned))


def _graded(value: Any) -> StepResult:
    """The reward that an agent returned: a number, a `StepResult` or a dictionary of its fields."""
    if isinstance(value, Mapping):
        return as_step_result({"done": True, **value})
    if isinstance(value, StepResult):
        return as_step_result(value)
    return StepResult(rewards=number(value, "the reward that the agent returned"))


def _is_refusal(error: BaseException) -> bool:
    """Whether an SDK raised it for a request that was turned away as one that cannot succeed."""
    return getattr(error, "status_code", None) == 400
