"""Records every trained token of a step, beside the training and never in its way.

    begin(batch) -> update 0: note(micro) ... -> update 1: note(micro) ... -> finish(): listener

Tensors are only read, so the numbers of training are the same bits with and without. A failure in
here, or in the listener, costs the record of the step and nothing else.

A row is recorded as its last update saw it. In several epochs that update may belong to another
rank than the first: which rank records a row follows from the batch, which every rank has.

Legend: `R` response positions of a micro-batch, `P` those of one row.
"""

from __future__ import annotations

import logging
from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agentrl.batch.records import MicroBatch, PackedBatch, RowKey, StepBatch
from agentrl.metrics.bag import MetricBag
from agentrl.types import TrainedTokens

logger = logging.getLogger(__name__)

TokenListener = Callable[[int, int, Sequence[TrainedTokens]], object]
"""Told `(step, rank, rows)` once a step; may raise whatever it likes."""
FAILURES = "record/failures"
"""Metric: ranks that could not record the step."""

CLIP_METRICS: Mapping[str, int] = {
    "clip_ratio/low_mean": -1,
    "clip_ratio/high_mean": 1,
    "clip_ratio/dual_mean": 1,
}
"""By which metric of a policy loss a token counts as held back, and by which bound."""

Numbers = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenNumbers:
    """Numbers of one micro-batch by token; any value where nothing is trained."""

    mask_R: Tensor
    """[R] bool, True where a token is trained."""
    old_R: Tensor
    """[R] Log-probabilities before the first update of the step, as far as they are known."""
    log_probs_R: Tensor
    """[R] Log-probabilities in this update."""
    entropy_R: Tensor
    """[R] Entropy in nats."""
    advantages_R: Tensor
    """[R] Final advantages."""
    correction_R: Tensor | None
    """[R] Weight of the sampler correction; None without one."""
    clip_R: Tensor
    """[R] -1, 0 or 1; see `TrainedTokens.clip`."""
    loss_R: Tensor
    """[R] Share of the loss."""
    ref_R: Tensor | None
    """[R] Log-probabilities of the reference; None without a penalty."""


def clip_state(metrics: Mapping[str, Tensor | float], mask_R: Tensor) -> Tensor:
    """[R] Which bound held a token back, from the metrics of a policy loss.

    A loss of a user says it by giving masks [R] the names of `CLIP_METRICS`; one that does
    not shows 0 everywhere.
    """
    found_R = torch.zeros_like(mask_R, dtype=torch.float32)
    for name, side in CLIP_METRICS.items():
        held_R = metrics.get(name)
        if isinstance(held_R, Tensor) and held_R.shape == mask_R.shape:
            found_R = torch.where(held_R.detach().bool(), float(side), found_R)
    return found_R


LATER = -1
"""Stands for the index of an update that is not known yet."""


