"""A trainer rank: model, optimizer, and with an embedded engine the engine on the same weights.

Every rank fetches its part of the groups of a step from where they were made, and says in outlines
what the others must know of it; then each decides about the whole step, and builds its share. The
order of a step:

    outline (a part each: fetch, check)  ->  prepare_share (all: plan, fetch what is missing of the
    share, build it, store the part)  ->  learn (all: gradients, update)

The driver awaits each before it asks for the next, so what a step trains on is on the disk before
its last update. Where a step cannot be planned from outlines (`why_not_split`), `prepare` takes the
place of the first two: every rank fetches all groups and builds the whole batch, and its backend
takes a share of that. `prepare_early` and `learn_early` make updates of a step whose other rollouts
have not ended; nothing is stored, saved or sent until the step is complete.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl.errors import AgentrlError, RunError, StepAbandoned
from agentrl.machine.compute_threads import reserve_cores, run_beside, run_computing
from agentrl.metrics import MetricBag
from agentrl.runtime.assembly.engine_addresses import EngineAddress
from agentrl.runtime.assembly.local_stages import ABANDONED
from agentrl.runtime.assembly.rollout_host import PolicyCopy
from agentrl.runtime.assembly.weight_check import Digests, Turn
from agentrl.runtime.assembly.weight_route import own_address, urls_are_local
from agentrl.runtime.ray.actor import (
    ActorLocation,
    ActorSpec,
    RankSpec,
    actor_location,
    listening_host,
    set_up_actor,
)
from agentrl.runtime.ray.sender import SenderFacts
from agentrl.runtime.ray.worker_group import Mode, dispatch

if TYPE_CHECKING:
    from agentrl.types import TrajectoryGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReport:
    """Report of a rank once it is open."""

    location: ActorLocation
    """Machine, process and device of the rank."""
    model: str
    """Describes the model."""
    version: int
    """Version of the weights."""
    engine: EngineAddress | None
    """The engine on them, if it is embedded."""
    policy_copy: PolicyCopy | None
    """For rollout workers; rank 0 gives it."""


class TrainerActor:
    """A rank; everything that computes happens in a thread, so that its engine can be asked."""

    def __init__(self, spec: ActorSpec, rank: RankSpec) -> None:
        self._spec, self._rank = spec, rank
        self._stack = AsyncExitStack()
        self._progress = (0, 0)
        self._batch: Any = None
        self._update: Any = None
        self._closed = asyncio.Event()
        self._abandoned = False
        # Held while a step trains: the ranks that another one left are late to notice.
        self._training = asyncio.Lock()

    @dispatch(Mode.RANK_ZERO)
    async def meet(self) -> str:
        """Join the ranks here; returns the address."""
        from agentrl.train.backends.ranks import Meeting

        meeting = Meeting(host=listening_host(self._spec))
        self._stack.callback(meeting.close)
        return meeting.address

    @dispatch(Mode.BROADCAST)
    async def open(self, meeting: str) -> RankReport:
        """Load the model, meet the other ranks, serve the engine."""
        import torch

        from agentrl.runtime.ray.rank import Rank

        self._stack.enter_context(set_up_actor(self._spec))
        torch.set_num_threads(self._rank.threads)
        reserve_cores()
        self._own = await run_computing(Rank.load, self._spec, self._rank, meeting)
        self._stack.callback(self._own.close)
        engine = await self._own.serve(self._stack, host=listening_host(self._spec))
        return RankReport(
            location=actor_location(),
            model=self._own.description,
            version=self._own.version,
            engine=engine,
            policy_copy=self._own.policy_copy,
        )

    @dispatch(Mode.BROADCAST)
    async def prepare(
        self, step: int, refs: Sequence[Any], stored: bool
    ) -> tuple[MetricBag, MetricBag]:
        """Fetch the groups, build the batch, and store this rank's part of them.

        Returns:
            Metrics that are the same on every rank, and those of this rank's share.
        """
        groups = await fetch(refs)
        bag, self._batch = await run_computing(self._own.steps.prepare, step, groups, stored=stored)
        return bag, MetricBag()

    @dispatch(Mode.SPLIT)
    async def outline(self, refs: Sequence[Any], step: int) -> list[bytes]:
        """Fetch this rank's part of the groups, and return its outlines, packed."""
        groups = await fetch(refs)
        return [await run_computing(self._own.steps.outline, step, groups)]

    @dispatch(Mode.BROADCAST)
    async def prepare_share(
        self, step: int, outlines: Sequence[bytes], refs: Sequence[Any], stored: bool
    ) -> tuple[MetricBag, MetricBag]:
        """Plan the step, fetch what this rank's share lacks, build it, and store its own part.

        Args:
            step: from 1.
            outlines: by rank, from `outline`.
            refs: of all groups, in the order of the outlines.
            stored: whether they came from the store.

        Returns:
            As `prepare`.
        """
        missing = await run_computing(self._own.steps.plan, step, outlines)
        others = await fetch([refs[position] for position in missing])
        bag, own, self._batch = await run_computing(
            self._own.steps.prepare_share, others, stored=stored
        )
        return bag, own

    @dispatch(Mode.BROADCAST)
    async def learn(self) -> MetricBag:
        """Train on the prepared batch; the same metrics on every rank."""
        self._progress = (0, 0)
        batch, self._batch = self._batch, None
        async with self._training:
            return await run_computing(self._own.trainer.step, batch, self._note_progress)

    @dispatch(Mode.BROADCAST)
    async def abandon(self) -> None:
        """Make `learn` raise `StepAbandoned` at the next micro-batch of this rank."""
        self._abandoned = True

    @dispatch(Mode.BROADCAST)
    async def give_up(self) -> bool:
        """Forget the step that was abandoned; True if weights have moved in it."""
        async with self._training:
            return self._own.give_up()

    @dispatch(Mode.BROADCAST)
    async def prepare_early(
        self, step: int, minibatch: int, positions: Sequence[int], refs: Sequence[Any]
    ) -> bool:
        """Fetch the groups of a minibatch and build its update; False where nothing is trained."""
        groups = dict(zip(positions, await fetch(refs), strict=True))
        self._update = await run_computing(self._own.steps.prepare_early, step, minibatch, groups)
        return self._update is not None

    @dispatch(Mode.BROADCAST)
    async def learn_early(self) -> None:
        """Make the prepared update of a step that is not complete."""
        update, self._update = self._update, None
        await run_computing(self._own.trainer.update_early, update)

    @dispatch(Mode.RANK_ZERO)
    async def progress(self) -> tuple[int, int]:
        """(micro-batches done, micro-batches of the step), on rank 0."""
        return self._progress

    @dispatch(Mode.RANK_ZERO)
    async def remove_stored(self, step: int, kind: str) -> None:
        """Remove what an earlier try left of a step, before all ranks store their parts."""
        await asyncio.to_thread(self._own.store.remove, step, kind)

    @dispatch(Mode.SPLIT)
    async def keep(self, refs: Sequence[Any], step: int, kind: str) -> None:
        """Fetch this rank's part of groups that are not trained on, and store it."""
        await asyncio.to_thread(self._own.steps.keep, step, kind, await fetch(refs))

    @dispatch(Mode.BROADCAST)
    async def hold(self) -> None:
        """Hold this rank's part of a checkpoint as it is now."""
        await run_computing(self._own.hold)

    @dispatch(Mode.BROADCAST)
    async def write(self, folder: Path) -> Exception | None:
        """Write it, beside whatever else is asked; what failed comes back, when all are done."""
        try:
            await run_beside(self._own.write, folder)
        except (OSError, AgentrlError) as error:
            return error
        return None

    @dispatch(Mode.RANK_ZERO)
    async def probe_prompts(self) -> list[list[int]]:
        """Prompts of the turns after which engines are compared with the ranks."""
        return self._own.probe_prompts()

    @dispatch(Mode.BROADCAST)
    async def turn_log_probs(self, turns: Sequence[Turn]) -> list[list[float]]:
        """Log-probabilities of sampled turns; ranks that hold parts are all needed for it."""
        return await run_computing(self._own.turn_log_probs, turns)

    @dispatch(Mode.BROADCAST)
    async def sent_digests(self) -> Digests:
        """Digests of the weights of a push; ranks that hold parts are all needed for it."""
        return await run_computing(self._own.sent_digests)

    @dispatch(Mode.RANK_ZERO)
    async def open_sender(self, backend: str, cuda: bool) -> SenderFacts:
        """Make the weight sender of the run."""
        spec = self._spec
        elsewhere = not urls_are_local(spec.plan.engines.serving.urls)
        address = own_address(spec.plan.engines.serving.urls) if elsewhere else listening_host(spec)
        return self._own.open_sender(backend, address=address, cuda=cuda)

    @dispatch(Mode.RANK_ZERO)
    async def sender(self, method: str, *args: Any) -> Any:
        """Call the weight sender; `send` takes the version alone, the weights are here."""
        return await run_computing(self._own.ask_sender, method, *args)

    @dispatch(Mode.BROADCAST)
    async def gather_weights(self, backend: str) -> None:
        """Take part while rank 0 sends weights that the ranks hold in parts."""
        await run_computing(self._own.gather_weights, backend)

    @dispatch(Mode.BROADCAST)
    async def beat(self) -> None:
        """Answer, which a process that computes does and one that hangs does not."""

    @dispatch(Mode.BROADCAST)
    async def until_closed(self) -> None:
        """Wait until closed; the call fails at once if this process dies."""
        await self._closed.wait()

    @dispatch(Mode.BROADCAST)
    async def close(self) -> None:
        """Release model, sender and process group."""
        self._closed.set()
        await self._stack.aclose()

    def _note_progress(self, done: int, total: int) -> None:
        if self._abandoned:
            raise StepAbandoned(ABANDONED)
        self._progress = (done, total)


async def fetch(refs: Sequence[Any]) -> list[TrajectoryGroup]:
    """The groups behind references, straight from the machines that hold them.

    Raises:
        RunError: one is lost with its machine.
    """
    from ray.exceptions import ObjectLostError

    try:
        return list(await asyncio.gather(*refs))
    except ObjectLostError as error:  # OwnerDiedError is one, too
        raise RunError(
            f"trajectories were lost with the machine that held them ({type(error).__name__}); go "
            "on from the last stored step with --resume"
        ) from error
