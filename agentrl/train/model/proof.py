"""Compares a model in the hands of the trainer with its own forward pass, before it is used.

Every holder of a model (a backend, sharded or not, a frozen policy) runs both: the own forward of
the weights that it holds, and the passes that training makes. What they give for a few short rows
is compared in each form: packed side by side, with a shared prefix, with windows that are shorter
than the rows, and with an image where the model reads them.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from agentrl.batch.packing import pack_micro_batch
from agentrl.batch.records import IntArray, MicroBatch, Row, RowKey
from agentrl.batch.tensors import TensorBatch
from agentrl.models.logit_map import logit_map
from agentrl.models.own_forward import (
    NARROW,
    NARROW_DTYPES,
    OwnRows,
    hides_nothing,
    image_row,
    is_widened,
    narrowed,
    own_numbers,
    probe_ids,
    probe_lengths,
)
from agentrl.models.proof import (
    ModelProof,
    check_causal,
    gaps,
    judged,
    not_widened,
    proven,
    refused_by_name,
    tolerated,
)
from agentrl.models.vision.reader import reader_of
from agentrl.train.model.attention import reading_of_model
from agentrl.train.model.kernels.choose import kernels_used, widened_kernel
from agentrl.train.model.layer_proof import LayerComparison
from agentrl.train.model.logprobs import hidden_states, packed_log_probs
from agentrl.train.model.reading import Reading
from agentrl.types import ImageSpan

_INSTEAD = (
    "Nothing was trained on it; take a model of another family (docs/families.md lists those that "
    "train), or another release of transformers"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofRows:
    """Rows whose numbers a model is asked for, in one form."""

    batch: TensorBatch
    """Rows; all of one length where the own forward reads them."""
    own: int = 0
    """Rows of `batch` that the own forward of the model reads side by side; 0 packs them."""
    shaken: bool = False
    """As in `OwnRows`."""
    window: int | None = None
    """As `narrowed` takes it."""
    layers: LayerComparison | None = None
    """Is fed by the pass."""
    own_ids_NL: Tensor | None = None
    """[N, L] Rows of the own forward that fed `layers`; of packed ones."""


class ProvenPasses(Protocol):
    """A holder of a model, as its proof needs it."""

    holds_whole: bool
    """Whether the passes read the weights of the model where they are, undivided."""

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights as the passes read them; what is stored of divided ones may be wider."""
        ...

    def to_tensors(self, micro: MicroBatch) -> TensorBatch:
        """A micro-batch on the device of the model."""
        ...

    def running(self) -> AbstractContextManager[None]:
        """Packed passes belong inside."""
        ...

    def probe(self, probe: ProofRows) -> Tensor:
        """`probe_numbers` of the model; all ranks call where each holds a part."""
        ...