class TokenRecorder:
    """Collects the tokens of one step after the other, and calls the listener with each."""

    def __init__(self, listener: TokenListener | None) -> None:
        """Call `listener`; what it raises is logged once and counted. None does nothing at all."""
        self._listener = listener
        self._failed = False
        self._warned = False
        self._update = 0
        self._last: dict[RowKey, int] = {}
        self._updates: Counter[RowKey] = Counter()
        self._first_seen: dict[RowKey, Numbers] = {}
        self._rows: list[TrainedTokens] = []

    @property
    def listens(self) -> bool:
        """True if the tokens of this step are recorded."""
        return self._listener is not None and not self._failed

    def begin(self, batch: StepBatch, *, early: int = 0) -> None:
        """A step begins; what was left of one that failed is forgotten.

        Args:
            batch: the whole step.
            early: updates of it that were made and recorded before.
        """
        if self._listener is None:
            return
        if not early:
            self._forget()
        self._last, self._updates = {}, Counter()
        for index, update in enumerate(batch.updates):
            self._last.update(dict.fromkeys(update.rows, index))
            self._updates.update(update.rows)

    def begin_early(self, update: PackedBatch, index: int, *, final: bool) -> None:
        """An update of a step begins whose others are not known yet.

        Args:
            update: the one that begins.
            index: of it, from 0.
            final: its rows come in no later update.
        """
        if self._listener is None:
            return
        if index == 0:
            self._forget()
        self._last = dict.fromkeys(update.rows, index if final else LATER)
        self._updates = Counter(update.rows)

    def _forget(self) -> None:
        self._failed = False
        self._first_seen, self._rows = {}, []

    def enter(self, update: int) -> None:
        """The updates of a step are counted from 0."""
        self._update = update

    def note(self, micro: MicroBatch, numbers: TokenNumbers) -> None:
        """Record one micro-batch of the update, with one copy to the CPU."""
        if not self.listens:
            return
        try:
            self._note(micro, numbers)
        except Exception as error:  # recording boundary: nothing in here is worth a step
            self._give_up(error)

    def finish(self, step: int, rank: int, metrics: MetricBag) -> None:
        """Call the listener, and count in `metrics` whether this rank failed to record the step."""
        if self._listener is None:
            return
        if not self._failed:
            try:
                self._listener(step, rank, self._rows)
            except Exception as error:  # recording boundary: disks are full, folders read-only, ...
                self._give_up(error)
        self._first_seen, self._rows = {}, []
        metrics.sum(FAILURES, int(self._failed))

    def _give_up(self, error: Exception) -> None:
        self._failed = True
        self._first_seen, self._rows = {}, []
        if not self._warned:
            self._warned = True
            logger.warning(
                "trained tokens are not recorded, training goes on (later failures are counted as "
                "%s and not told again): %s: %s",
                FAILURES,
                type(error).__name__,
                error,
            )

    def _note(self, micro: MicroBatch, numbers: TokenNumbers) -> None:
        final = [self._last.get(key) == self._update for key in micro.rows]
        ahead = [key for key, last in zip(micro.rows, final, strict=True) if not last]
        # Rows that come again need their first log-probabilities, and only once.
        if not any(final) and all(key in self._first_seen for key in ahead):
            return
        columns = _on_cpu(numbers)
        for index, positions in enumerate(_positions(micro)):
            key = micro.rows[index]
            own = {name: values[positions] for name, values in columns.items()}
            if not final[index]:
                self._first_seen.setdefault(key, own["old_R"])
                continue
            old = self._first_seen.pop(key, own["old_R"])
            self._rows.append(_row(key, self._updates[key], own, old))


def _on_cpu(numbers: TokenNumbers) -> dict[str, Numbers]:
    """Every array in float32, 0 where nothing is trained."""
    mask_R = numbers.mask_R
    found = {
        name: value
        for name in TokenNumbers.__slots__
        if isinstance(value := getattr(numbers, name), Tensor)
    }
    flat = torch.stack([value.detach().to(torch.float32) for value in found.values()])
    flat = torch.where(mask_R, flat, flat.new_zeros(())).cpu().numpy()
    return dict(zip(found, flat, strict=True))


def _positions(micro: MicroBatch) -> list[NDArray[np.intp]]:
    """By row: its response positions in the micro-batch, in order."""
    order = np.argsort(micro.row_R, kind="stable")
    ends = np.cumsum(np.bincount(micro.row_R, minlength=len(micro.rows)))
    return np.split(order, ends[:-1]) if len(ends) else []


def _row(key: RowKey, updates: int, own: Mapping[str, Numbers], old_P: Numbers) -> TrainedTokens:
    trained = own["mask_R"] != 0.0
    correction = own.get("correction_R")
    ref = own.get("ref_R")
    return TrainedTokens(
        group_id=key.group_id,
        rollout_id=key.rollout_id,
        row_index=key.row_index,
        updates=updates,
        trained=trained.tolist(),
        old_log_probs=_plain(old_P),
        log_probs=_plain(own["log_probs_R"]),
        entropy=_plain(own["entropy_R"]),
        advantages=_plain(own["advantages_R"]),
        correction=_plain(trained.astype(np.float32) if correction is None else correction),
        clip=array("b", own["clip_R"].astype(np.int8).tobytes()),
        loss=_plain(own["loss_R"]),
        ref_log_probs=None if ref is None else _plain(ref),
    )


def _plain(values: Numbers) -> Sequence[float]:
    """Numbers without torch or numpy around them, four bytes each."""
    return array("f", values.tobytes())
