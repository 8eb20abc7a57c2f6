"""The one way in which a rollout opens its session, whoever asks for the turns."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from agentrl.gateway.session import GatewaySession
from agentrl.gateway.side_model import SideCalls
from agentrl.rollout.clock import RolloutClock
from agentrl.rollout.guard import EnvGuard
from agentrl.rollout.own_loop import OwnLoop, RolloutLoop
from agentrl.rollout.records import LoopParts
from agentrl.rollout.sandbox import SharedSandbox
from agentrl.rollout.under_way.in_flight import Activity
from agentrl.types import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedRollout:
    """A rollout that has begun, with its session."""

    parts: LoopParts
    """Engine, chat format, parser and limits."""
    session: GatewaySession
    """Takes the requests for turns; no gateway serves it yet."""
    clock: RolloutClock
    """Time since the rollout began."""
    guard: EnvGuard
    """Calls an environment; its watch is the agent's own time, which turns of the model stop."""
    sandbox: SharedSandbox
    """Sandboxes of the rollout."""


class SessionAgent(OwnLoop):
    """An environment whose turns are asked for over a session of the gateway."""

    takes_reward: ClassVar[bool] = True
    """See `GatewaySession`."""

    def __init__(self, *, side_calls: SideCalls = "train") -> None:
        """Take the arguments of `GatewaySession` about `side_calls`."""
        self._side_calls: SideCalls = side_calls

    @abstractmethod
    def session_loop(self, opened: OpenedRollout) -> RolloutLoop:
        """The loop of a rollout whose session is open."""

    def loop(
        self,
        parts: LoopParts,
        *,
        sandbox: SharedSandbox,
        sampling: SamplingParams,
        seed: int,
        session_id: str,
        activity: Activity,
    ) -> RolloutLoop:
        """Make the loop of one rollout; see `OwnLoop.loop`."""
        clock = RolloutClock(parts.limits.timeout_s)
        guard = EnvGuard(
            clock=clock,
            sandbox=sandbox,
            env_timeout_s=parts.limits.env_timeout_s,
            turn_limit_s=parts.limits.turn_limit_s,
            activity=activity,
        )
        session = GatewaySession(
            parts,
            sampling=sampling,
            seed=seed,
            session_id=session_id,
            activity=activity,
            side_calls=self._side_calls,
            watch=guard.watch,
            takes_reward=self.takes_reward,
        )
        return self.session_loop(
            OpenedRollout(parts=parts, session=session, clock=clock, guard=guard, sandbox=sandbox)
        )
