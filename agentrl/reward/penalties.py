"""Penalties of one rollout, as pure functions of numbers.

Lengths are sums of `response_mask` over all rows of a rollout (FORMULAS C.10): what tools and
environment wrote is not the policy's to shorten.
"""

from __future__ import annotations

from collections.abc import Sequence

from agentrl.types import FinishReason, Trajectory


def overlong(length: int, *, most: int, buffer: int, factor: float) -> float:
    """DAPO's penalty of long responses (F13; arXiv 2503.14476, eq. 13), capped at `factor`.

    `-min(max(length - (most - buffer), 0), buffer) / buffer * factor`

    Args:
        length: tokens that the policy sampled.
        most: response budget in tokens.
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
