"""The driver's client over the engines of a run, and how new weights reach them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentrl.config.fleet import ServingSection
from agentrl.config.plan import EnginePlan
from agentrl.engine import WeightTicket
from agentrl.metrics import MetricBag
from agentrl.runtime.assembly.engine_addresses import EngineAddress, connect_all
from agentrl.runtime.assembly.engine_care import pause_limit_s
from agentrl.runtime.assembly.engines import engine_wait_s, make_client
from agentrl.runtime.assembly.live_servers import named_urls
from agentrl.runtime.assembly.weight_check import Digests, FirstSyncCheck, Turn, most_apart
from agentrl.runtime.engine_wait import Push
from agentrl.runtime.ray.actors import RunActors
from agentrl.runtime.ray.engine_actor import EngineReport
from agentrl.runtime.ray.sender import RemoteSender
from agentrl.runtime.ray.trainer_actor import RankReport
from agentrl.runtime.ray.vllm_servers import ServerActor
from agentrl.runtime.ray.worker_group import WorkerGroup
from agentrl.serving import TokenClient
from agentrl.serving.keeper import Keeper
from agentrl.serving.lean.vllm_app import SECRET_VARIABLE
from agentrl.sync import WeightSync

if TYPE_CHECKING:
    from agentrl.serving.vllm.pictures import PictureSource


@dataclass(frozen=True, slots=True, kw_only=True)
class RayFleet:
    """The engines of a run, all answering, and how weights reach them."""

    client: TokenClient
    """The driver's client, for control."""
    push: Push
    """Makes them sample from the weights of a version."""
    addresses: dict[str, EngineAddress]
    """By name, for the workers; a server that is started again changes its entry."""
    wait_s: float
    """Seconds to wait for one to come back when none answers; 0 where none ever does."""
    shares_weights: bool
    """Whether they sample from the tensors that training changes."""
    text: str
    """One line about each engine."""
    pictures: PictureSource | None = None
    """Images of the run, for servers that join it."""


async def open_fleet(
    actors: RunActors,
    stack: contextlib.AsyncExitStack,
    ranks: WorkerGroup,
    servers: WorkerGroup | None,
    reports: Sequence[RankReport],
    served: Sequence[EngineReport],
    *,
    note: Callable[[str], None],
) -> RayFleet:
    """Connect to the engines of a run, started by it or before it.

    Args:
        actors: those of the run.
        stack: closes what is opened.
        ranks: of `TrainerActor`, opened.
        servers: of `EngineActor`, opened; None if none was started.
        reports: of the ranks.
        served: of the servers.
        note: called with each line for the user.

    Raises:
        EngineError: one does not answer, or weights cannot be brought to it.
    """
    plan = actors.plan.engines
    section = plan.serving
    embedded = [report.engine for report in reports if report.engine is not None]
    entries = (
        embedded
        or [report.engine for report in served]
        or [external_address(plan, name, url) for name, url in named_urls(section).items()]
    )
    addresses = {entry.name: entry for entry in entries}
    # Before any worker asks: what an earlier run left on a server has a number of that run.
    copy = reports[0].policy_copy
    pictures = copy.read_images() if copy is not None and not embedded else None
    held = await connect_all(entries, adopt=section.engine == "external", pictures=pictures)
    client = make_client(held, wait_s=0.0, pause_limit_s=pause_limit_s(section))
    stack.push_async_callback(client.close)
    if embedded:

        async def move(version: int) -> MetricBag:
            # Embedded engines sample from the parameters of their rank: only the version moves.
            await client.load_weights(WeightTicket(backend="inprocess", version=version))
            await client.resume_all()
            return MetricBag()

        return RayFleet(
            client=client,
            push=await _checked(move, ranks, client, section, shared=True),
            addresses=addresses,
            wait_s=0.0,
            shares_weights=True,
            text="an engine embedded in each rank",
        )
    push = await _open_sync(actors, stack, ranks, client)
    if servers is not None:
        kept = [
            ServerActor(
                servers,
                index,
                actors.start_server,
                addresses,
                name=entry.name,
                open_limit_s=section.start_timeout_s,
                pictures=pictures,
            )
            for index, entry in enumerate(entries)
        ]
        assert section.engine == "vllm"
        keeper = Keeper(client, kept, note=note)
        actors.beside(stack, keeper.run())
    which = "on actors" if servers is not None else "that run already"
    return RayFleet(
        client=client,
        push=await _checked(push, ranks, client, section, shared=False),
        addresses=addresses,
        wait_s=engine_wait_s(section, on_ray=True),
        shares_weights=False,
        text=f"{len(entries)} vLLM servers {which}",
        pictures=pictures,
    )


async def _checked(
    push: Push, ranks: WorkerGroup, client: TokenClient, section: ServingSection, *, shared: bool
) -> Push:
    """The same push, which compares each engine with the ranks after its first sync."""

    async def score(turns: Sequence[Turn]) -> Sequence[Sequence[float]]:
        return (await ranks.turn_log_probs(turns))[0]

    async def sent() -> Digests:
        return (await ranks.sent_digests())[0]

    return FirstSyncCheck(
        push,
        client,
        score,
        sent,
        await ranks.probe_prompts(),
        shared=shared,
        bound=most_apart(section.args if section.engine == "vllm" else {}),
    )


async def _open_sync(
    actors: RunActors, stack: contextlib.AsyncExitStack, ranks: WorkerGroup, client: TokenClient
) -> Push:
    """Weights go from rank 0 to every engine; the driver only decides when."""
    facts = await ranks.open_sender(actors.backend, actors.cuda)
    limit_s = actors.plan.engines.sync.timeout_s
    sync = WeightSync(client, RemoteSender(ranks, facts), limit_s=limit_s)
    stack.push_async_callback(sync.close)
    await sync.connect()
    return lambda version: sync.push(tuple, version)


def external_address(plan: EnginePlan, name: str, url: str) -> EngineAddress:
    """Address of a server that runs already, with what every client needs to connect to it."""
    section = plan.serving
    assert section.engine != "embedded"
    return EngineAddress(
        name=name,
        address=url,
        secret=os.environ.get(SECRET_VARIABLE, ""),
        max_context_tokens=plan.rollout.max_context_tokens,
    )
