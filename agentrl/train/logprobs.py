"""Log-probabilities of the trained tokens of a micro-batch, under any causal language model.

Rows run through the model side by side in one [1, T] row of tokens: no padding, positions from 0 in
every row, attention inside the row only. The head sees the positions that predict a trained token
and no others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from agentrl.batch.tensors import TensorBatch
from agentrl.errors import TrainError
from agentrl.train.head import head_log_probs


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogProbs:
    """What the policy thinks of the response tokens of a micro-batch."""

    log_probs_R: Tensor
    """[R] Natural log-probability of each trained token at its temperature; 0 elsewhere."""
    entropy_R: Tensor
    """[R] Entropy in nats of the distribution the token was drawn from, without gradient; 0
    elsewhere."""


def packed_log_probs(model: Any, batch: TensorBatch) -> TokenLogProbs:
    """Run the model over packed rows. Call inside `packed_attention(model)`.

    Args:
        model: a `transformers` causal language model.
        batch: on the device of the model.

    Raises:
        TrainError: a model whose parts cannot be told apart.
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
    )
    zeros_R = torch.zeros(len(batch.mask_R), dtype=log_probs_A.dtype, device=log_probs_A.device)
    return TokenLogProbs(
        log_probs_R=zeros_R.index_put((batch.index_A,), log_probs_A),
        entropy_R=zeros_R.index_put((batch.index_A,), entropy_A),
    )


def hidden_states(model: Any, batch: TensorBatch) -> Tensor:
    """[T, E] output of the last layer, after the final norm."""
    body = model.base_model
    if body is model:
        raise TrainError(f"{type(model).__name__} has no body below its head (`base_model`)")
    out = body(
        input_ids=batch.input_ids_T[None],
        position_ids=batch.position_ids_T[None],
        use_cache=False,
        row_lengths=batch.lengths,
    )
    return out.last_hidden_state[0]
