"""Numbers of single rows under the model that is being fitted, for those who look at them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agentrl.batch.records import MicroBatch, PackedBatch, RowKey
from agentrl.train.backends.agreement import check_shares, on_every_rank
from agentrl.train.backends.contract import ModelPasses, TrainBackend
from agentrl.train.logprob_worker import by_row

RowNumbers = dict[RowKey, NDArray[np.floating[Any]]]
"""By row, one number per response position, or [1] or [1, O] scores."""


@torch.no_grad()
def row_numbers(backend: TrainBackend, update: PackedBatch, *, scores: bool) -> RowNumbers:
    """Log-probabilities of the response positions of every row, or scores of the rows.

    All ranks call with the same update and get the same numbers, of all of its rows. They are not
    checked: what is not finite is to be seen.

    Args:
        backend: runs the model.
        update: its rows.
        scores: whether the model is one of values, whose rows have one response position.
    """

    def ask(model: ModelPasses, micro: MicroBatch) -> Tensor:
        batch = model.to_tensors(micro)
        return model.values(batch) if scores else model.log_probs(batch).log_probs_R

    part = backend.share(update)
    check_shares(backend, [update], [part])

    def own() -> RowNumbers:
        return dict(by_row(part.micro_batches, backend.run_each(part.micro_batches, ask)))

    with backend.running():
        every = on_every_rank(backend, own)
    return {key: numbers for of_rank in every for key, numbers in of_rank.items()}
