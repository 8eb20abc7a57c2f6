"""Assigns the rollouts of an update to ranks, by the tokens that the model reads.

Pure and deterministic: every rank comes to the same assignment from the same outlines.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

BALANCED = 1.05
"""Nothing moves to bring the longest share nearer to the mean than this factor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Rows that stay together: those of one rollout."""

    group_id: str
    """Group of the rollout; the pieces of a group on one rank share its prompt."""
    own: int
    """Tokens that the model reads for it alone."""
    prompt: int
    """Tokens that it reads once for all pieces of the group on a rank."""


_Key = tuple[int, str]


class _Loads:
    """Pieces and tokens of every rank."""

    def __init__(self, pieces: Sequence[Piece], ranks: int) -> None:
        self.pieces, self.tokens = pieces, [0] * ranks
        self.parts: defaultdict[_Key, list[int]] = defaultdict(list)

    def size(self, members: Iterable[int]) -> int:
        """Tokens of pieces of one group on one rank."""
        found = [self.pieces[index] for index in members]
        return sum(p.own for p in found) + max((p.prompt for p in found), default=0)

    def put(self, members: Sequence[int], rank: int) -> None:
        """Give pieces of one group to a rank."""
        part = self.parts[rank, self.pieces[members[0]].group_id]
        self.tokens[rank] += self.size([*part, *members]) - self.size(part)
        part.extend(members)

    def take(self, members: Sequence[int], rank: int) -> None:
        """Take pieces of one group from a rank."""
        part = self.parts[rank, self.pieces[members[0]].group_id]
        left = [index for index in part if index not in members]
        self.tokens[rank] += self.size(left) - self.size(part)
        part[:] = left

    def groups_on(self, rank: int) -> list[list[int]]:
        """The pieces of each group on a rank."""
        return [list(part) for (where, _), part in self.parts.items() if where == rank and part]

    def pieces_on(self, rank: int) -> list[list[int]]:
        """Every piece on a rank by itself."""
        return [[index] for part in self.groups_on(rank) for index in part]


def assign_pieces(
    pieces: Sequence[Piece], *, held_by: Mapping[str, int], ranks: int
) -> tuple[int, ...]:
    """The rank that computes each piece.

    A piece stays with the rank that holds its group already, until shares are uneven by more than
    `BALANCED`. Then whole groups move from the longest share to the shortest, the one that evens
    them out most first; where none helps, single rollouts do.

    Args:
        pieces: of one update.
        held_by: by group, the rank that holds it.
        ranks: how many there are.

    Example:
        >>> pieces = [Piece(group_id=name, own=5, prompt=1) for name in "aabb"]
        >>> assign_pieces(pieces, held_by={"a": 0, "b": 0}, ranks=2)
        (1, 1, 0, 0)
    """
    loads = _Loads(pieces, ranks)
    together: dict[str, list[int]] = {}
    for index, piece in enumerate(pieces):
        together.setdefault(piece.group_id, []).append(index)
    for group_id, members in together.items():
        loads.put(members, held_by[group_id])
    for units in (loads.groups_on, loads.pieces_on):
        while _uneven(loads) and _move_one(loads, units):
            pass
    found = [0] * len(pieces)
    for (rank, _), part in loads.parts.items():
        for index in part:
            found[index] = rank
    return tuple(found)


def _uneven(loads: _Loads) -> bool:
    return max(loads.tokens) * len(loads.tokens) > BALANCED * sum(loads.tokens)


def _move_one(loads: _Loads, units: Callable[[int], list[list[int]]]) -> bool:
    """Move the unit from the longest share to the shortest that evens them out most, if any."""
    order = range(len(loads.tokens))
    longest = max(order, key=lambda rank: (loads.tokens[rank], -rank))
    shortest = min(order, key=lambda rank: (loads.tokens[rank], rank))
    before = loads.tokens[longest], loads.tokens[shortest]
    best: list[int] | None = None
    least = (before[0], 0)
    for unit in units(longest):
        group_id = loads.pieces[unit[0]].group_id
        here, there = loads.parts[longest, group_id], loads.parts[shortest, group_id]
        left = [index for index in here if index not in unit]
        after = (
            before[0] + loads.size(left) - loads.size(here),
            before[1] + loads.size([*there, *unit]) - loads.size(there),
        )
        # The longest share gives way to two that are shorter, so this ends.
        if (max(after), sum(after)) < least:
            best, least = unit, (max(after), sum(after))
    if best is None:
        return False
    loads.take(best, longest)
    loads.put(best, shortest)
    return True
