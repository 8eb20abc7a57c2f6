"""Positions and rewards of the turns of a rollout, over all its rows and in the order of time.

The rows of a rollout whose history forked do not follow each other in time: the first one holds its
last turn. `Trajectory.requests` then has the order; without it, rows follow each other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from agentrl.batch.records import IntArray
from agentrl.errors import DataError
from agentrl.types import Trajectory


def turn_rewards(rows: Sequence[Trajectory], reward: float) -> tuple[float, ...]:
    """[K] What each assistant turn of a rollout earned, in the order of time.

    What the rollout's reward has beyond the sum of its steps (penalties, other reward functions)
    stands at the last turn, so the whole return is the reward. Turns without a reward of their own
    earned 0.

    Args:
        rows: of the rollout, in order; later rows hold new turns only.
        reward: of the rollout.

    Raises:
        DataError: no assistant turn at all, a reward that is not finite, or see `in_time`.
    """
    turns = [rows[at].turns[number] for at, number in in_time(rows)]
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
    out = tuple(np.full(len(row.response_ids), -1, dtype=np.int64) for row in rows)
    for number, (at, place) in enumerate(in_time(rows)):
        turn = rows[at].turns[place]
        out[at][turn.start : turn.end] = number
    for row, turn_R in zip(rows, out, strict=True):
        lost = np.flatnonzero((turn_R < 0) & (np.array(row.response_mask, dtype=np.int64) != 0))
        if len(lost):
            raise DataError(
                f"row {row.rollout_id}[{row.row_index}]: response position {lost[0]} was sampled "
                "but is in no assistant turn; algorithm.turn_rewards 'return_to_go' cannot say "
                "what it earned"
            )
    return out


def tokens_by_turn(rows: Sequence[Trajectory]) -> tuple[int, ...]:
    """[K] Sampled tokens of each assistant turn of a rollout, in the order of time."""
    turns = [(rows[at], rows[at].turns[number]) for at, number in in_time(rows)]
    return tuple(sum(row.response_mask[turn.start : turn.end]) for row, turn in turns)


def token_numbers(rows: Sequence[Trajectory]) -> tuple[IntArray, ...]:
    """By row: [R] the number of each sampled token in its rollout; -1 at other positions."""
    masks = [np.array(row.response_mask, dtype=np.int64) for row in rows]
    if has_order(rows):
        turns_A = np.concatenate(
            [
                turn_R[mask_R != 0]
                for turn_R, mask_R in zip(turn_of_tokens(rows), masks, strict=True)
            ]
        )
        number_A = np.empty(len(turns_A), dtype=np.int64)
        number_A[np.argsort(turns_A, kind="stable")] = np.arange(len(turns_A))
    else:
        number_A = np.arange(sum(int(mask_R.sum()) for mask_R in masks))
    out, before = [], 0
    for mask_R in masks:
        number_R = np.full(len(mask_R), -1, dtype=np.int64)
        end = before + int(mask_R.sum())
        number_R[mask_R != 0] = number_A[before:end]
        out.append(number_R)
        before = end
    return tuple(out)


def has_order(rows: Sequence[Trajectory]) -> bool:
    """Return true if the rows of a rollout come with the order of their turns in time."""
    return len(rows) > 1 and any(row.requests for row in rows)


def in_time(rows: Sequence[Trajectory]) -> list[tuple[int, int]]:
    """Every assistant turn of a rollout in the order of time: position of its row, and in that row.

    Raises:
        DataError: the order leaves out a turn.
    """
    found = [
        (at, number)
        for at, row in enumerate(rows)
        for number, turn in enumerate(row.turns)
        if turn.role == "assistant"
    ]
    if not has_order(rows):
        return found
    requests = next(row.requests for row in rows if row.requests)
    times = {(one.row, one.turn): time for time, one in enumerate(requests)}
    for at, number in found:
        if (rows[at].row_index, number) not in times:
            raise DataError(
                f"row {rows[at].rollout_id}[{rows[at].row_index}]: turn {number} is in none of the "
                f"{len(requests)} requests of its rollout, so its time is unknown; let "
                "Trajectory.requests name every sampled turn, or leave it empty"
            )
    return sorted(found, key=lambda turn: times[rows[turn[0]].row_index, turn[1]])
