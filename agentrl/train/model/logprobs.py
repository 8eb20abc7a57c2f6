"""Log-probabilities of the trained tokens of a micro-batch, under any causal language model.

Rows run through the model side by side in one [1, T] row of tokens: no padding, positions from 0 in
every row, attention inside the row only, a shared prefix once. The head sees the positions that
predict a token the loss looks at and no others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from agentrl.batch.tensors import TensorBatch
from agentrl.errors import TrainError
from agentrl.lm_head import has_float32_head
from agentrl.train.model.head_logprobs import GradientOf, head_log_probs
from agentrl.train.model.segments import Segments, path_ranges, starts
from agentrl.train.model.stateful_layers import carries_state


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogProbs:
    """Log-probability and entropy of the response tokens of a micro-batch."""

    log_probs_R: Tensor
    """[R] Natural log-probability, at its temperature, of each token the loss looks at; 0
    elsewhere."""
    entropy_R: Tensor
    """[R] Entropy in nats of the distribution the token was drawn from, without gradient; 0
    elsewhere."""


LossOf = Callable[[TokenLogProbs], Tensor]
"""From log-probabilities to a loss in which each token's share depends on its own alone."""


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
    log_probs_A, entropy_A = head_log_probs(
        hidden_TE[batch.source_A],
        head.weight,
        batch.target_A,
        bias_V=getattr(head, "bias", None),
        temperature_A=batch.temperature_A,
        gradient_of=None if loss_of is None else _gradient_of(loss_of, batch),
        float32_logits=has_float32_head(model),
    )
    zeros_R = torch.zeros(len(batch.mask_R), dtype=log_probs_A.dtype, device=log_probs_A.device)
    return TokenLogProbs(
        log_probs_R=zeros_R.index_put((batch.index_A,), log_probs_A),
        entropy_R=zeros_R.index_put((batch.index_A,), entropy_A),
    )


def _gradient_of(loss_of: LossOf, batch: TensorBatch) -> GradientOf:
    """The loss as the head wants it: from the log-probabilities of a part to their gradient."""
    others_R = torch.where(batch.sampled_R & batch.mask_R, batch.rollout_log_probs_R, 0.0)

    def gradient(part: slice, log_probs: Tensor, entropy: Tensor) -> Tensor:
        at = batch.index_A[part]
        with torch.enable_grad():
            leaf_R = others_R.index_put((at,), log_probs.to(others_R.dtype)).requires_grad_()
            entropy_R = torch.zeros_like(others_R).index_put((at,), entropy.to(others_R.dtype))
            loss = loss_of(TokenLogProbs(log_probs_R=leaf_R, entropy_R=entropy_R))
            (found_R,) = torch.autograd.grad(loss, leaf_R)
        return found_R[at]

    return gradient


def hidden_states(model: Any, batch: TensorBatch) -> Tensor:
    """[T, E] output of the last layer, after the final norm.

    A model with layers that carry a state from token to token cannot keep packed rows apart: it
    reads one row after the other, and a shared prefix with each of them.
    """
    body = model.base_model
    if body is model:
        raise TrainError(f"{type(model).__name__} has no body below its head (`base_model`)")
    segments = Segments(lengths=batch.lengths, parents=batch.parents)
    if carries_state(model):
        return _row_by_row(body, batch, segments)
    return _read(body, batch.input_ids_T, batch.position_ids_T, segments)


def _read(body: Any, input_ids_T: Tensor, position_ids_T: Tensor, segments: Segments) -> Tensor:
    out = body(
        input_ids=input_ids_T[None],
        position_ids=position_ids_T[None],
        use_cache=False,
        segments=segments,
    )
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
        alone = Segments.of_rows([len(path_L)])
        hidden_LE = _read(body, batch.input_ids_T[path_L], batch.position_ids_T[path_L], alone)
        # Depth first: what no earlier row has read is the end of the path, up to here.
        end = starts(segments)[segment] + segments.lengths[segment]
        parts.append(hidden_LE[len(path_L) - (end - done) :])
        done = end
    return torch.cat(parts)
