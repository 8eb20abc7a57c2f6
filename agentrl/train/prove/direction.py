"""The direction of a loss: a positive advantage raises the log-probability of sampled tokens.

At ratio 1 the slope of the loss by a token's log-probability is compared with what it is when all
advantages are 0. So a term that ignores advantages (entropy, a supervised term) does not count, and
positive and negative advantages are judged apart.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from agentrl.batch.records import PackedBatch
from agentrl.train.prove.bench import Bench
from agentrl.train.prove.compare import MOST_NAMED, ProofFinding
from agentrl.train.prove.evaluate import UpdateOutcome
from agentrl.train.prove.precision import apart, tolerance_of
from agentrl.train.prove.tokens import TokenKey, tokens_of
from agentrl.types.finding import Status

_SIZES = (1.0, 0.5, 2.0)
"""Advantages of the rollouts in turn; the sign changes from rollout to rollout."""


@dataclass(slots=True)
class _Moved:
    """Tokens with an advantage of one sign."""

    right: int = 0
    wrong: list[str] = field(default_factory=list[str])


def direction_check(bench: Bench, name: str) -> ProofFinding:
    """Compare slopes under advantages of both signs with those under none.

    Every rollout has one advantage, so that a ratio of whole rollouts is judged rightly too.
    """
    update = bench.update(needs=replace(bench.needs, zero_advantage_rows=True))
    ids = sorted({row.rollout_id for micro in update.micro_batches for row in micro.rows})
    drawn = {
        rollout_id: (-1) ** index * _SIZES[index % len(_SIZES)]
        for index, rollout_id in enumerate(ids)
    }
    none = bench.on_policy(_with_advantages(update, drawn, 0.0))
    trained = [
        key
        for micro in update.micro_batches
        for key, mask in zip(tokens_of(micro), micro.mask_R.tolist(), strict=True)
        if mask
    ]
    up, down = _Moved(), _Moved()
    for factor in (1.0, -1.0):
        found = bench.on_policy(_with_advantages(update, drawn, factor))
        _compare(
            found, none, trained, {id_: factor * value for id_, value in drawn.items()}, up, down
        )
    return _judged(name, up, down, none, trained)


def _with_advantages(update: PackedBatch, of: dict[str, float], factor: float) -> PackedBatch:
    micros = []
    for micro in update.micro_batches:
        own = np.array([factor * of[row.rollout_id] for row in micro.rows], dtype=np.float64)
        advantages_R = np.where(micro.mask_R, own[micro.row_R], 0.0)
        micros.append(replace(micro, advantages_R=advantages_R))
    return replace(update, micro_batches=tuple(micros))


def _compare(
    found: UpdateOutcome,
    none: UpdateOutcome,
    trained: list[TokenKey],
    advantages: dict[str, float],
    up: _Moved,
    down: _Moved,
) -> None:
    largest = max((abs(found.slopes[key]) for key in trained), default=0.0)
    least = tolerance_of(found.dtype) * largest
    for key in trained:
        slope, base, advantage = found.slopes[key], none.slopes[key], advantages[key.rollout_id]
        # A loss may have no slope where every advantage is 0, as where it divides by their size.
        change = slope - (base if math.isfinite(base) else 0.0)
        moved = up if advantage > 0 else down
        if change * advantage < 0 and abs(change) > least:
            moved.right += 1
        elif abs(change) > least:
            one, other = apart(slope, base)
            moved.wrong.append(
                f"{key}: slope {one} at advantage {advantage:g}, {other} at advantage 0"
            )


def _judged(
    name: str, up: _Moved, down: _Moved, none: UpdateOutcome, trained: list[TokenKey]
) -> ProofFinding:
    for sign, verb, moved in (("positive", "lowers", up), ("negative", "raises", down)):
        if moved.wrong:
            detail = (
                f"a {sign} advantage {verb} the log-probability of {len(moved.wrong)} of "
                f"{len(trained)} sampled tokens; a loss to be minimised is minus what is to grow, "
                f"as in -ratio * advantage; {'; '.join(moved.wrong[:MOST_NAMED])}"
            )
            return ProofFinding(name=name, status=Status.FAIL, detail=detail)
    if not up.right and not down.right:
        detail = "the loss ignores advantages, so it has no direction to judge"
        if trained and all(none.slopes[key] > 0 for key in trained):
            detail += "; it lowers the log-probability of every sampled token"
        elif trained and all(none.slopes[key] < 0 for key in trained):
            detail += "; it raises every sampled token, as a supervised loss does"
        return ProofFinding(name=name, status=Status.WARN, detail=detail)
    for sign, moved in (("positive", up), ("negative", down)):
        if not moved.right:
            detail = f"a {sign} advantage changes nothing"
            return ProofFinding(name=name, status=Status.WARN, detail=detail)
    return ProofFinding(name=name, status=Status.OK)
