"""Accounts for every token and second of the rollouts of a step; the uses add up to all of it.

use              tokens that ...
trained          are in the loss, with an advantage, with one that a model has yet to give, or
                 under a loss that needs none
penalty_only     are in the loss without an advantage, and moved by its KL or entropy term alone
zero_advantage   are in the loss and teach nothing, since all of their group did equally well
filtered         belong to a group that the dynamic filter left out
stale            were sampled by weights that are too old: dropped with the rollout, or masked
truncated        belong to a rollout that a budget ended, with `algorithm.mask_truncated`
aborted          belong to a rollout that was cancelled
infrastructure   belong to a rollout that a failure ended, or to an attempt made again after one

The seconds of a rollout go with its tokens, in proportion; those of a rollout that sampled nothing
go where its tokens would have gone. A token is one that the policy sampled.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from agentrl.batch.records import LossNeeds, RowKey, StepBatch
from agentrl.config.algorithm import AlgorithmSection
from agentrl.metrics.bag import MetricBag
from agentrl.types import Termination, Trajectory, TrajectoryGroup
from agentrl.types.usage import LOST_SECONDS, LOST_TOKENS


class TokenUse(StrEnum):
    """The use that was made of a token."""

    TRAINED = "trained"
    PENALTY_ONLY = "penalty_only"
    ZERO_ADVANTAGE = "zero_advantage"
    FILTERED = "filtered"
    STALE = "stale"
    TRUNCATED = "truncated"
    ABORTED = "aborted"
    INFRASTRUCTURE = "infrastructure"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """Tokens and seconds of a step by their use."""

    tokens: Mapping[TokenUse, int]
    """Sampled tokens; every use has an entry."""
    seconds: Mapping[TokenUse, float]
    """Wall time of rollouts, each for itself; every use has an entry."""

    def into(self, bag: MetricBag) -> None:
        """Add everything as `waste/tokens/FATE` and `waste/seconds/FATE`."""
        for use in TokenUse:
            bag.sum(f"waste/tokens/{use}", self.tokens[use])
            bag.sum(f"waste/seconds/{use}", self.seconds[use])


def step_ledger(
    groups: Sequence[TrajectoryGroup],
    teaching: Collection[RowKey],
    *,
    algorithm: AlgorithmSection,
    oldest_version: int | None = None,
    skip_groups: Mapping[str, str] | None = None,
    needs: LossNeeds | None = None,
) -> Ledger:
    """The ledger of a step.

    Args:
        groups: what `build_step` was given.
        teaching: `teaching_rows` of the step.
        algorithm: resolved.
        oldest_version: as for `build_step`.
        skip_groups: as for `build_step`.
        needs: as for `build_step`.
    """
    flat = TokenUse.ZERO_ADVANTAGE
    if needs is not None and needs.penalty_only:
        flat = TokenUse.PENALTY_ONLY
    tokens: Counter[TokenUse] = Counter(dict.fromkeys(TokenUse, 0))
    seconds = dict.fromkeys(TokenUse, 0.0)
    for group in groups:
        filtered = group.group_id in (skip_groups or {})
        for rows in group.rollouts():
            whole = _use_of_all(rows[0], filtered=filtered, algorithm=algorithm)
            parts: Counter[TokenUse] = Counter()
            for row in rows:
                use = whole or (TokenUse.TRAINED if RowKey.of(row) in teaching else flat)
                parts.update(_parts(row, use, None if whole else oldest_version))
            tokens.update(parts)
            for use, share in _shares(parts, whole or flat).items():
                seconds[use] += share * rows[0].duration_s
            tokens[TokenUse.INFRASTRUCTURE] += round(spent_before(rows[0], LOST_TOKENS))
            seconds[TokenUse.INFRASTRUCTURE] += spent_before(rows[0], LOST_SECONDS)
    return Ledger(tokens=tokens, seconds=seconds)


def teaching_rows(batch: StepBatch, needs: LossNeeds | None = None) -> set[RowKey]:
    """Rows with an advantage at any trained token, or that may yet get one, or need none.

    Args:
        batch: of the whole step, from `build_step`.
        needs: as for `build_step`.
    """
    needs = needs or LossNeeds()
    found: set[RowKey] = set()
    for micro in (m for update in batch.updates if not update.epoch for m in update.micro_batches):
        if batch.credit is not None or needs.teaches_without_advantage:
            found.update(micro.rows)
            continue
        teaches_R = micro.mask_R & (micro.advantages_R != 0.0)
        found.update(micro.rows[index] for index in set(micro.row_R[teaches_R].tolist()))
    return found


def _use_of_all(
    first: Trajectory, *, filtered: bool, algorithm: AlgorithmSection
) -> TokenUse | None:
    """Use of a rollout as a whole; None where it takes part in the loss."""
    if first.termination is Termination.STALE:
        return TokenUse.STALE
    if first.termination is Termination.ABORTED:
        return TokenUse.ABORTED
    if not first.rule.in_loss:
        return TokenUse.INFRASTRUCTURE
    if filtered:
        return TokenUse.FILTERED
    if first.reward is None:  # without a reward the cause is unknown
        return TokenUse.INFRASTRUCTURE
    if algorithm.mask_truncated and first.rule.truncated:
        return TokenUse.TRUNCATED
    return None


def _parts(row: Trajectory, use: TokenUse, oldest_version: int | None) -> Counter[TokenUse]:
    """Sampled tokens of one row by use; those that are too old have one of their own."""
    alive = row.num_action_tokens
    if oldest_version is not None:
        alive = sum(n for version, n in row.tokens_by_version.items() if version >= oldest_version)
    parts = Counter({use: alive})
    parts[TokenUse.STALE] += row.num_action_tokens - alive
    return parts


def spent_before(row: Trajectory, name: str) -> float:
    """Tokens and seconds of failed attempts before the one that became this rollout.

    Args:
        row: the first of the rollout.
        name: `LOST_TOKENS` or `LOST_SECONDS`; a file may hold anything under it.
    """
    value = row.usage.get(name, 0.0)
    return value if math.isfinite(value) and value > 0.0 else 0.0


def _shares(parts: Mapping[TokenUse, int], without: TokenUse) -> dict[TokenUse, float]:
    """Parts of 1; all of it to `without` where there is no token."""
    total = sum(parts.values())
    if not total:
        return {without: 1.0}
    return {use: count / total for use, count in parts.items()}


def note_aborted(bag: MetricBag, *, tokens: int, seconds: float) -> None:
    """Add the cost of cancelled groups, which are part of no batch, to the ledger of a step."""
    bag.sum("waste/tokens/aborted", tokens)
    bag.sum("waste/seconds/aborted", seconds)
