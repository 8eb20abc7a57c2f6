"""A rollout worker: hundreds of agent loops in one process without a GPU, and without a model."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from agentrl.runtime.assembly.engines import engine_wait_s, make_client
from agentrl.runtime.ray.actor import (
    ActorLocation,
    ActorSpec,
    actor_location,
    load_tokenizer,
    set_up_actor,
)
from agentrl.runtime.ray.engines import EngineAddress, connect_all, follow
from agentrl.runtime.ray.worker_group import Mode, dispatch
from agentrl.runtime.stages import GroupReport, report_of
from agentrl.serving.records import EngineStats
from agentrl.types import SamplingParams, Task, TrajectoryGroup

ENDED_KEPT = 256
"""Groups whose cost a worker remembers; one is cancelled while its report is on the way, or never.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReport:
    """Report of a worker once it is open."""

    location: ActorLocation
    """Machine, process and device of the worker."""
    sandbox_text: str
    """Sandbox backend of the worker and how strong it is there."""
    stop_token_ids: tuple[int, ...] = field(default=())
    """Ends an assistant turn."""


class RolloutActor:
    """Ray actor with a `RolloutWorker`, its client and its sandboxes."""

    def __init__(self, spec: ActorSpec, index: int) -> None:
        self._spec, self._index = spec, index
        self._groups: dict[str, asyncio.Task[TrajectoryGroup]] = {}
        self._engines: Sequence[EngineAddress] = ()
        self._stack = AsyncExitStack()
        self._reported = (0, 0.0)
        self._ended: OrderedDict[str, tuple[int, float]] = OrderedDict()

    @dispatch(Mode.BROADCAST)
    async def open(self, engines: Sequence[EngineAddress]) -> WorkerReport:
        """Open sandboxes and connections; the worker serves until its process ends."""
        from agentrl.runtime.assembly.parts import make_worker, open_sandboxes
        from agentrl.runtime.assembly.tools import open_tools

        spec = self._spec
        self._stack.enter_context(set_up_actor(spec))
        sharers = spec.config.ray.rollout_workers
        sandboxes = await open_sandboxes(spec.config.sandbox, base=spec.base, sharers=sharers)
        self._stack.push_async_callback(sandboxes.close)
        probe = await sandboxes.probe()
        tools = await self._stack.enter_async_context(open_tools(spec.config.env, base=spec.base))
        held = await connect_all(engines)
        self._client = make_client(
            held,
            wait_s=engine_wait_s(spec.config.serving, on_ray=True),
            offset=self._index,
        )
        self._stack.push_async_callback(self._client.close)
        self._engines = engines
        self._worker, chat = make_worker(
            spec.config,
            generator=self._client,
            tokenizer=load_tokenizer(spec),
            sandboxes=sandboxes,
            tools=tools,
            base=spec.base,
        )
        return WorkerReport(
            location=actor_location(),
            sandbox_text=f"{sandboxes.name} ({probe.isolation.name.lower()} isolation)",
            stop_token_ids=chat.stop_token_ids,
        )

    @dispatch(Mode.LEAST_LOADED, returns=2)
    async def run_group(
        self, task: Task, group_id: str, n: int, sampling: SamplingParams, seed: int
    ) -> tuple[GroupReport, TrajectoryGroup]:
        """As `RolloutWorker.run_group`; the report travels, the group stays here."""
        work = self._worker.run_group(task, group_id=group_id, n=n, sampling=sampling, seed=seed)
        self._groups[group_id] = running = asyncio.ensure_future(work)
        try:
            group = await running
        finally:
            del self._groups[group_id]
        report = report_of(group)
        seconds = sum(rollout.duration_s for rollout in report.rollouts)
        self._ended[group_id] = (report.tokens, seconds)
        if len(self._ended) > ENDED_KEPT:
            self._ended.popitem(last=False)
        return report, group

    @dispatch(Mode.BROADCAST)
    async def cancel(self, group_id: str) -> tuple[int, float]:
        """Cancel a group if it runs here; returns once it has released everything.

        Returns:
            Tokens and rollout seconds of the groups cancelled here since the last call. A group
            that has just ended counts, too: its result is not used.
        """
        late = self._ended.pop(group_id, (0, 0.0))
        if (running := self._groups.get(group_id)) is not None:
            running.cancel()
            await asyncio.wait([running])
        work, (tokens, seconds) = self._worker.cancelled, self._reported
        self._reported = (work.tokens, work.seconds)
        return late[0] + work.tokens - tokens, late[1] + work.seconds - seconds

    @dispatch(Mode.BROADCAST)
    async def serve_from(self, engines: Sequence[EngineAddress]) -> None:
        """Use exactly these engines from now on, at the versions of their weights."""
        await follow(self._client, self._engines, engines)
        self._engines = engines

    @dispatch(Mode.BROADCAST)
    async def stats(self) -> Mapping[str, EngineStats]:
        """Counts of each engine's answers to this worker since it was opened."""
        return self._client.stats()

    @dispatch(Mode.BROADCAST)
    async def close(self) -> None:
        """Release sandboxes and connections."""
        for running in list(self._groups.values()):
            running.cancel()
        await self._stack.aclose()
