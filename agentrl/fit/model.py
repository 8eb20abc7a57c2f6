"""The model of a fit: loaded, handed to a backend, written out in Hugging Face format."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl.batch.examples import Example
from agentrl.batch.records import RowKey
from agentrl.batch.update_terms import Mismatch
from agentrl.config.fit import FitConfig
from agentrl.config.schema import ChatSection, ModelSection
from agentrl.data.run.paths import RunPaths
from agentrl.disk.logs import quiet_transformers
from agentrl.disk.model_source import model_source, named_source, source_beside
from agentrl.disk.other_models import other_model_source
from agentrl.disk.pinned_models import MODEL
from agentrl.disk.proofs import keep_proofs
from agentrl.errors import ConfigError, RunError
from agentrl.fit.data.sources import RUN
from agentrl.fit.heads import draw_heads
from agentrl.fit.reference import Ask, reference_sums
from agentrl.fit.shared_reference import SharedReference
from agentrl.fit.shown import keep_reference_tokens
from agentrl.images import ImageFolder
from agentrl.models.rotary import check_row_length
from agentrl.models.source import load_tokenizer

CHAT_FILE = "chat_section.json"
"""Section `chat` of the fit that made a reward model, beside its weights."""

if TYPE_CHECKING:
    from agentrl.fit.losses.fitter import FitLoss, Fitter
    from agentrl.train.backends.contract import TrainBackend
    from agentrl.train.backends.ranks import Ranks
    from agentrl.train.checkpoint import HeldState
    from agentrl.train.model.pretrained import Pretrained
    from agentrl.train.reference import Reference


@dataclass(frozen=True, slots=True, kw_only=True)
class FitModel:
    """A model that is being trained, with all that it needs."""

    model: Any
    """A causal language model, or a `ValueModel`; the backend may have divided it."""
    tokenizer: Any
    """Tokenizer of the model."""
    fitter: Fitter
    """Trains it."""
    text: str
    """Describes it."""
    chat: ChatSection
    """How it reads a conversation; a reward model keeps it beside its weights."""

    def hold(self, *, alone: bool = False) -> HeldFit:
        """Hold this rank's part of a checkpoint; nothing touches a disk.

        Args:
            alone: all of it, where the other ranks are gone; else all ranks call.
        """
        from agentrl.train.model.reward_checkpoint import hold_value_model
        from agentrl.train.model.value_head import ValueModel
        from agentrl.train.saving.held_policy import hold_policy, keeper, weights_to_hold
        from agentrl.train.saving.snapshot import StateSnapshot

        backend, snapshot = self.fitter.backend, StateSnapshot()
        if isinstance(self.model, ValueModel):
            held: Any = hold_value_model(
                self.model,
                self.tokenizer,
                weights_to_hold(backend, self.model),
                keeper(snapshot, backend),
                rank=backend.rank,
                world_size=1 if alone else backend.world_size,
            )
            write = partial(held.write, first=backend.rank == 0)
        else:
            write = hold_policy(self.model, self.tokenizer, backend, snapshot, alone=alone).write
        return HeldFit(
            weights=write,
            state=self.fitter.hold(snapshot, alone=alone),
            chat=self.chat if isinstance(self.model, ValueModel) else None,
        )

    def write(self, held: HeldFit, folder: Path) -> None:
        """Write what this rank holds; returns when all have written, whatever fails on one.

        Raises:
            RunError: a rank could not write its part.
            OSError: this one could not.
            TrainError: a number is NaN or infinite.
        """
        backend = self.fitter.backend
        failed: Exception | None = None
        try:
            held.write(folder)
        except Exception as error:  # recording boundary: the others must not wait for this rank
            failed = error
        texts = backend.gather(None if failed is None else str(failed))
        if failed is not None:
            raise failed
        for rank, text in enumerate(texts):
            if text is not None:
                raise RunError(f"rank {rank} could not write its part of the checkpoint: {text}")


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldFit:
    """A checkpoint of a fit at one moment, as far as this rank writes it."""

    weights: Callable[[Path], None]
    """Writes the files of the model."""
    state: HeldState
    """Optimizer and masters."""
    chat: ChatSection | None
    """Kept beside a reward model."""

    def write(self, folder: Path) -> None:
        """Write all of it into a folder."""
        self.weights(folder)
        if self.chat is not None and self.state.rank == 0:
            (folder / CHAT_FILE).write_text(self.chat.model_dump_json(indent=1) + "\n")
        self.state.write(folder)


def open_fit_model(
    config: FitConfig,
    examples: Sequence[Example],
    *,
    base: Path,
    run_dir: Path,
    checkpoint: Path | None,
    reference: FitReference | None,
    mismatches: Sequence[Mismatch],
    shown: Sequence[Example] = (),
    open_ranks: Callable[[], Ranks | None],
    on_reference: Callable[[int, int], None] = lambda pairs, total: None,
) -> FitModel:
    """Load the model of a fit, and whatever its objective needs beside it.

    Args:
        config: `model.path` is what the fit began with.
        examples: all that are trained on or evaluated, for the reference.
        base: folder that relative paths start from.
        run_dir: gets the log-probabilities of the reference.
        checkpoint: to go on from; None begins.
        reference: of `find_reference`.
        mismatches: what `kto` asks of it beside the examples.
        shown: examples of which every token's log-probability under it is kept.
        open_ranks: joins the ranks; None for one process.
        on_reference: see `reference_sums`.

    Raises:
        ConfigError: a model that cannot be loaded, or settings that do not go together.
        RunError: a checkpoint that does not fit.
    """
    from agentrl.fit.losses.fitter import Fitter
    from agentrl.train.backends.choose import make_backend, prove_adapters

    # Ranks that divide weights divide those of the reference, too. Else it comes before they meet:
    # rank 0 may take long, and the others read what it has written.
    divided = config.train.backend.divides_weights
    ranks = open_ranks() if divided else None
    known = None
    if reference is not None:
        known = _sums(
            config,
            examples,
            mismatches,
            shown,
            reference,
            base=base,
            run_dir=run_dir,
            on_progress=on_reference,
            ranks=ranks,
        )
    loss = _loss(config, examples, known, base=base)
    ranks = ranks if divided else open_ranks()
    model, tokenizer, text = _load(config, checkpoint, examples, base=base, run_dir=run_dir)
    check_rows(model, examples, who=f"model.path {config.model.path!r}")
    backend: TrainBackend = make_backend(
        model,
        train=config.train,
        gradient_checkpointing=config.model.gradient_checkpointing,
        ranks=ranks,
    )
    fitter = Fitter(backend, loss, train=config.train, prefix=config.objective.kind)
    if checkpoint is not None:
        fitter.load(checkpoint)
        prove_adapters(backend, model)
    if backend.rank == 0:
        keep_proofs(run_dir, {MODEL: backend.proof})
    return FitModel(
        model=model,
        tokenizer=tokenizer,
        fitter=fitter,
        text=text if backend.proof is None else f"{text}; {backend.proof.text}",
        chat=config.chat,
    )


def check_rows(model: Any, examples: Sequence[Example], *, who: str) -> None:
    """Refuse examples with a token that the model has no embedding for, or longer than it reads."""
    rows = [(e.prompt_ids, answer.ids) for e in examples for answer in e.answers]
    longest = max((len(prompt) + len(ids) for prompt, ids in rows), default=0)
    check_row_length(model.config, longest, who=who, key="the longest example of the data")
    last = max((token for row in rows for ids in row for token in ids), default=0)
    if last >= (known := len(model.get_input_embeddings().weight)):
        raise ConfigError(
            f"{who} has {known} rows in its embedding, and the data has the token id {last}; give "
            "the tokenizer that the model was trained with, or save the model after "
            f"model.resize_token_embeddings({last + 1}) and train those rows first"
        )


def _load(
    config: FitConfig,
    checkpoint: Path | None,
    examples: Sequence[Example],
    *,
    base: Path,
    run_dir: Path,
) -> tuple[Any, Any, str]:
    quiet_transformers()
    if config.objective.kind == "rm":
        from agentrl.config.schema import CriticSection
        from agentrl.train.model.reward_checkpoint import require_padding
        from agentrl.train.model.value_head import load_value_model

        # Adapters belong on the model they were begun on; the trainer's state brings them back.
        fresh = checkpoint is None or config.train.lora is not None
        path = named_source(config.model) if fresh else str(checkpoint)
        section = config.model.model_copy(update={"path": path})
        outputs, heads = config.objective.outputs, config.objective.heads
        model = load_value_model(
            CriticSection(path=path),
            section,
            outputs=outputs,
            heads=heads,
            in_parts=config.train.backend.divides_weights,
        )
        draw_heads(model.value_head.weight, config)
        # Differences of two scores have no use for it, and what loads the checkpoint has none.
        model.value_head.bias.requires_grad_(False)
        # Nothing is padded here, so the padding token, which a reward model must have, is a token
        # as others and learns; otherwise a resumed fit would go another way.
        model.body.get_input_embeddings().padding_idx = None
        if config.train.lora is not None:
            from agentrl.train.model.load import adapt

            adapt(
                model.body,
                config.train.lora,
                base=model_source(section),
                device=next(model.parameters()).device,
                begins=checkpoint is None,
            )
        elif config.train.freeze:
            from agentrl.train.model.freeze import freeze_parts

            freeze_parts(model.body, config.train.freeze)
        tokenizer = load_tokenizer(section)
        require_padding(tokenizer)
        if bool(model.value_head.bias.any()):
            raise ConfigError(
                f"model.path {config.model.path!r} has a head with a bias, which no checkpoint of "
                "a reward model keeps; begin with one whose head has none, or a language model"
            )
        several = f" of {heads} heads" if heads > 1 else ""
        return model, tokenizer, f"reward model{several} on {config.model.path}"
    from agentrl.train.model.load import load_trained

    pretrained = load_trained(
        config.model, config.train, checkpoint=str(checkpoint) if checkpoint else None
    )
    _open_images(config, pretrained, examples, base=base, run_dir=run_dir)
    return pretrained.model, pretrained.tokenizer, pretrained.description


def _open_images(
    config: FitConfig,
    pretrained: Pretrained,
    examples: Sequence[Example],
    *,
    base: Path,
    run_dir: Path,
) -> None:
    """Open the images of its data for a vision-language model: of runs, or beside pairs of them."""
    if pretrained.images is None:
        shown = (e for e in examples if any(answer.images for answer in e.answers))
        if first := next(shown, None):
            raise ConfigError(
                f"example {first.id!r} has images, and the model {pretrained.path!r} reads text "
                "only; give the vision-language model that the run began with"
            )
        return
    sources = [section.source for section in (config.data, *config.eval.datasets.values())]
    paths = [base / Path(s.removeprefix(RUN)).expanduser() for s in sources]
    folders = [path.parent if path.is_file() else path for path in paths]
    pretrained.images.folder = ImageFolder(
        RunPaths(run_dir).images, others=[RunPaths(folder).images for folder in folders]
    )


def _loss(
    config: FitConfig,
    examples: Sequence[Example],
    known: Mapping[RowKey, float] | None,
    *,
    base: Path,
) -> FitLoss:
    from agentrl.fit.losses.kto import KtoLoss
    from agentrl.fit.losses.objectives import LikelihoodLoss, PreferenceLoss
    from agentrl.fit.losses.pair_registry import find_pair_loss
    from agentrl.fit.losses.reward_objective import RewardLoss

    objective, by_id = config.objective, {example.id: example for example in examples}
    if objective.kind == "sft":
        return LikelihoodLoss()
    if objective.kind == "rm":
        return RewardLoss(objective, by_id)
    if objective.unpaired:
        assert known is not None
        return KtoLoss(objective, reference=known, examples=by_id)
    spec = find_pair_loss(objective.loss, base=base)
    return PreferenceLoss(objective, spec, reference=known, examples=by_id)


def _sums(
    config: FitConfig,
    examples: Sequence[Example],
    mismatches: Sequence[Mismatch],
    shown: Sequence[Example],
    reference: FitReference,
    *,
    base: Path,
    run_dir: Path,
    on_progress: Callable[[int, int], None],
    ranks: Ranks | None,
) -> Mapping[RowKey, float]:
    section = config.model.model_copy(update={"path": reference.path})

    @cache
    def opened() -> Reference:
        from agentrl.train.backends.lanes import lane_count
        from agentrl.train.model.pretrained import load_pretrained
        from agentrl.train.reference import Reference

        pretrained = load_pretrained(section, in_parts=ranks is not None)
        _open_images(config, pretrained, examples, base=base, run_dir=run_dir)
        loaded = pretrained.model
        if ranks is None:
            found = Reference(loaded, lanes=lane_count(loaded, None))
        else:
            assert config.train.backend.kind != "torch"  # a copy on every rank
            found = Reference(loaded, ranks=ranks, offload=config.train.backend.offload)
        found.frozen.prove(who=f"objective.reference {reference.path!r}")
        if ranks is None or ranks.rank == 0:
            keep_proofs(run_dir, {"objective.reference": found.frozen.proof})
        return found

    shared = None if ranks is None else SharedReference(ranks, opened)
    if shared is not None and not shared.first:
        return shared.follow()

    def open_reference() -> Ask:
        return opened().row_log_probs if shared is None else shared.ask

    name, tokens = f"{reference.path} {reference.digest}", config.train.micro_batch_tokens
    sharing = config.train.prefix_sharing
    found = reference_sums(
        run_dir,
        examples,
        mismatches,
        model=name,
        micro_batch_tokens=tokens,
        prefix_sharing=sharing,
        open_reference=open_reference,
        on_progress=on_progress,
    )
    keep_reference_tokens(
        run_dir,
        shown,
        model=name,
        micro_batch_tokens=tokens,
        prefix_sharing=sharing,
        open_reference=open_reference,
    )
    if shared is not None:
        shared.end(found)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class FitReference:
    """The model that a fit compares with, as it is now."""

    path: str
    """Folder or hub name; a run directory is resolved to a checkpoint."""
    digest: str
    """Of its dtype and its weights, where they are files here."""


def find_reference(
    config: FitConfig, *, base: Path, pinned: str | None = None
) -> FitReference | None:
    """The reference of a fit; None without one. Reads its weights once.

    Args:
        config: of the fit.
        base: folder that relative paths of the config start from.
        pinned: path that it had when the fit began; None while it has not.
    """
    from agentrl.fit.losses.pair_registry import find_pair_loss

    section = reference_section(config, base=base)
    if section is None or config.objective.kind != "dpo":
        return None
    unpaired = config.objective.unpaired
    if not unpaired and not find_pair_loss(config.objective.loss, base=base).needs_reference:
        return None
    path = pinned or model_source(section)
    folder, found = Path(path), hashlib.sha256(section.dtype.encode())
    for file in sorted(folder.glob("*.safetensors")) if folder.is_dir() else ():
        with file.open("rb") as opened:
            found.update(hashlib.file_digest(opened, "sha256").digest())
    return FitReference(path=path, digest=found.hexdigest())


def reference_section(config: FitConfig, *, base: Path) -> ModelSection | None:
    """The model that a fit is to compare with; None without one."""
    if config.objective.kind != "dpo" or config.objective.reference == "none":
        return None
    named = config.objective.reference
    if named == "model":
        return config.model
    source = source_beside(config.model, other_model_source(named, base))
    return config.model.model_copy(update={"path": source, "overrides": {}})
