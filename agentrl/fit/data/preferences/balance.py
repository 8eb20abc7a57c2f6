"""Pairs of which length no longer tells the chosen one: as many longer as shorter of a like ratio.

Pairs are classed by how far the lengths of both completions are apart, in the logarithm of their
ratio that `check` measures. Of each class as many stay whose chosen one is the longer as whose
chosen one is the shorter; which of the more numerous kind stay is drawn by a hash of their ids. So
neither the longer one nor any bound on the ratio predicts the choice. Pairs of equal lengths stay.

Equal numbers over all pairs would not do: where large differences say `longer` and small ones
`shorter`, half of the longer ones are chosen, and length tells all the same.
"""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from agentrl.errors import DataError
from agentrl.types import PreferencePair


@dataclass(frozen=True, slots=True, kw_only=True)
class BalancedPairs:
    """The pairs that stay, and the others by what was chosen in them."""

    pairs: Sequence[PreferencePair]
    """In the order of their source."""
    each: int
    """Of them, the pairs whose chosen one is the longer; as many have a shorter one."""
    equal: int
    """Of them, the pairs of equal lengths."""
    longer_left_out: int
    """Other pairs whose chosen one is the longer."""
    shorter_left_out: int
    """Other pairs whose chosen one is the shorter."""
    classes: int
    """Classes of which pairs of different lengths stay."""


def balance_lengths(
    pairs: Sequence[PreferencePair], *, width: float = 0.2, seed: int = 0
) -> BalancedPairs:
    """Leave out as few pairs as make both kinds equally frequent in every class.

    Args:
        pairs: of one source.
        width: of a class, in the natural logarithm of the ratio of lengths, to each of which one
            is added, since a completion may be empty; 0.2 is a fifth.
        seed: of what is drawn.

    Raises:
        DataError: no class has pairs of both kinds.
    """
    classes: dict[int, dict[bool, list[int]]] = defaultdict(lambda: {True: [], False: []})
    equal: list[int] = []
    for index, pair in enumerate(pairs):
        chosen, rejected = pair.chosen.length, pair.rejected.length
        if chosen == rejected:
            equal.append(index)
            continue
        # Of the longer over the shorter, so that both kinds round alike.
        apart = math.log((max(chosen, rejected) + 1) / (min(chosen, rejected) + 1))
        classes[math.floor(apart / width)][chosen > rejected].append(index)
    kept, used = list[int](), 0
    for kinds in classes.values():
        size = min(map(len, kinds.values()))
        used += size > 0
        for of_kind in kinds.values():
            kept += sorted(of_kind, key=lambda index: _draw(seed, pairs[index].id))[:size]
    longer, shorter = (sum(len(of[kind]) for of in classes.values()) for kind in (True, False))
    each = len(kept) // 2
    if not each:
        raise DataError(
            f"lengths cannot be balanced: of {len(pairs)} pairs {longer} have the longer one "
            f"chosen, {shorter} the shorter, {len(equal)} have equal lengths, and no two of both "
            f"kinds have a ratio of lengths in one class of width {width:g}; give more pairs, or "
            "wider classes"
        )
    return BalancedPairs(
        pairs=[pairs[index] for index in sorted(kept + equal)],
        each=each,
        equal=len(equal),
        longer_left_out=longer - each,
        shorter_left_out=shorter - each,
        classes=used,
    )


def _draw(seed: int, name: str) -> bytes:
    return hashlib.sha256(f"{seed}\x1f{name}".encode("utf-8", "surrogatepass")).digest()
