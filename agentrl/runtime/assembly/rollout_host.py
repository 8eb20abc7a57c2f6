"""A rollout worker with all that it needs, for a process of its own: hundreds of agent loops.

Ray's actor and the child of a local run wrap the same object; it knows neither of them.
"""

from __future__ import annotations

import asyncio
import pickle
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agentrl.config.plan import RolloutPlan
from agentrl.disk.logs import quiet_transformers
from agentrl.errors import EngineError
from agentrl.fit.reward_models.open import OpenRewardModels, open_reward_models
from agentrl.fit.reward_models.versions import UsedRewardModel
from agentrl.machine.compute_threads import reserve_cores
from agentrl.machine.processes.heap import frozen_heap
from agentrl.models.source import load_tokenizer
from agentrl.rollout.under_way.in_flight import InFlightReport
from agentrl.runtime.assembly.engine_addresses import EngineAddress, connect_all, follow
from agentrl.runtime.assembly.engines import make_client
from agentrl.runtime.assembly.parts import make_worker, open_sandboxes
from agentrl.runtime.assembly.tools import open_tools
from agentrl.runtime.stages import GroupReport, report_of
from agentrl.serving.records import EngineStats
from agentrl.types import SamplingParams, Task, TrajectoryGroup

if TYPE_CHECKING:
    from agentrl.chat.pictures.slots import ImageReader
    from agentrl.models.proof import ModelProof
    from agentrl.models.vision.reader import VisionReader
    from agentrl.rollout import RolloutWorker
    from agentrl.serving import TokenClient

ENDED_KEPT = 256
"""Groups whose cost a worker remembers; one is cancelled while its report is on the way, or never.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostReport:
    """Report of a rollout host once it is open."""

    sandbox_text: str
    """Sandbox backend of the host and how strong it is there."""
    stop_token_ids: tuple[int, ...] = field(default=())
    """Ends an assistant turn."""
    reward_proofs: Mapping[str, ModelProof | None] = field(default_factory=dict)
    """Comparison of each reward model with its own forward pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyCopy:
    """Parts of the policy for the processes of rollout workers, pickled."""

    tokenizer: bytes | None
    """Tokenizer; None for a class that another process cannot import by its name."""
    images: bytes | None = None
    """Image processor with the folder of the run's images; None for a model that reads text only.
    """

    def read_images(self) -> VisionReader | None:
        """Unpickle the image processor; imports torch and `transformers` where there is one."""
        return None if self.images is None else pickle.loads(self.images)


def copy_policy(tokenizer: Any, images: ImageReader | None) -> PolicyCopy:
    """Pickle a tokenizer and an image processor for the processes of rollout workers.

    Finding the class of a tokenizer imports all of `transformers` and torch: 5 s of processor and
    330 MB in each worker. With the copy only the workers of a model that reads images need both.
    """
    portable = type(tokenizer).__module__.partition(".")[0] == "transformers"
    return PolicyCopy(
        tokenizer=pickle.dumps(tokenizer) if portable else None,
        images=None if images is None else pickle.dumps(images),
    )


