"""Rows of a micro-batch of a fit: which belong together, and numbers of each.

Legend: `_N` rows, `_R` response positions, `_P` pairs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from agentrl.batch.examples import CHOSEN, REJECTED
from agentrl.batch.records import MicroBatch, RowKey
from agentrl.batch.tensors import TensorBatch
from agentrl.batch.update_terms import CENTERED
from agentrl.errors import TrainError


@dataclass(frozen=True, slots=True, kw_only=True)
class PairIndex:
    """Places of the pairs of a micro-batch among its rows. Legend: `_P` pairs."""

    names: tuple[str, ...]
    """[P] Example ids."""
    chosen_P: Tensor
    """[P] int64 row of the chosen answer."""
    rejected_P: Tensor
    """[P] int64 row of the rejected answer."""

    @classmethod
    def of(cls, rows: Sequence[RowKey], device: torch.device) -> PairIndex:
        """Find the pairs; padding and rows that only center rewards have none.

        Raises:
            TrainError: an answer without the other one, which would be compared with nothing.
        """
        found: dict[str, dict[int, int]] = {}
        for index, key in enumerate(rows):
            if key.row_index == CENTERED:
                continue
            found.setdefault(key.rollout_id, {})[key.row_index] = index
        for name, answers in found.items():
            if set(answers) != {CHOSEN, REJECTED}:
                raise TrainError(
                    f"pair {name!r} came with answers {sorted(answers)} to one micro-batch, "
                    "expected both"
                )

        def rows_of(which: int) -> Tensor:
            return torch.tensor([a[which] for a in found.values()], dtype=torch.int64).to(device)

        return cls(names=tuple(found), chosen_P=rows_of(CHOSEN), rejected_P=rows_of(REJECTED))


def row_sums(values_R: Tensor, micro: MicroBatch, batch: TensorBatch) -> Tensor:
    """[N] Sum of the trained positions of each row, in float64."""
    row_R = torch.as_tensor(micro.row_R).to(values_R.device)
    out = torch.zeros(len(micro.rows), dtype=torch.float64, device=values_R.device)
    return out.index_add(0, row_R, torch.where(batch.mask_R, values_R.double(), 0.0))


def row_weights(micro: MicroBatch, batch: TensorBatch) -> Tensor:
    """[N] Weight of each row in float64, which all of its trained tokens have."""
    trained = np.flatnonzero(micro.mask_R)
    _, first = np.unique(micro.row_R[trained], return_index=True)
    at_N = torch.as_tensor(trained[first], device=batch.weights_R.device)
    return batch.weights_R[at_N].double()


def reference_of(known: Mapping[RowKey, float], micro: MicroBatch, *, like: Tensor) -> Tensor:
    """[N] Log-probability of each row under the reference.

    Raises:
        TrainError: a row that the reference was not asked about.
    """
    missing = [str(key) for key in micro.rows if key not in known]
    if missing:
        raise TrainError(f"the reference gave no log-probability for row {missing[0]}")
    return torch.tensor([known[key] for key in micro.rows], dtype=like.dtype, device=like.device)
