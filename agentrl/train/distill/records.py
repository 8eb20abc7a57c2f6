"""Numbers of a teacher for the tokens of a step, by row and for a micro-batch.

Legend: `_R` response positions, `_K` the teacher's likeliest tokens (K is 0 in the form of the
sampled token).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agentrl.batch.records import IntArray, MicroBatch, RowKey
from agentrl.errors import TrainError

Numbers = NDArray[np.floating[Any]]
TeacherPrompts = Mapping[RowKey, IntArray]
"""By row: ids of the prompt that the teacher reads in place of the student's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TeacherRow:
    """A teacher's log-probabilities for one row, at the temperature it was sampled at."""

    sampled_R: Numbers
    """[R] Log-probability of the sampled token; anything where nothing is trained."""
    ids_RK: NDArray[np.int64]
    """[R, K] Ids of its likeliest tokens, the likeliest first; anything where nothing is trained.
    """
    log_probs_RK: Numbers
    """[R, K] Log-probability of each of them, -inf for one that it cannot sample."""


RowTeacher = Mapping[RowKey, TeacherRow]
"""A teacher's numbers for the rows of a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TeacherTokens:
    """A teacher's numbers for a micro-batch; no gradient flows to them."""

    sampled_R: Tensor
    """[R] Log-probability of the sampled token; anything where nothing is trained."""
    ids_RK: Tensor
    """[R, K] int64; 0 where nothing is trained."""
    log_probs_RK: Tensor
    """[R, K]; anything where nothing is trained."""


class Teacher(Protocol):
    """A source of a teacher's log-probabilities."""

    def ask(
        self, micro_batches: Sequence[MicroBatch], *, prompts: TeacherPrompts | None
    ) -> RowTeacher:
        """Numbers of every row in `micro_batches`. Blocks; every rank asks for its own rows.

        Args:
            micro_batches: this rank's share, padding included.
            prompts: what a teacher with a hint reads; others look at the row as it is.

        Raises:
            TrainError: a row for which there is no number, or -inf for a sampled token where that
                is what is asked for; names it and the teacher.
        """
        ...


def tokens_of_teacher(
    known: RowTeacher, micro: MicroBatch, *, like: Tensor, top_k: int
) -> TeacherTokens:
    """Look the rows of a micro-batch up, however they were packed when they were asked for.

    Args:
        known: by row.
        micro: the rows that are wanted; padding has none.
        like: gives device and dtype.
        top_k: K.

    Raises:
        TrainError: a row is missing, or has another length.
    """
    count = len(micro.row_R)
    sampled_R = np.zeros(count)
    ids_RK, log_probs_RK = np.zeros((count, top_k), dtype=np.int64), np.zeros((count, top_k))
    for index, key in enumerate(micro.rows):
        own = np.flatnonzero(micro.row_R == index)
        row = known.get(key)
        wanted = (len(own), top_k)
        if row is None or row.ids_RK.shape != wanted or row.log_probs_RK.shape != wanted:
            got = "nothing" if row is None else f"numbers of shape {row.ids_RK.shape}"
            raise TrainError(
                f"the teacher gave {got} for row {key}, expected (response positions, top_k) "
                f"{wanted}"
            )
        sampled_R[own] = row.sampled_R
        ids_RK[own] = np.where(micro.mask_R[own, None], row.ids_RK, 0)
        log_probs_RK[own] = row.log_probs_RK

    def put(array: Numbers) -> Tensor:
        return torch.as_tensor(array).to(device=like.device, dtype=like.dtype)

    return TeacherTokens(
        sampled_R=put(sampled_R),
        ids_RK=torch.as_tensor(ids_RK).to(like.device),
        log_probs_RK=put(log_probs_RK),
    )
