"""A rollout worker on Ray: one process without a GPU, and without a model."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agentrl.fit.reward_models.versions import UsedRewardModel
from agentrl.rollout.under_way.in_flight import InFlightReport
from agentrl.runtime.assembly.engine_addresses import EngineAddress
from agentrl.runtime.assembly.engines import engine_wait_s
from agentrl.runtime.assembly.rollout_host import PolicyCopy, RolloutHost
from agentrl.runtime.ray.actor import ActorLocation, ActorSpec, actor_location, set_up_actor
from agentrl.runtime.ray.worker_group import Mode, dispatch
from agentrl.runtime.stages import GroupReport
from agentrl.serving.records import EngineStats
from agentrl.types import SamplingParams, Task, TrajectoryGroup

if TYPE_CHECKING:
    from agentrl.models.proof import ModelProof


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReport:
    """Report of a worker once it is open."""

    location: ActorLocation
    """Machine, process and device of the worker."""
    sandbox_text: str
    """Sandbox backend of the worker and how strong it is there."""
    stop_token_ids: tuple[int, ...] = field(default=())
    """Ends an assistant turn."""
    reward_proofs: Mapping[str, ModelProof | None] = field(default_factory=dict)
    """Comparison of each reward model with its own forward pass."""


class RolloutActor:
    """Ray actor around a `RolloutHost`."""

    def __init__(self, spec: ActorSpec, index: int) -> None:
        self._spec, engine = spec, spec.plan.engines
        self._host = RolloutHost(
            spec.plan.rollouts,
            wait_s=engine_wait_s(engine.serving, on_ray=True),
            index=index,
            sharers=engine.ray.rollout_workers,
        )
        self._stack = AsyncExitStack()

    @dispatch(Mode.BROADCAST)
    async def open(
        self, engines: Sequence[EngineAddress], policy_copy: PolicyCopy | None
    ) -> WorkerReport:
        """Open sandboxes and connections; the worker serves until its process ends."""
        self._stack.enter_context(set_up_actor(self._spec))
        self._stack.push_async_callback(self._host.close)
        report = await self._host.open(engines, policy_copy)
        return WorkerReport(
            location=actor_location(),
            sandbox_text=report.sandbox_text,
            stop_token_ids=report.stop_token_ids,
            reward_proofs=report.reward_proofs,
        )

    @dispatch(Mode.LEAST_LOADED, returns=2)
    async def run_group(
        self, task: Task, group_id: str, n: int, sampling: SamplingParams, seed: int
    ) -> tuple[GroupReport, TrajectoryGroup]:
        """As `RolloutWorker.run_group`; the report travels, the group stays here."""
        return await self._host.run_group(task, group_id, n, sampling, seed)

    @dispatch(Mode.BROADCAST)
    async def beat(self) -> None:
        """Answer, which a process that waits does and one that hangs does not."""

    @dispatch(Mode.BROADCAST)
    async def cancel(self, group_id: str) -> tuple[int, float]:
        """Cancel a group, as `RolloutHost.cancel`."""
        return await self._host.cancel(group_id)

    @dispatch(Mode.BROADCAST)
    async def serve_from(
        self, engines: Sequence[EngineAddress], left: Collection[str] = ()
    ) -> None:
        """Use exactly these engines from now on, as `RolloutHost.serve_from`."""
        await self._host.serve_from(engines, left)

    @dispatch(Mode.BROADCAST)
    async def hold_turns(self, held: bool) -> None:
        """Stop the clocks of turns while the driver has paused the engines, or start them again."""
        await self._host.hold_turns(held)

    @dispatch(Mode.BROADCAST)
    async def use_reward_model(self, used: UsedRewardModel) -> None:
        """Score with this version of a reward model, as `RolloutHost.use_reward_model`."""
        await self._host.use_reward_model(used)

    @dispatch(Mode.BROADCAST)
    async def stats(self) -> Mapping[str, EngineStats]:
        """Counts of each engine's answers to this worker since it was opened."""
        return await self._host.stats()

    @dispatch(Mode.BROADCAST)
    async def in_flight(self, most: int) -> InFlightReport:
        """Rollouts in flight here, as `RolloutHost.in_flight`."""
        return await self._host.in_flight(most)

    @dispatch(Mode.BROADCAST)
    async def close(self) -> None:
        """Release sandboxes and connections."""
        await self._stack.aclose()
