"""Positions and rewards of the turns of a rollout, over all its rows."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from agentrl.batch.records import IntArray
from agentrl.errors import DataError
from agentrl.types import Trajectory, Turn


def turn_rewards(rows: Sequence[Trajectory], reward: float) -> tuple[float, ...]:
    """[K] What each assistant turn of a rollout earned, in order.

    What the rollout's reward has beyond the sum of its steps (penalties, other reward functions)
    stands at the last turn, so the whole return is the reward. Turns without a reward of their own
    earned 0.

    Args:
        rows: of the rollout, in order; later rows hold new turns only.
        reward: of the rollout.

    Raises:
        DataError: no assistant turn at all, or a reward that is not finite.
    """
    turns = [turn for row in rows for turn in _assistant(row)]
    first = rows[0]
    if not turns:
        raise DataError(
            f"rollout {first.rollout_id} has no assistant turn, but algorithm.turn_rewards is "
            "'return_to_go', which needs one for every sampled token; set it to 'sum'"
        )
    found = [0.0 if turn.reward is None else float(turn.reward) for turn in turns]
    for number, value in enumerate(found):
        if not math.isfinite(value):
            raise DataError(
                f"rollout {first.rollout_id} of task {first.task_id}: the reward of turn {number} "
                f"is {value}, expected a finite number"
            )
    found[-1] += math.fsum([reward, *(-value for value in found)])
    return tuple(found)


def turn_of_tokens(rows: Sequence[Trajectory]) -> tuple[IntArray, ...]:
    """By row: [R] the number of the assistant turn of each response position; -1 outside them.

    Raises:
        DataError: a sampled token outside all assistant turns; names row and position.
    """
    out, number = [], 0
    for row in rows:
        turn_R = np.full(len(row.response_ids), -1, dtype=np.int64)
        for turn in _assistant(row):
            turn_R[turn.start : turn.end] = number
            number += 1
        lost = np.flatnonzero((turn_R < 0) & (np.array(row.response_mask, dtype=np.int64) != 0))
        if len(lost):
            raise DataError(
                f"row {row.rollout_id}[{row.row_index}]: response position {lost[0]} was sampled "
                "but is in no assistant turn; algorithm.turn_rewards 'return_to_go' cannot say "
                "what it earned"
            )
        out.append(turn_R)
    return tuple(out)


def tokens_by_turn(rows: Sequence[Trajectory]) -> tuple[int, ...]:
    """[K] Sampled tokens of each assistant turn of a rollout, in order."""
    return tuple(
        sum(row.response_mask[turn.start : turn.end]) for row in rows for turn in _assistant(row)
    )


def token_numbers(rows: Sequence[Trajectory]) -> tuple[IntArray, ...]:
    """By row: [R] the number of each sampled token in its rollout; -1 at other positions."""
    out, before = [], 0
    for row in rows:
        mask_R = np.array(row.response_mask, dtype=np.int64)
        out.append(np.where(mask_R != 0, before + np.cumsum(mask_R) - 1, -1))
        before += int(mask_R.sum())
    return tuple(out)


def _assistant(row: Trajectory) -> list[Turn]:
    return [turn for turn in row.turns if turn.role == "assistant"]
