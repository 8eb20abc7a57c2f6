"""Assigns the rollouts of an update to ranks, by the tokens that the model reads.

Pure and deterministic: every rank comes to the same assignment from the same outlines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
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


class _Part:
    """Pieces of one group on one rank, with what their size depends on."""

    __slots__ = ("largest", "members", "own", "second")

    def __init__(self) -> None:
        self.members: list[int] = []
        self.own = self.largest = self.second = 0

    def update(self, members: list[int], pieces: Sequence[Piece]) -> None:
        """Hold other pieces."""
        found = [pieces[index] for index in members]
        self.members, self.own = members, sum(piece.own for piece in found)
        # Of two equal prompts one is the largest and the other the second.
        self.largest, self.second = sorted([0, 0, *(piece.prompt for piece in found)])[:-3:-1]

    @property
    def size(self) -> int:
        """Tokens that the model reads for it."""
        return self.own + self.largest


@dataclass(frozen=True, slots=True)
class _Unit:
    """Pieces of one group that may move together."""

    group_id: str
    """Group of all of them."""
    members: list[int]
    """Their indices."""
    own: int
    """Tokens that the model reads for them alone."""
    prompt: int
    """Tokens of their longest prompt."""
    gone: int
    """Tokens by which the share that they leave gets shorter."""


class _Loads:
    """Pieces and tokens of every rank."""

    def __init__(self, pieces: Sequence[Piece], ranks: int) -> None:
        self.pieces, self.tokens = pieces, [0] * ranks
        self.parts: list[dict[str, _Part]] = [{} for _ in range(ranks)]

    def part(self, rank: int, group_id: str) -> _Part:
        """The pieces of a group on a rank."""
        return self.parts[rank].setdefault(group_id, _Part())

    def put(self, group_id: str, members: Sequence[int], rank: int) -> None:
        """Give pieces of one group to a rank."""
        self._hold(group_id, [*self.part(rank, group_id).members, *members], rank)

    def take(self, group_id: str, members: Sequence[int], rank: int) -> None:
        """Take pieces of one group from a rank."""
        gone = set(members)
        left = [index for index in self.part(rank, group_id).members if index not in gone]
        self._hold(group_id, left, rank)

    def _hold(self, group_id: str, members: list[int], rank: int) -> None:
        part = self.part(rank, group_id)
        before = part.size
        part.update(members, self.pieces)
        self.tokens[rank] += part.size - before

    def groups_on(self, rank: int) -> Iterator[_Unit]:
        """The pieces of each group on a rank."""
        for group_id, part in self.parts[rank].items():
            if part.members:
                yield _Unit(group_id, part.members, part.own, part.largest, part.size)

    def pieces_on(self, rank: int) -> Iterator[_Unit]:
        """Every piece on a rank by itself."""
        for group_id, part in self.parts[rank].items():
            for index in part.members:
                piece = self.pieces[index]
                prompt = part.largest - part.second if piece.prompt == part.largest else 0
                yield _Unit(group_id, [index], piece.own, piece.prompt, piece.own + prompt)


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
        loads.put(group_id, members, held_by[group_id])
    for units in (loads.groups_on, loads.pieces_on):
        while _uneven(loads) and _move_one(loads, units):
            pass
    found = [0] * len(pieces)
    for rank, parts in enumerate(loads.parts):
        for part in parts.values():
            for index in part.members:
                found[index] = rank
    return tuple(found)


def _uneven(loads: _Loads) -> bool:
    return max(loads.tokens) * len(loads.tokens) > BALANCED * sum(loads.tokens)


def _move_one(loads: _Loads, units: Callable[[int], Iterator[_Unit]]) -> bool:
    """Move the unit from the longest share to the shortest that evens them out most, if any."""
    order = range(len(loads.tokens))
    longest = max(order, key=lambda rank: (loads.tokens[rank], -rank))
    shortest = min(order, key=lambda rank: (loads.tokens[rank], rank))
    before = loads.tokens[longest], loads.tokens[shortest]
    best: _Unit | None = None
    least = (before[0], 0)
    for unit in units(longest):
        there = loads.part(shortest, unit.group_id)
        more = unit.own + max(0, unit.prompt - there.largest)
        after = (before[0] - unit.gone, before[1] + more)
        # The longest share gives way to two that are shorter, so this ends.
        if (max(after), sum(after)) < least:
            best, least = unit, (max(after), sum(after))
    if best is None:
        return False
    loads.take(best.group_id, best.members, longest)
    loads.put(best.group_id, best.members, shortest)
    return True
