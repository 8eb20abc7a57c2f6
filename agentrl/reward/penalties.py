"""Penalties of one rollout, as pure functions of numbers.

A length and the budget it is compared with are of one unit (FORMULAS F13), over all rows of a
rollout and never a span between two tokens (C.10).
"""

from __future__ import annotations

from collections.abc import Sequence

from agentrl.config.reward import LengthUnit
from agentrl.types import FinishReason, Trajectory


def length_of(rows: Sequence[Trajectory], unit: LengthUnit) -> int:
    """Tokens of a rollout: all of its response, or those that the policy sampled.

    `response` is the unit of `rollout.max_response_tokens`: `sum(response_mask)` and what tools and
    environment wrote. Against that budget it is the same number as sampled tokens against what the
    environment has left of it: `S + E - (Lmax - buffer) = S - ((Lmax - E) - buffer)`.

    Example:
        400 sampled and 600 tool tokens are 1000 of `response` and 400 of `sampled`.
    """
    if unit == "sampled":
        return sum(row.num_action_tokens for row in rows)
    return sum(len(row.response_ids) for row in rows)


def overlong(length: int, *, most: int, buffer: int, factor: float) -> float:
    """DAPO's penalty of long responses (F13; arXiv 2503.14476, eq. 13), capped at `factor`.

    `-min(max(length - (most - buffer), 0), buffer) / buffer * factor`

    Args:
        length: of the rollout, in the unit of `most`.
        most: the budget in tokens.
        buffer: tokens before its end over which the penalty grows; above 0.
        factor: the penalty at the end of the buffer.

    Example:
        >>> overlong(95, most=100, buffer=10, factor=1.0)
        -0.5
    """
    beyond = length - (most - buffer)
    return -min(max(beyond, 0), buffer) / buffer * factor if beyond > 0 else 0.0


def stop_properly(reward: float, coef: float) -> float:
    """The reward of a truncated rollout under ProRL (F14): scaled from 0 to 1, replaced below 0.

    Example:
        >>> stop_properly(1.0, 0.25), stop_properly(1.0, -0.5)
        (0.25, -0.5)
    """
    return reward * coef + 0.0 if coef >= 0 else coef  # + 0.0: no negative zero


def misses_eos(rows: Sequence[Trajectory]) -> bool:
    """Return true if the last turn of the policy ended without a stop token (F15).

    A stop token is what `FinishReason.STOP` says was sampled. Rows that record no turn say nothing.
    """
    for row in reversed(rows):
        for turn in reversed(row.turns):
            if turn.role == "assistant":
                return turn.finish_reason is not FinishReason.STOP
    return False


def clipped(value: float, bounds: tuple[float, float]) -> float:
    """Clip `value` to lie inside `bounds`."""
    return min(max(value, bounds[0]), bounds[1])
