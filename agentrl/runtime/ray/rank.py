"""One trainer rank without Ray: what a `TrainerActor` is wrapped around."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl.data import TrajectoryStore
from agentrl.data.run.paths import RunPaths
from agentrl.data.run.tokenizer_file import write_tokenizer
from agentrl.disk.model_source import served_source
from agentrl.disk.proofs import ENGINE, keep_proofs
from agentrl.models.stored_form import StoredForm
from agentrl.models.vision.checks import open_images
from agentrl.runtime.assembly.engine_addresses import EngineAddress
from agentrl.runtime.assembly.hints import open_hints
from agentrl.runtime.assembly.layout import engine_width
from agentrl.runtime.assembly.policy_check import check_policy
from agentrl.runtime.assembly.rollout_host import PolicyCopy, copy_policy
from agentrl.runtime.assembly.step_batch import StepMaker
from agentrl.runtime.assembly.trainer import make_trainer
from agentrl.runtime.assembly.weight_check import Digests, Turn, probe_prompts
from agentrl.runtime.assembly.weight_stream import sent_digests, sent_weights
from agentrl.runtime.ray.actor import RankSpec
from agentrl.runtime.ray.sender import SenderFacts
from agentrl.runtime.ray.step_parts import StepParts
from agentrl.serving.embedded import EmbeddedEngine
from agentrl.serving.lean import EngineServer
from agentrl.sync import make_sender
from agentrl.train.backends.ranks import Ranks
from agentrl.train.logprob_worker import turn_log_probs
from agentrl.train.model.load import load_trained
from agentrl.train.model.lora import base_weights
from agentrl.train.saving.held_trainer import hold_trained

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from agentrl.config.training import TrainBackendSection
    from agentrl.data import TrajectoryStore
    from agentrl.runtime.ray.actor import ActorSpec
    from agentrl.sync import WeightSender
    from agentrl.train import Trainer
    from agentrl.train.backends.ranks import Ranks
    from agentrl.train.model.pretrained import Pretrained


class Rank:
    """Model, trainer, store and engine of one rank. Blocks; one call at a time."""

    def __init__(
        self,
        spec: ActorSpec,
        rank_spec: RankSpec,
        pretrained: Pretrained,
        trainer: Trainer,
        others: Ranks | None,
        layout: list[tuple[str, str, tuple[int, ...]]],
    ) -> None:
        self.trainer: Trainer = trainer
        """Changes the weights of the model."""
        self.store: TrajectoryStore = TrajectoryStore(rank_spec.trajectories)
        """The store that every rank writes its part of a step to."""
        self.steps: StepParts = StepParts(
            StepMaker(
                spec.plan.schedule,
                hints=open_hints(spec.plan.trainer, spec.plan.tasks, spec.plan.rollouts.chat),
                checkpoint=rank_spec.checkpoint,
            ),
            self.store,
            rank=rank_spec.rank,
            world_size=rank_spec.world_size,
        )
        """Prepares this rank's part of every step."""
        self._plan, self._rank_spec = spec.plan, rank_spec
        self._pretrained = pretrained
        self._others, self._layout = others, layout
        self._sharded = spec.plan.trainer.train.backend.kind != "torch"
        self._run_dir, self._weights = spec.run_dir, spec.run_dir / "weights"
        self._sender: WeightSender | None = None
        self._sent: Callable[[], Iterable[Any]] = trainer.weights
        self._sent_by = ""
        self._held: Callable[[Path], None] | None = None
        self._batch: Callable[[Path], None] = lambda folder: None

    @classmethod
    def load(cls, spec: ActorSpec, rank_spec: RankSpec, meeting: str) -> Rank:
        """Load the model and the trainer state, and meet the other ranks.

        Args:
            spec: of the actor.
            rank_spec: of the rank.
            meeting: where the ranks meet, from rank 0.

        Raises:
            AgentrlError: whatever does not fit, named.
        """
        plan = spec.plan.trainer
        checkpoint = str(rank_spec.checkpoint) if rank_spec.checkpoint else None
        check_policy(
            served_source(plan.model, plan.train.lora, checkpoint=checkpoint),
            plan.model,
            spec.plan.rollouts.chat,
            context=plan.rollout.max_context_tokens,
        )
        pretrained = load_trained(plan.model, plan.train, checkpoint=checkpoint)
        open_images(
            plan, spec.plan.engines.serving, pretrained.images, RunPaths(spec.run_dir).images
        )
        if rank_spec.rank == 0:
            write_tokenizer(RunPaths(spec.run_dir).tokenizer_file, pretrained.tokenizer)
        others = _join(plan.train.backend, pretrained.device, rank_spec, meeting)
        # A sharded backend takes the model apart; engines get the layout it had.
        model = pretrained.model
        form = StoredForm(model, (name for name, _ in base_weights(model)))
        layout = _layout(form(base_weights(model)))
        trainer = make_trainer(
            plan,
            pretrained.model,
            run_dir=spec.run_dir,
            ranks=others,
            checkpoint=rank_spec.checkpoint,
        )
        return cls(spec, rank_spec, pretrained, trainer, others, layout)

    @property
    def description(self) -> str:
        """One line that describes the model."""
        proof = self.trainer.backend.proof
        text = self._pretrained.description
        return text if proof is None else f"{text}, {proof.text}"

    @property
    def version(self) -> int:
        """Version of the weights."""
        return self.trainer.version

    @property
    def policy_copy(self) -> PolicyCopy | None:
        """Tokenizer and image processor for processes of rollout workers; rank 0 gives them."""
        if self._rank_spec.rank != 0:
            return None
        return copy_policy(self._pretrained.tokenizer, self._pretrained.images)

    def probe_prompts(self) -> list[list[int]]:
        """Prompts of the turns after which engines are compared with the ranks."""
        return probe_prompts(self._pretrained.tokenizer)

    def sent_digests(self) -> Digests:
        """Digests of the weights of a push; all ranks call where each holds a part."""
        return sent_digests(self._pretrained.model, self.trainer)

    def turn_log_probs(self, turns: Sequence[Turn]) -> list[list[float]]:
        """Log-probabilities of sampled turns; all ranks call where each holds a part."""
        return turn_log_probs(self.trainer.backend, turns)

    async def serve(self, stack: AsyncExitStack, *, host: str) -> EngineAddress | None:
        """Serve the embedded engine on these weights to clients with the secret; None with vLLM.

        Args:
            stack: closes it.
            host: address to listen on.
        """
        section = self._plan.engines.serving
        if section.engine != "embedded":
            return None
        engine = EmbeddedEngine(
            self._pretrained.model,
            section=section,
            max_context_tokens=self._plan.engines.rollout.max_context_tokens,
            version=self.version,
            name=f"embedded-{self._rank_spec.rank}",
        )
        stack.push_async_callback(engine.close)
        if self._rank_spec.rank == 0:
            keep_proofs(self._run_dir, {ENGINE: engine.proof})
        server = await stack.enter_async_context(EngineServer(engine, host=host))
        return EngineAddress(name=engine.name, address=server.address, secret=server.secret)

    def give_up(self) -> bool:
        """Forget the step that was abandoned; True if weights have moved in it."""
        self.steps.maker.forget()
        return self.trainer.mid_step

    def hold(self) -> None:
        """Hold this rank's part of weights and trainer state as they are now; all ranks call."""
        self._batch = self.steps.maker.hold()
        self._held = hold_trained(self._pretrained.model, self._pretrained.tokenizer, self.trainer)

    def write(self, folder: Path) -> None:
        """Write what is held into the folder that all ranks write into; beside the next steps."""
        held, self._held = self._held, None
        assert held is not None, "nothing is held"
        held(folder)
        if self._rank_spec.rank == 0:
            self._batch(folder)

    def open_sender(self, backend: str, *, address: str, cuda: bool) -> SenderFacts:
        """Make the weight sender.

        Args:
            backend: as in `agentrl.sync.make_sender`.
            address: of this machine as the engines reach it.
            cuda: whether trainer and engines have GPUs.
        """
        self._sender = make_sender(
            self._plan.engines.sync,
            backend=backend,
            directory=self._weights,
            address=address,
            cuda=cuda,
            workers=engine_width(self._plan.engines.serving),
            describe=lambda: self._layout if self._sharded else _layout(self._sent()),
        )
        self._take_part(backend)
        return SenderFacts(
            backend=self._sender.backend,
            streams=self._sender.streams,
            meets=hasattr(self._sender, "meet"),
            gathers=self._sharded,
        )

    def _take_part(self, backend: str) -> None:
        self._sent = sent_weights(
            self._plan.trainer.train.lora, self._pretrained.model, self.trainer, backend=backend
        )
        self._sent_by = backend

    def ask_sender(self, method: str, *args: Any) -> Any:
        """Call the sender; `send` with a version sends the weights of this rank.

        Where ranks hold parts, the others are in `gather_weights` meanwhile.
        """
        assert self._sender is not None
        if method == "send":
            weights = iter(self._sent())
            try:
                return self._sender.send(weights, *args)
            finally:
                if self._sharded:  # the others go on to the end, also of a send that failed
                    collections.deque(weights, maxlen=0)
        if method == "abort":
            return getattr(self._sender, "abort", self._sender.close)()
        return getattr(self._sender, method)(*args)

    def gather_weights(self, backend: str) -> None:
        """Send this rank's parts to rank 0 while that one sends, of what goes with its backend."""
        if self._sent_by != backend:
            self._take_part(backend)
        collections.deque(self._sent(), maxlen=0)

    def close(self) -> None:
        """Leave the other ranks and release what the sender holds."""
        if self._sender is not None:
            self._sender.close()
        if self._others is not None:
            self._others.close()


def _join(
    backend: TrainBackendSection, device: torch.device, rank_spec: RankSpec, meeting: str
) -> Ranks | None:
    """The processes that train together; None for this one alone."""
    if rank_spec.world_size == 1 and backend.kind == "torch":
        return None
    return Ranks(meeting, rank=rank_spec.rank, world_size=rank_spec.world_size, device=device)


def _layout(weights: Iterable[tuple[str, Tensor]]) -> list[tuple[str, str, tuple[int, ...]]]:
    """Name, dtype and shape of each."""
    return [(n, str(t.dtype).removeprefix("torch."), tuple(t.shape)) for n, t in weights]
