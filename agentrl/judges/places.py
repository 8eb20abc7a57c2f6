"""Places of several works from rankings of some of them: which are asked for, and their sum.

Pure functions; works are known by keys.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from typing import Any


def parts_in_which_all_meet(items: Sequence[str], most: int) -> list[list[str]]:
    """Parts of at most `most` items such that any two are together in one of them.

    Items are divided into blocks of half that size, and each two blocks make a part: with n items
    about `2 * (n / most) ** 2` parts. Fewer than two items need no part.

    Example:
        >>> parts_in_which_all_meet("abcdef", 4)
        [['a', 'b', 'c', 'd'], ['a', 'b', 'e', 'f'], ['c', 'd', 'e', 'f']]
    """
    if len(items) < 2:
        return []
    if len(items) <= most:
        return [list(items)]
    half = most // 2
    blocks = [items[start : start + half] for start in range(0, len(items), half)]
    return [[*first, *second] for first, second in combinations(blocks, 2)]


def shuffled(keys: Sequence[str]) -> list[str]:
    """The keys in an order that follows from all of them, and not from how they were given."""
    case = digest_of(sorted(keys))
    return sorted(keys, key=lambda key: digest_of([case, key]))


def scores_of(keys: Sequence[str], rankings: Sequence[Sequence[str]]) -> list[float]:
    """The share of comparisons that each work wins, in [0, 1]; the mean of all is 0.5.

    A comparison of two works is won by the one that stands before the other in all rankings that
    have both, and shared by how many of them say so: two that disagree make a tie. Where all works
    are in all rankings, that is `(n - r) / (n - 1)` with r the mean rank among n works.

    Args:
        keys: of the works; equal ones tie.
        rankings: keys, the best first; any two different keys are together in one or more.

    Example:
        >>> scores_of(["a", "b", "c"], [["a", "b", "c"], ["b", "a", "c"]])
        [0.75, 0.75, 0.0]
    """
    before = Counter(pair for ranking in rankings for pair in combinations(ranking, 2))

    def share(key: str, other: str) -> float:
        won, lost = before[key, other], before[other, key]
        return 0.5 if key == other else won / (won + lost)

    others = len(keys) - 1
    return [
        math.fsum(share(key, other) for j, other in enumerate(keys) if j != i) / others
        if others
        else 0.5
        for i, key in enumerate(keys)
    ]


def digest_of(value: Any) -> str:
    """SHA-256 of a value of JSON."""
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()
