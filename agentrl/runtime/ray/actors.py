"""All actors of a run: how each kind is started, opened and ended."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncIterator, Coroutine, Sequence
from pathlib import Path
from typing import Any

from agentrl.config.plan import Plan
from agentrl.disk.model_source import plain_source
from agentrl.errors import RunError
from agentrl.runtime.assembly.engine_addresses import EngineAddress
from agentrl.runtime.assembly.rollout_host import PolicyCopy
from agentrl.runtime.assembly.weight_route import rank_to_engine
from agentrl.runtime.rank_restarts import RankLost
from agentrl.runtime.ray.actor import (
    INLINE_BYTES,
    ActorSpec,
    RankSpec,
    run_identity,
    threads_of_a_rank,
)
from agentrl.runtime.ray.engine_actor import EngineActor, EngineReport, EngineSpec
from agentrl.runtime.ray.resource_pool import ResourcePool
from agentrl.runtime.ray.rollout_actor import RolloutActor, WorkerReport
from agentrl.runtime.ray.rollout_workers import Workers
from agentrl.runtime.ray.trainer_actor import RankReport, TrainerActor
from agentrl.runtime.ray.worker_group import ActorLost, WorkerGroup
from agentrl.sync import resolve_backend

logger = logging.getLogger(__name__)

CLOSE_S = 30.0
"""Seconds that actors have to release what they hold before they are ended."""
CLOSE_WITHOUT_ONE_S = 5.0
"""The same for ranks that have lost one: they may be stuck in a collective that never ends."""


class RunActors:
    """Starts the actors of a run: which device slot each gets, and its arguments."""

    def __init__(
        self,
        plan: Plan,
        pool: ResourcePool,
        *,
        run_dir: Path,
        trajectories: Path,
        checkpoint: Path | None,
        one_machine: bool,
    ) -> None:
        """Keep the layout and the specs; all paths are absolute.

        Args:
            plan: of the run; its model is a folder or hub name that every machine can read.
            pool: the reserved device slots.
            run_dir: of the run.
            trajectories: folder of the store.
            checkpoint: folder to go on from.
            one_machine: whether the cluster is one machine.

        Raises:
            ConfigError: the weight backend that was asked for cannot reach the engines.
        """
        self.plan = plan
        engine = plan.engines
        self._pool, self._checkpoint = pool, checkpoint
        self._run_dir, self._trajectories = run_dir, trajectories
        self._one_machine = one_machine
        self._identity = run_identity(run_dir)
        self._secret = secrets.token_hex(16)
        self._limit_s = engine.serving.start_timeout_s
        self.cuda = rank_to_engine(engine.ray, engine.serving, engine.sync)
        """Whether weights can go from device to device."""
        self.backend = resolve_backend(
            engine.sync,
            engine_kind="embedded" if engine.serving.engine == "embedded" else "vllm",
            same_host=one_machine and engine.serving.engine != "external",
            shared_weights=engine.serving.engine == "embedded",
            cuda=self.cuda,
        )
        """The weight backend of the run."""

    @property
    def run_dir(self) -> Path:
        """Directory of the run, absolute."""
        return self._run_dir

    # -- starting ---------------------------------------------------------------------------

    def start_ranks(self, stack: contextlib.AsyncExitStack) -> WorkerGroup:
        """Processes of the trainer ranks; `stack` ends them."""
        slots = self._pool.layout.ranks
        threads = threads_of_a_rank(self.plan.engines.ray.trainer_ranks)
        handles = []
        for rank, slot in enumerate(slots):
            rank_spec = RankSpec(
                rank=rank,
                world_size=len(slots),
                threads=threads,
                trajectories=self._trajectories,
                checkpoint=self._checkpoint,
            )
            env = {"OMP_NUM_THREADS": str(threads)}
            spec = self._spec(f"rank-{rank}")
            handles.append(self._pool.start(TrainerActor, slot, spec, rank_spec, env=env))
        group = WorkerGroup(TrainerActor, handles, name="trainer rank")
        stack.push_async_callback(_close, group, without_one_s=CLOSE_WITHOUT_ONE_S)
        return group

    def start_workers(self, stack: contextlib.AsyncExitStack) -> Workers:
        """Processes of the rollout workers; `stack` ends them."""
        slots = self._pool.layout.workers

        def start(index: int) -> Any:
            env = {"RAY_max_direct_call_object_size": str(INLINE_BYTES)}
            spec = self._spec(f"worker-{index}")
            return self._pool.start(RolloutActor, slots[index], spec, index, env=env)

        group = WorkerGroup(RolloutActor, [start(i) for i in range(len(slots))], name="worker")
        workers = Workers(group, start, open_limit_s=self._limit_s)
        stack.push_async_callback(_close, group)
        stack.push_async_callback(workers.close)
        return workers

    def start_servers(self, stack: contextlib.AsyncExitStack) -> WorkerGroup | None:
        """Processes that hold a vLLM server each; None if none is to be started."""
        slots = self._pool.layout.engines
        if not slots:
            return None
        handles = [self.start_server(index) for index in range(len(slots))]
        group = WorkerGroup(EngineActor, handles, name="vLLM actor")
        stack.push_async_callback(_close, group)
        return group

    def start_server(self, index: int) -> Any:
        """The process of one server."""
        slots = self._pool.layout.engines
        plan = self.plan.trainer
        checkpoint = str(self._checkpoint) if self._checkpoint else None
        engine = EngineSpec(
            source=plain_source(plan.model, path=None if plan.train.lora else checkpoint),
            neighbours=len(slots) if self._one_machine else 1,
            backend=self.backend,
            secret=self._secret,
        )
        return self._pool.start(
            EngineActor, slots[index], self._spec(f"vllm-{index}"), engine, env={}
        )

    # -- opening ----------------------------------------------------------------------------

    async def opened(
        self, ranks: WorkerGroup, servers: WorkerGroup | None
    ) -> tuple[list[RankReport], list[EngineReport]]:
        """Load models and start servers, all at once.

        Raises:
            RankLost: a rank died.
            AgentrlError: whatever does not fit, named.
        """

        async def open_ranks() -> list[RankReport]:
            try:
                return await ranks.open(await ranks.meet())
            except ActorLost as error:
                raise RankLost(str(error)) from error

        async def open_servers() -> list[EngineReport]:
            return await servers.open() if servers is not None else []

        async with _within(self._limit_s, "trainer ranks and engines"):
            reports, served = await asyncio.gather(open_ranks(), open_servers())
        return reports, served

    async def opened_workers(
        self, workers: Workers, engines: Sequence[EngineAddress], policy_copy: PolicyCopy | None
    ) -> list[WorkerReport]:
        """Open sandboxes and connections.

        Raises:
            AgentrlError: whatever does not fit, named.
        """
        async with _within(self._limit_s, "the rollout workers"):
            workers.policy_copy = policy_copy
            return await workers.group.open(engines, policy_copy)

    @staticmethod
    def beside(stack: contextlib.AsyncExitStack, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine until `stack` ends; one that fails is logged at once."""
        task = asyncio.create_task(work, name=work.__qualname__)
        task.add_done_callback(_log_failure)

        async def end() -> None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        stack.push_async_callback(end)

    def _spec(self, name: str) -> ActorSpec:
        return ActorSpec(
            name=name,
            plan=self.plan,
            run_dir=self._run_dir,
            host="127.0.0.1" if self.plan.engines.ray.address is None else None,
            identity=self._identity,
        )


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("%s has ended beside the run: it failed", task.get_name(), exc_info=error)


async def _close(group: WorkerGroup, *, without_one_s: float = CLOSE_S) -> None:
    """Make actors release what they hold; those that are gone, or hang, are ended with the pool."""
    calls = [group.one(index, "close") for index in group.usable]
    limit_s = CLOSE_S if len(calls) == len(group) else without_one_s
    try:
        async with asyncio.timeout(limit_s):
            for result in await asyncio.gather(*calls, return_exceptions=True):
                if isinstance(result, BaseException) and not isinstance(result, ActorLost):
                    logger.warning("%s: closing failed: %r", group.name, result)
    except TimeoutError:
        logger.warning("%s: not closed within %g s", group.name, limit_s)


@contextlib.asynccontextmanager
async def _within(limit_s: float, what: str) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(limit_s):
            yield
    except TimeoutError:
        raise RunError(
            f"{what} were not ready within {limit_s:g} s (serving.start_timeout_s); look into "
            "logs/ of the run"
        ) from None
    except ActorLost as error:
        raise RunError(f"{error}; it died while it started: look into logs/ of the run") from error
