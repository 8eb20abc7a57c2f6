"""Decides after a failed request if it is tried again, and when; without clock or network."""

from __future__ import annotations

import math
from collections.abc import Mapping
from email.utils import parsedate_to_datetime

_FIRST_S = 0.5
_LONGEST_S = 20.0
_TRANSIENT = frozenset({408, 409, 425, 429})


def is_transient(status: int) -> bool:
    """True for a status with which the same request may succeed later: 408, 409, 425, 429, 5xx."""
    return status in _TRANSIENT or 500 <= status <= 599


def backoff_s(attempt: int, draw: float) -> float:
    """Seconds between a failed attempt and the next, doubled each time and spread at random.

    `min(20, 0.5 * 2**attempt) * (0.5 + 0.5 * draw)`: at least half of the doubled wait, so that a
    server in trouble is not asked again at once.

    Args:
        attempt: number of the attempt that failed, from 0.
        draw: a uniform number in [0, 1).

    Example:
        >>> backoff_s(0, 0.0), backoff_s(2, 0.5), backoff_s(50, 0.0)
        (0.25, 1.5, 10.0)
    """
    return min(_LONGEST_S, _FIRST_S * 2.0 ** min(attempt, 30)) * (0.5 + 0.5 * draw)


def retry_after_s(headers: Mapping[str, str], now: float) -> float | None:
    """Seconds that a server asks to wait (`Retry-After`, RFC 9110 section 10.2.3).

    Args:
        headers: of its response; a mapping that ignores case.
        now: the time in seconds since the epoch.

    Returns:
        Seconds from now, 0 for a time in the past; None if it says nothing that can be read.
    """
    value = headers.get("Retry-After", "").strip()
    if not value:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - now
        except (ValueError, OverflowError):
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None