@torch.no_grad()
def probe_numbers(model: Any, probe: ProofRows) -> Tensor:
    """[R] Log-probabilities of a policy, or [R, E] hidden states before each token of a critic.

    Args:
        model: a language model, or a `ValueModel`; inside the pass of whatever holds its weights.
        probe: packed rows, inside `packed_attention(model)`; or rows for the own forward, whose
            numbers have the shape [N, L - 1] or [N, L, E].
    """
    batch, layers = probe.batch, probe.layers
    with narrowed(model, probe.window), ExitStack() as stack:
        if layers is not None and probe.own_ids_NL is None:
            stack.enter_context(layers.own(model, (probe.own, len(batch.input_ids_T) // probe.own)))
        elif layers is not None and probe.own_ids_NL is not None:
            stack.enter_context(layers.packed(model, batch, probe.own_ids_NL))
        if probe.own:
            image = batch.images[0].span if batch.images else None
            ids_NL = batch.input_ids_T.view(probe.own, -1)
            return own_numbers(model, OwnRows(ids_NL=ids_NL, image=image, shaken=probe.shaken))
        if hasattr(model, "value_head"):
            return hidden_states(model, batch)[batch.source_A].float()
        return packed_log_probs(model, batch).log_probs_R


def find_reading(model: Any, *, who: str) -> None:
    """Find how a model reads rows and forms logits, which has to be done while it is whole.

    Args:
        model: as it was loaded, before a backend takes it apart.
        who: names the model and its role at the beginning of a message.

    Raises:
        ConfigError: its own code fails.
    """
    with refused_by_name(model, who=who, form=lambda: "row by row", instead=_INSTEAD):
        reading_of_model(model)
        if getattr(model, "get_output_embeddings", lambda: None)() is not None:
            logit_map(model)


def prove(passes: ProvenPasses, model: Any, *, who: str = "model.path") -> ModelProof:
    """Compare a model with its own forward pass; all ranks call where each holds a part.

    Args:
        passes: holds the model.
        model: as it was loaded; a backend may have taken it apart since.
        who: names the model and its role at the beginning of a message.

    Raises:
        ConfigError: its numbers differ by more than rounding explains, or cannot be computed.
    """
    widen = passes.holds_whole
    return proven(
        model, lambda again: _judge(passes, model, who, again=again), who=who, widen=widen
    )


def _by_layers(passes: ProvenPasses, model: Any) -> bool:
    """True if no copy of the model shows in float32 what it hides in 16 bits."""
    narrow = passes.dtype in NARROW_DTYPES
    copied = passes.holds_whole and is_widened(model)
    return narrow and not copied and reading_of_model(model) is not Reading.ROWS


def _judge(passes: ProvenPasses, model: Any, who: str, *, again: bool) -> ModelProof:
    work = _Proving(passes, model, who, again=again)
    with (
        refused_by_name(model, who=who, form=lambda: work.form, instead=_INSTEAD),
        widened_kernel(model) if again else nullcontext(),
    ):
        work.text()
        if hides_nothing(model, work.length):
            work.text(window=NARROW)
        if reader_of(model) is not None and not again:
            work.image()
    proof = judged(
        model,
        work.found,
        tolerance=work.tolerance,
        who=who,
        instead=_INSTEAD,
        began=work.began,
        dtype=passes.dtype,
        attention=", ".join(sorted(work.kernels)),
    )
    layers = work.layers
    if layers is None or not layers.gaps or layers.error is not None:
        if layers is not None:
            not_widened(who, layers.error or ValueError("every layer shares keys with others"))
        return proof
    wide = judged(
        model,
        {f"the attention of {layers.worst}": layers.gaps[layers.worst]},
        tolerance=layers.tolerances[layers.worst],
        who=who,
        instead=_INSTEAD,
        began=work.began,
        dtype=torch.float32,
        layers=True,
    )
    return replace(proof, widened=wide)


class _Proving:
    """What one proof has found so far."""

    def __init__(self, passes: ProvenPasses, model: Any, who: str, *, again: bool) -> None:
        self.began = time.perf_counter()
        self.form = ""
        self.found: dict[str, Tensor] = {}
        self.tolerance = 0.0
        self.kernels: set[str] = set()
        self._again = again
        self.layers = LayerComparison() if not again and _by_layers(passes, model) else None
        self._passes, self._model, self._who = passes, model, who
        self._ids: IntArray = probe_ids(model)
        self.length: int = self._ids.shape[1]
        self._lengths = probe_lengths(self.length)

    def text(self, *, window: int | None = None) -> None:
        """Rows of text, packed side by side and as a tree of prefixes."""
        note = "" if window is None else f" with a window of {window}"
        layers = self.layers if window is None else None
        want = self._want(
            self._ids, self._lengths, window=window, form=f"row by row{note}", layers=layers
        )
        rows = [_row(ids[:end]) for ids, end in zip(self._ids, self._lengths, strict=True)]
        for form, sharing in (("packed", False), ("prefix-shared", True)):
            if self._again and not sharing:
                continue  # the last row of the tree shares nothing
            self._compare(
                f"{form}{note}",
                rows,
                want,
                window=window,
                sharing=sharing,
                layers=layers if sharing else None,
            )

    def image(self) -> None:
        """A row with an image, packed behind one of text."""
        reader = reader_of(self._model)
        assert reader is not None
        self.form = "with an image"
        ids, span = image_row(reader, self._ids[0], config=self._model.config)
        text = self._ids[-1]
        want = [
            self._want(text[None], [len(text)], window=None, form="row by row"),
            self._want(ids[None], [len(ids)], window=None, form=self.form, image=span),
        ]
        rows = [_row(text, name="0"), _row(ids, name="1", images=(span,))]
        self._compare("with an image", rows, torch.cat(want), window=None, sharing=False)

    def _want(
        self,
        ids: IntArray,
        lengths: list[int],
        *,
        window: int | None,
        form: str,
        image: ImageSpan | None = None,
        layers: LayerComparison | None = None,
    ) -> Tensor:
        """Numbers of the own forward at every token of some rows but the first ones."""
        self.form = form
        images = () if image is None else (image,)
        rows = [_row(each, name=str(at), images=images) for at, each in enumerate(ids)]
        batch = self._passes.to_tensors(pack_micro_batch(rows))
        probe = ProofRows(batch=batch, own=len(ids), window=window, layers=layers)
        own = self._passes.probe(probe)
        # The roundings of one row are those of all.
        first = self._passes.to_tensors(pack_micro_batch(rows[:1]))
        shaken = self._passes.probe(ProofRows(batch=first, own=1, shaken=True, window=window))
        found = tolerated(own[0], shaken[0], self._passes.dtype)
        self.tolerance = max(self.tolerance, found)
        check_causal(own, ids, tolerance=self.tolerance, model=self._model, who=self._who)
        return torch.cat([row[: end - 1] for row, end in zip(own, lengths, strict=True)])

    def _compare(
        self,
        form: str,
        rows: list[Row],
        want: Tensor,
        *,
        window: int | None,
        sharing: bool,
        layers: LayerComparison | None = None,
    ) -> None:
        self.form = form
        named = [_row(r.input_ids, name=str(at), images=r.images) for at, r in enumerate(rows)]
        micro = pack_micro_batch(named, prefix_sharing=sharing)
        with self._passes.running():
            batch = self._passes.to_tensors(micro)
            ids_NL = torch.as_tensor(self._ids, device=batch.input_ids_T.device)
            with kernels_used() as used:
                answer = self._passes.probe(
                    ProofRows(batch=batch, window=window, layers=layers, own_ids_NL=ids_NL)
                )
        self.kernels |= used
        self.found[form] = gaps(answer, want)


def _row(ids: IntArray, *, name: str = "0", images: tuple[ImageSpan, ...] = ()) -> Row:
    """A row of which every token but the first is looked at."""
    count = len(ids) - 1
    return Row(
        key=RowKey(group_id="proof", rollout_id=name, row_index=0),
        input_ids=np.asarray(ids, dtype=np.int64),
        prompt_length=1,
        mask_R=np.ones(count, dtype=np.bool_),
        sampled_R=np.ones(count, dtype=np.bool_),
        rollout_log_probs_R=np.zeros(count),
        advantages_R=np.zeros(count),
        weight=0.0,
        temperature=1.0,
        images=images,
    )
