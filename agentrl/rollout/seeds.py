"""Seeds that are the same in every process, whatever else runs."""

from __future__ import annotations

import hashlib

_MASK = 2**63 - 1
_ODD = 0x9E3779B97F4A7C15  # 2**64 / golden ratio: neighbouring turns land far apart


def rollout_seed(seed: int, task_id: str, index: int) -> int:
    """The 63-bit seed of one rollout: the same for the same run seed, task and sample index.

    Example:
        >>> rollout_seed(0, "task", 1) == rollout_seed(0, "task", 1) != rollout_seed(0, "task", 2)
        True
    """
    key = f"{seed}\x1f{task_id}\x1f{index}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.sha256(key).digest()[:8], "big") & _MASK


def turn_seed(seed: int, turn: int) -> int:
    """The 63-bit seed of one model turn of a rollout."""
    return (seed + turn * _ODD) & _MASK
