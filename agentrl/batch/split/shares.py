"""Divides the updates of a step among ranks, by rollouts, with the numbers of the whole."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from agentrl.batch.packing import refuse_long_row
from agentrl.batch.plan import DecidedUpdate, PlannedRollout, StepSettings
from agentrl.batch.records import WholeUpdate
from agentrl.batch.split.assignment import Piece, assign_pieces
from agentrl.batch.split.outline import OutlinedRow
from agentrl.batch.untrained import UntrainedSample

Unit = TypeVar("Unit")

Planned = PlannedRollout[OutlinedRow]
SampleUnit = tuple[tuple[OutlinedRow, ...], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedUpdate:
    """One update, and who computes what of it."""

    update: DecidedUpdate[OutlinedRow]
    """The update of all ranks."""
    shares: tuple[tuple[Planned, ...], ...]
    """By rank the rollouts of which it computes rows."""
    whole: WholeUpdate
    """Facts that every rank is given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedSample:
    """Rows that are read for metrics alone, and who reads them."""

    sample: UntrainedSample[OutlinedRow]
    """Rows of all ranks."""
    shares: tuple[tuple[SampleUnit, ...], ...]
    """By rank."""
    whole: WholeUpdate
    """Facts that every rank is given."""


@dataclass(frozen=True, slots=True)
class Assigner:
    """Divides updates among ranks."""

    held_by: Mapping[str, int]
    """By group id, the rank that has fetched it."""
    ranks: int
    """How many ranks there are."""
    settings: StepSettings
    """Settings of the step."""
    advantages: Mapping[str, float]
    """Mean advantage by rollout."""

    def update(self, update: DecidedUpdate[OutlinedRow]) -> PlannedUpdate:
        """One update, divided by rollouts."""
        settings = self.settings
        computed = [rollout for rollout in update.rollouts if any(rollout.computed(settings))]
        shares = self._shares(computed, lambda rollout: rollout.computed_rows(settings))
        lines = [
            (row, rank, update.weight(rollout, settings))
            for rank, own in enumerate(shares)
            for rollout in own
            for row in rollout.computed_rows(settings)
        ]
        return PlannedUpdate(update=update, shares=shares, whole=self._whole(lines))

    def sample(self, sample: UntrainedSample[OutlinedRow]) -> PlannedSample:
        """The rows that are read for metrics, divided likewise."""
        shares = self._shares(sample.units, lambda unit: unit[0])
        lines = [
            (row, rank, weight)
            for rank, own in enumerate(shares)
            for rows, weight in own
            for row in rows
        ]
        return PlannedSample(sample=sample, shares=shares, whole=self._whole(lines))

    def _shares(
        self, units: Sequence[Unit], rows_of: Callable[[Unit], Sequence[OutlinedRow]]
    ) -> tuple[tuple[Unit, ...], ...]:
        shares: list[list[Unit]] = [[] for _ in range(self.ranks)]
        pieces = [self._piece(rows_of(unit)) for unit in units]
        found = assign_pieces(pieces, held_by=self.held_by, ranks=self.ranks)
        for unit, rank in zip(units, found, strict=True):
            shares[rank].append(unit)
        return tuple(map(tuple, shares))

    def _piece(self, rows: Sequence[OutlinedRow]) -> Piece:
        for row in rows:
            refuse_long_row(row.key, row.length, self.settings.micro_batch_tokens)
        shared = self.settings.prefix_sharing
        return Piece(
            group_id=rows[0].key.group_id,
            own=sum(row.length - shared * row.prompt_length for row in rows),
            prompt=max(row.prompt_length for row in rows) if shared else 0,
        )

    def _whole(self, lines: Sequence[tuple[OutlinedRow, int, float]]) -> WholeUpdate:
        digest = hashlib.blake2b(digest_size=16)
        for row, rank, weight in lines:
            value = self.advantages.get(row.key.rollout_id, 0.0)
            facts = (str(row.key), rank, row.length, row.num_trained, weight, value)
            digest.update(repr(facts).encode())
        return WholeUpdate(
            rows=tuple(row.key for row, _, _ in lines),
            num_trained=sum(row.num_trained for row, _, _ in lines),
            digest=digest.hexdigest(),
        )
