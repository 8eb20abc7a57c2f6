"""Log-probabilities of the trained tokens of a micro-batch, under any causal language model.

Rows run through the model side by side in one [1, T] row of tokens: no padding, positions from 0 in
every row, attention inside the row only, a shared prefix once. The head sees the positions that
predict a token the loss looks at and no others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from agentrl.batch.tensors import TensorBatch
from agentrl.errors import TrainError
from agentrl.models.lm_head import has_float32_head
from agentrl.models.logit_map import body_of, logit_map
from agentrl.models.rotary import rotary_limit
from agentrl.models.vision.embed import language_model
from agentrl.train.model.attention import reading_of_model
from agentrl.train.model.head_logprobs import GradientOf, head_numbers
from agentrl.train.model.image_rows import image_arguments
from agentrl.train.model.kernels.choose import kernel_of
from agentrl.train.model.reading import Reading, arguments
from agentrl.train.model.segments import Segments, path_ranges, starts


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogProbs:
    """Log-probability and entropy of the response tokens of a micro-batch."""

    log_probs_R: Tensor
    """[R] Natural log-probability, at its temperature, of each token the loss looks at; 0
    elsewhere."""
    entropy_R: Tensor
    """[R] Entropy in nats of the whole distribution, at the temperature of the token; 0 elsewhere.
    With a gradient where `TensorBatch.entropy_gradient` asks for it."""
    top_log_probs_RK: Tensor | None = None
    """[R, K] Log-probabilities of `TensorBatch.more_AK`, with gradient, or else of the likeliest
    tokens (`TensorBatch.top`), without; 0 elsewhere. None where neither was asked for."""
    top_ids_RK: Tensor | None = None
    """[R, K] int64 ids of the likeliest tokens; None where they were not asked for."""

    def tensors(self) -> tuple[Tensor, ...]:
        """All that there are, in the order of the fields."""
        found = (self.log_probs_R, self.entropy_R, self.top_log_probs_RK, self.top_ids_RK)
        return tuple(tensor for tensor in found if tensor is not None)


def of_tensors(found: Sequence[Tensor]) -> TokenLogProbs:
    """Put together again what `TokenLogProbs.tensors` gave."""
    log_probs, entropy, *top = found
    return TokenLogProbs(
        log_probs_R=log_probs,
        entropy_R=entropy,
        top_log_probs_RK=top[0] if top else None,
        top_ids_RK=top[1] if len(top) > 1 else None,
    )


LossOf = Callable[[TokenLogProbs], Tensor]
"""From log-probabilities and entropies to a loss in which each token's share depends on its own
alone."""


def packed_log_probs(
    model: Any, batch: TensorBatch, *, loss_of: LossOf | None = None
) -> TokenLogProbs:
    """Run the model over packed rows. Call inside `packed_attention(model)`.

    Args:
        model: a `transformers` causal language model.
        batch: on the device of the model.
        loss_of: what the backward pass will be of, up to a factor. Where logits are large it is
            asked for one chunk of tokens after the other, with the sampler's numbers at the other
            tokens, so that the head need not keep its output; see `head_log_probs`.

    Raises:
        TrainError: a model whose body and head cannot be distinguished.
    """
    hidden_TE = hidden_states(model, batch)
    head = model.get_output_embeddings()
    if head is None:
        raise TrainError(
            f"{type(model).__name__} has no output embeddings, so no log-probabilities"
        )
    found = head_numbers(
        # Mamba's states are float32 up to its head.
        hidden_TE[batch.source_A].to(head.weight.dtype),
        head.weight,
        batch.target_A,
        bias_V=getattr(head, "bias", None),
        temperature_A=batch.temperature_A,
        gradient_of=None if loss_of is None else _gradient_of(loss_of, batch),
        float32_logits=has_float32_head(model),
        entropy_gradient=batch.entropy_gradient,
        more_AK=batch.more_AK,
        top=batch.top,
        logit_map=logit_map(model),
    )
    at, like = (batch.index_A,), found.log_probs_A
    zeros_R = torch.zeros(len(batch.mask_R), dtype=like.dtype, device=like.device)
    top = top_ids = None
    if batch.more_AK is not None:
        top = _rows_of_zeros(zeros_R, found.more_AK).index_put(at, found.more_AK)
    elif batch.top is not None:
        top = _rows_of_zeros(zeros_R, found.top_log_probs_AK).index_put(at, found.top_log_probs_AK)
        top_ids = _rows_of_zeros(zeros_R, found.top_ids_AK).index_put(at, found.top_ids_AK)
    return TokenLogProbs(
        log_probs_R=zeros_R.index_put(at, found.log_probs_A),
        entropy_R=zeros_R.index_put(at, found.entropy_A),
        top_log_probs_RK=top,
        top_ids_RK=top_ids,
    )


def _rows_of_zeros(zeros_R: Tensor, numbers_AK: Tensor) -> Tensor:
    """[R, K] of the dtype of [A, K]."""
    return zeros_R.new_zeros((len(zeros_R), numbers_AK.shape[1]), dtype=numbers_AK.dtype)


def _gradient_of(loss_of: LossOf, batch: TensorBatch) -> GradientOf:
    """The loss as the head wants it: from the numbers of a part to the gradient in them."""
    others_R = torch.where(batch.sampled_R & batch.mask_R, batch.rollout_log_probs_R, 0.0)

    def gradient(part: slice, log_probs: Tensor, entropy: Tensor) -> Tensor:
        at = batch.index_A[part]
        with torch.enable_grad():
            leaf_R = others_R.index_put((at,), log_probs.to(others_R.dtype)).requires_grad_()
            entropy_R = torch.zeros_like(others_R).index_put((at,), entropy.to(others_R.dtype))
            entropy_R.requires_grad_(batch.entropy_gradient)
            loss = loss_of(TokenLogProbs(log_probs_R=leaf_R, entropy_R=entropy_R))
            if not batch.entropy_gradient:
                (found_R,) = torch.autograd.grad(loss, leaf_R)
                return found_R[at]
            both = torch.autograd.grad(loss, (leaf_R, entropy_R), materialize_grads=True)
            return torch.stack([found_R[at] for found_R in both])

    return gradient


def hidden_states(model: Any, batch: TensorBatch) -> Tensor:
    """[T, E] output of the last layer, after the final norm.

    A model that cannot keep packed rows apart reads one row after the other, and a shared prefix
    with each of them.
    """
    body = body_of(model)
    if body is model:
        raise TrainError(f"{type(model).__name__} has no body below its head (`base_model`)")
    limit = rotary_limit(body.config) if hasattr(body, "config") else None
    if limit is not None and int(batch.position_ids_T.max()) >= limit:
        raise TrainError(
            f"a row has {int(batch.position_ids_T.max()) + 1} tokens, and the rotary embedding of "
            f"{type(body).__name__} has other frequencies for all rows beyond {limit}; keep rows "
            f"at {limit} tokens or below"
        )
    segments = Segments(lengths=batch.lengths, parents=batch.parents, kernel=kernel_of(model))
    if batch.images or batch.blank_passes:
        return _read_with_images(model, batch, segments)
    reading = reading_of_model(model)
    if reading is Reading.ROWS:
        return _row_by_row(body, batch, segments)
    given = arguments(reading, batch.input_ids_T, batch.position_ids_T, segments)
    return body(**given).last_hidden_state[0]


def _read_with_images(model: Any, batch: TensorBatch, segments: Segments) -> Tensor:
    """As `hidden_states` of text, with features in the place of placeholders."""
    out = language_model(model)(**image_arguments(model, batch, segments), use_cache=False)
    return out.last_hidden_state[0]


def _row_by_row(body: Any, batch: TensorBatch, segments: Segments) -> Tensor:
    """Every token's state from the first row that reads it; equal in all rows that share it."""
    parts: list[Tensor] = []
    inner, done = set(segments.parents), 0
    for segment in range(len(segments.lengths)):
        if segment in inner:
            continue
        path_L = torch.cat(
            [torch.arange(start, end) for start, end in path_ranges(segments, segment)]
        ).to(batch.input_ids_T.device)
        given = arguments(
            Reading.ROWS, batch.input_ids_T[path_L], batch.position_ids_T[path_L], segments
        )
        hidden_LE = body(**given).last_hidden_state[0]
        # Depth first: what no earlier row has read is the end of the path, up to here.
        end = starts(segments)[segment] + segments.lengths[segment]
        parts.append(hidden_LE[len(path_L) - (end - done) :])
        done = end
    return torch.cat(parts)
