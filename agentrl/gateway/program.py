"""Programs that ask for the turns of a rollout from inside its sandbox.

A `ProgramEnv` runs the program and judges what it leaves; here it gets the model, as an HTTP server
behind a port of the sandbox, and its limits.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from agentrl.env import (
    Action,
    ModelEndpoint,
    Observation,
    PlayedProgram,
    ProgramEnv,
    Solution,
    StepResult,
)
from agentrl.errors import EnvError
from agentrl.gateway.agent_loop import SessionLoop
from agentrl.gateway.app import Gateway
from agentrl.gateway.listen import http_handler
from agentrl.gateway.opened import OpenedRollout, SessionAgent
from agentrl.gateway.records import MODEL
from agentrl.gateway.side_model import SideCalls
from agentrl.rollout.coerce import as_step_result
from agentrl.rollout.endings import RolloutEnded, crash
from agentrl.rollout.own_loop import RolloutLoop
from agentrl.types import Task, Termination

LEFT_S = 20.0
"""Seconds that a program gets to end by itself when no turn will be sampled any more."""
MOST_BYTES = 4 * 2**20
"""Most bytes of a request from a sandbox; several are read at once, and by the event loop."""


class ProgramAgent(SessionAgent):
    """Plays the rollouts of a `ProgramEnv`."""

    takes_reward = False

    def __init__(self, env: ProgramEnv, *, side_calls: SideCalls = "train") -> None:
        """Take the parts.

        Args:
            env: runs the program.
            side_calls: see `GatewaySession`.

        Raises:
            ConfigError: the server of the gateway is not installed.
        """
        http_handler(Gateway())  # a missing package is named before the run, not in each rollout
        super().__init__(side_calls=side_calls)
        self._env = env
        self.reward_range = env.reward_range

    def session_loop(self, opened: OpenedRollout) -> RolloutLoop:
        """Make the loop of an open session; see `SessionAgent.session_loop`."""
        self._env.context = self.context
        return ProgramLoop(opened, env=self._env)

    async def reset(self, task: Task) -> Observation:
        """Begin without a model; see `ProgramEnv`."""
        self._env.context = self.context
        return await self._env.reset(task)

    async def step(self, action: Action) -> StepResult:
        """Judge what there is."""
        return await self._env.step(action)

    def solution(self, task: Task) -> Solution | None:
        """The answer that the environment knows."""
        return self._env.solution(task)

    async def close(self) -> None:
        """Free what the environment holds."""
        await self._env.close()


class ProgramLoop(SessionLoop):
    """Runs one program: `reset`, the program, one `step`.

    A program that no turn has reached has not begun, so that its end is a crash of the environment.
    Afterwards the model may have caused whatever happens: what there is is judged.
    """

    def __init__(self, opened: OpenedRollout, *, env: ProgramEnv) -> None:
        """Take what runs the program; other arguments as `SessionLoop`."""
        super().__init__(opened)
        self._guard = opened.guard
        self._env = env

    async def _played(self, task: Task) -> StepResult:
        session = self._session
        await self._guard.ask("env.reset", self._env.reset, task)
        played = await self._program()
        if failed := self._failed():
            raise RolloutEnded(failed)
        if not session.heard and session.limit is None:
            why = played.detail or "it ended by itself"
            error = EnvError(
                f"the program had no turn of the model: {why}; look at what it printed, and "
                "whether its command, address and wire are right"
            )
            raise crash("env.play", error)
        said, last, chat = session.last_turn, session.truncated, self._parts.chat
        action = Action(
            text=said.served.content if said else "",
            thought=said.thought if said else "",
            whole_text=chat.decode(chat.reply_prefix_ids) + said.text if said else "",
            turn=max(0, len(session.tree.sampled) - 1),
            truncated=last is not None,
            last=True,
        )
        step = as_step_result(await self._guard.ask("env.step", self._env.step, action))
        self._detail = played.detail
        if played.termination is Termination.ENV_DONE:
            return step
        return replace(step, termination=played.termination)

    async def _program(self) -> PlayedProgram:
        gateway, session = Gateway(most_bytes=MOST_BYTES), self._session
        endpoint = ModelEndpoint(
            make_protocol=http_handler(gateway),
            key=session.secret,
            model=MODEL,
            turns=lambda: len(session.tree.sampled),
            context_tokens=self._parts.limits.max_context_tokens,
            reply_tokens=self._parts.limits.max_turn_tokens,
        )
        gateway.open(session)
        playing = asyncio.create_task(self._env.play(endpoint))
        limit_s = self._parts.limits.timeout_s
        try:
            with self._watch.limit(limit_s):
                if not await self._ends(playing):
                    return PlayedProgram()
        except TimeoutError:
            if not self._watch.expired:
                raise
            return PlayedProgram(
                termination=Termination.TOOL_TIMEOUT,
                detail=f"timeout_s: the program was stopped after {limit_s:g} s without the turns "
                "of the model",
            )
        finally:
            playing.cancel()
            await asyncio.wait([playing])
            await gateway.close(session)
        try:
            return playing.result()
        except asyncio.CancelledError as error:
            raise crash("env.play", error) from error

    async def _ends(self, playing: asyncio.Task[PlayedProgram]) -> bool:
        """Wait for the program; False if it goes on although no turn will be sampled any more."""
        session = self._session
        exhausted = asyncio.create_task(session.exhausted.wait())
        try:
            await asyncio.wait((playing, exhausted), return_when=asyncio.FIRST_COMPLETED)
            if not playing.done() and session.failure is None:
                await asyncio.wait((playing,), timeout=LEFT_S)
        finally:
            exhausted.cancel()
        return playing.done()