class RolloutHost:
    """A `RolloutWorker`, its client and its sandboxes."""

    _client: TokenClient
    _worker: RolloutWorker
    _models: OpenRewardModels

    def __init__(self, plan: RolloutPlan, *, wait_s: float, index: int, sharers: int) -> None:
        """Keep the settings; nothing is opened yet.

        Args:
            plan: of a rollout; its `model.path` is a folder or hub name that can be read here.
            wait_s: seconds that a turn waits for an engine. Here as on Ray: a connection to an
                engine that is well may be lost.
            index: number among the hosts of the run.
            sharers: hosts of the run, which share the sandboxes of a machine.
        """
        self._plan, self._wait_s, self._index, self._sharers = plan, wait_s, index, sharers
        self._groups: dict[str, asyncio.Task[TrajectoryGroup]] = {}
        self._engines: Sequence[EngineAddress] = ()
        self._following = asyncio.Lock()
        self._images: VisionReader | None = None
        self._stack = AsyncExitStack()
        self._reported = (0, 0.0)
        self._ended: OrderedDict[str, tuple[int, float]] = OrderedDict()

    async def open(
        self, engines: Sequence[EngineAddress], policy_copy: PolicyCopy | None = None
    ) -> HostReport:
        """Open sandboxes, tools and connections to engines.

        Args:
            engines: those that serve.
            policy_copy: by `copy_policy`; a tokenizer that is not in it is loaded.

        Raises:
            AgentrlError: one of them cannot be opened; call `close`.
        """
        plan, stack = self._plan, self._stack
        if plan.reward.models:
            # They compute in threads of their own, beside the event loop.
            reserve_cores()
        sandboxes = await open_sandboxes(plan.sandbox, base=plan.base, sharers=self._sharers)
        stack.push_async_callback(sandboxes.close)
        probe = await sandboxes.probe()
        tools = await stack.enter_async_context(open_tools(plan.env, base=plan.base))
        if policy_copy is not None:
            self._images = policy_copy.read_images()
        held = await connect_all(engines, pictures=self._images)
        try:
            self._client = make_client(held, wait_s=self._wait_s, offset=self._index)
        except BaseException:
            await asyncio.gather(*(engine.close() for engine in held))
            raise
        stack.push_async_callback(self._client.close)
        self._engines = engines
        quiet_transformers()
        if policy_copy is not None and policy_copy.tokenizer is not None:
            tokenizer: Any = pickle.loads(policy_copy.tokenizer)
        else:
            tokenizer = load_tokenizer(plan.model)
        models = await stack.enter_async_context(open_reward_models(plan, tokenizer=tokenizer))
        self._worker, chat = make_worker(
            plan,
            generator=self._client,
            tokenizer=tokenizer,
            sandboxes=sandboxes,
            tools=tools,
            reward_models=models.targets,
            images=self._images,
        )
        self._models = models
        stack.enter_context(frozen_heap())
        return HostReport(
            sandbox_text=f"{sandboxes.name} ({probe.isolation.name.lower()} isolation)",
            stop_token_ids=chat.stop_token_ids,
            reward_proofs=models.proofs,
        )

    async def run_group(
        self, task: Task, group_id: str, n: int, sampling: SamplingParams, seed: int
    ) -> tuple[GroupReport, TrajectoryGroup]:
        """Run a group as `RolloutWorker.run_group`, and report on it."""
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

    async def serve_from(
        self, engines: Sequence[EngineAddress], left: Collection[str] = ()
    ) -> None:
        """Use exactly these engines from now on, at the versions of their weights.

        Args:
            engines: that serve.
            left: as `follow`.

        Raises:
            EngineError: some could not be reached; all others are used. Call again to try them.
        """
        # A change is followed to its end before the next one: both compare with what is known.
        async with self._following:
            followed = await follow(
                self._client, self._engines, engines, left=left, pictures=self._images
            )
            self._engines = followed.engines
        if followed.failed:
            raise EngineError(
                f"rollout worker {self._index} does not reach {len(followed.failed)} of "
                f"{len(engines)} engines and uses the others: {'; '.join(followed.failed)}"
            )

    async def hold_turns(self, held: bool) -> None:
        """Stop the clocks of turns while the driver has paused the engines, or start them again."""
        self._client.hold_turns(held)

    async def use_reward_model(self, used: UsedRewardModel) -> None:
        """Score with this version of a reward model from now on.

        Raises:
            AgentrlError: it cannot be loaded here; the present one stays.
        """
        await self._models.use_reward_model(used)

    async def stats(self) -> Mapping[str, EngineStats]:
        """Counts of each engine's answers to this host since it was opened."""
        return self._client.stats()

    async def in_flight(self, most: int) -> InFlightReport:
        """Rollouts that have begun here and not ended, with the `most` oldest by name."""
        return self._worker.in_flight.report(most, self._client.engine_of)

    async def close(self) -> None:
        """Cancel what runs, and release sandboxes and connections."""
        running = list(self._groups.values())
        for group in running:
            group.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await self._stack.aclose()
