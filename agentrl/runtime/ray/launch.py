"""From a config to the stages of a run on Ray: what is opened here is closed here.

    cluster -> pool -> ranks, engines -> workers -> stages

Processes start side by side; who needs whom is a matter of `open`. Nothing is detached: when the
driver ends, however it ends, Ray ends the actors.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

from agentrl.batch.split.planned_step import why_not_split
from agentrl.config.algorithm import AlgorithmSection
from agentrl.config.fleet import RayRuntime, ServingSection
from agentrl.config.plan import Plan
from agentrl.disk.checkpoint import Checkpoint
from agentrl.disk.model_source import plain_source
from agentrl.disk.proofs import keep_proofs
from agentrl.engine import Engine
from agentrl.runtime.assembly.engine_addresses import connect
from agentrl.runtime.assembly.layout import engine_width
from agentrl.runtime.assembly.layout import plan as plan_layout
from agentrl.runtime.assembly.live_servers import LiveServers, named_urls
from agentrl.runtime.rank_restarts import RankLost, RankLostAtStart
from agentrl.runtime.ray.actors import RunActors
from agentrl.runtime.ray.cluster import check_cluster, machines, open_cluster
from agentrl.runtime.ray.engine_fleet import RayFleet, external_address, open_fleet
from agentrl.runtime.ray.engine_stage import RayEngines
from agentrl.runtime.ray.heartbeat import Heartbeat
from agentrl.runtime.ray.rank_failure import RankFailure
from agentrl.runtime.ray.resource_pool import ResourcePool
from agentrl.runtime.ray.stages import RayLearner, RayRollouts
from agentrl.runtime.records import CheckServer, OpenStages, RunCluster
from agentrl.runtime.stages import Stages
from agentrl.serving.watch import EngineWatch

logger = logging.getLogger(__name__)


class RayCluster(RunCluster):
    """Ray: one machine, or as many as the cluster has."""

    async def check(self, section: RayRuntime, serving: ServingSection) -> str:
        """`check` as in `RunCluster.check`."""
        return await check_cluster(section, serving)

    @contextlib.asynccontextmanager
    async def open(
        self,
        plan: Plan,
        *,
        run_dir: Path,
        trajectories: Path,
        checkpoint: Checkpoint | None,
        note: Callable[[str], None],
        check_server: CheckServer,
    ) -> AsyncIterator[OpenStages]:
        """Start the actors of a run; end them in every case.

        Raises:
            ConfigError: no cluster, or too small a one.
            RankLostAtStart: a rank died before all was open.
            AgentrlError: whatever does not fit, named.
        """
        plan = plan.with_model(plain_source(plan.engines.model))
        engine = plan.engines
        layout = plan_layout(engine.ray, engine.serving)
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(open_cluster(engine.ray, engine.serving, layout))
            pool = await ResourcePool.reserve(layout, limit_s=engine.serving.start_timeout_s)
            stack.callback(pool.release)
            actors = RunActors(
                plan,
                pool,
                run_dir=run_dir.absolute(),
                trajectories=trajectories.absolute(),
                checkpoint=checkpoint.path.absolute() if checkpoint else None,
                one_machine=len(machines()) == 1,
            )
            yield await _open(actors, stack, note, check_server)


def _live_servers(
    actors: RunActors, fleet: RayFleet, note: Callable[[str], None], check: CheckServer
) -> LiveServers:
    """Servers that join and leave; workers follow the addresses of those that serve."""
    section = actors.plan.engines.serving

    async def join(url: str, name: str) -> Engine:
        entry = external_address(actors.plan.engines, name, url)
        engine = await connect(entry, adopt=True, pictures=fleet.pictures)
        fleet.addresses[name] = entry
        return engine

    def leave(name: str) -> None:
        fleet.addresses.pop(name, None)

    return LiveServers(
        actors.run_dir,
        fleet.client,
        join,
        lambda url: check(url, actors.backend),
        urls=named_urls(section),
        backend=actors.backend,
        note=note,
        left=leave,
    )


@contextlib.contextmanager
def _starting() -> Iterator[None]:
    """Report a rank that dies in the block as one that died at the start."""
    try:
        yield
    except RankLost as error:
        raise RankLostAtStart(
            f"{error}; it died while the run started: look into logs/ of the run"
        ) from error


def _why_whole_steps(algorithm: AlgorithmSection, ranks: int) -> str:
    """Why every rank prepares whole steps; empty if each prepares its share."""
    return "there is one rank" if ranks == 1 else why_not_split(algorithm)


def _preparing(why_whole: str, ranks: int) -> str:
    """Who prepares what of a step, in words."""
    if ranks == 1:
        return ""
    return (
        f", each prepares whole steps ({why_whole})" if why_whole else ", each prepares its share"
    )


async def _open(
    actors: RunActors,
    stack: contextlib.AsyncExitStack,
    note: Callable[[str], None],
    check_server: CheckServer,
) -> OpenStages:
    # Closed in the opposite order: no worker asks an engine that is gone.
    ranks, servers = actors.start_ranks(stack), actors.start_servers(stack)
    workers = actors.start_workers(stack)
    rank_failure = RankFailure(ranks)
    actors.beside(stack, rank_failure.watch())
    with _starting():
        reports, served = await rank_failure.guard(actors.opened(ranks, servers))
        fleet = await rank_failure.guard(
            open_fleet(actors, stack, ranks, servers, reports, served, note=note)
        )
        opened = await rank_failure.guard(
            actors.opened_workers(workers, list(fleet.addresses.values()), reports[0].policy_copy)
        )
    engines = RayEngines(
        fleet.client,
        workers.group,
        fleet.push,
        rank_failure,
        addresses=fleet.addresses,
        shared=fleet.shares_weights,
        wait_s=fleet.wait_s,
    )
    workers.engines = lambda: engines.serving
    workers.held = lambda: engines.held
    actors.beside(stack, engines.watch())
    limit_s = actors.plan.engines.ray.hang_timeout_s
    actors.beside(stack, Heartbeat(workers.group, limit_s=limit_s, lost=workers.lost).watch())
    actors.beside(stack, Heartbeat(ranks, limit_s=limit_s).watch())
    section = actors.plan.engines.serving
    if section.engine != "embedded":
        # Turns go through the workers' clients; the driver's only knows that they are in flight.
        care = EngineWatch(
            fleet.client,
            outage_limit_s=section.outage_limit_s,
            note=note,
            stats=engines.stats,
        )
        actors.beside(stack, care.run())
        actors.beside(stack, _live_servers(actors, fleet, note, check_server).run())
    rollouts = RayRollouts(workers, rank_failure)
    why_whole = _why_whole_steps(actors.plan.trainer.algorithm, len(reports))
    learner = RayLearner(ranks, rank_failure, version=reports[0].version, why_whole=why_whole)
    keep_proofs(actors.run_dir, opened[0].reward_proofs)
    groups = (("rank", reports), ("worker", opened), ("engine", served))
    return OpenStages(
        stages=Stages(
            rollouts=rollouts,
            engines=engines,
            engine_devices=engine_width(section),
            learner=learner,
            stop_token_ids=opened[0].stop_token_ids,
            reward_models=workers,
            in_flight=rollouts.in_flight,
        ),
        model=f"{reports[0].model} on {len(reports)} ranks{_preparing(why_whole, len(reports))}; "
        f"sampled by {fleet.text}",
        sandbox=f"{opened[0].sandbox_text} in {len(opened)} workers",
        actor_lines=[
            f"{name} {index}: process {report.location.pid} on {report.location.node_ip}"
            for name, group in groups
            for index, report in enumerate(group)
        ],
    )
