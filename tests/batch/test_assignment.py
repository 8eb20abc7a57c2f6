"""Shares of an update are even, whole groups where that is even enough, and stay where they are."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.batch.split.assignment import BALANCED, Piece, assign_pieces


def piece(group: str, own: int, prompt: int = 0) -> Piece:
    return Piece(group_id=group, own=own, prompt=prompt)


def loads(pieces: list[Piece], ranks_of: tuple[int, ...], ranks: int) -> list[int]:
    found = [0] * ranks
    for group, rank in {(p.group_id, r) for p, r in zip(pieces, ranks_of, strict=True)}:
        own = [p for p, r in zip(pieces, ranks_of, strict=True) if (p.group_id, r) == (group, rank)]
        found[rank] += sum(p.own for p in own) + max(p.prompt for p in own)
    return found


def test_nothing_moves_while_shares_are_even() -> None:
    pieces = [piece("a", 50), piece("a", 50), piece("b", 49), piece("b", 49)]
    assert assign_pieces(pieces, held_by={"a": 1, "b": 0}, ranks=2) == (1, 1, 0, 0)


def test_whole_groups_move_before_rollouts_do() -> None:
    """Fails if a group is torn although another one fits."""
    pieces = [*(piece("a", 10) for _ in range(4)), piece("b", 30), piece("b", 10)]
    assert assign_pieces(pieces, held_by={"a": 0, "b": 0}, ranks=2) == (1, 1, 1, 1, 0, 0)


def test_one_group_is_divided_by_rollouts() -> None:
    pieces = [piece("a", 10) for _ in range(8)]
    found = assign_pieces(pieces, held_by={"a": 2}, ranks=4)
    assert sorted(Counter(found).values()) == [2, 2, 2, 2]


def test_a_huge_rollout_has_a_rank_of_its_own() -> None:
    pieces = [piece("a", 1000), *(piece("a", 10) for _ in range(6))]
    found = assign_pieces(pieces, held_by={"a": 0}, ranks=3)
    assert found[0] not in found[1:]


def simply_assigned(
    pieces: list[Piece], held_by: dict[str, int], ranks: int
) -> tuple[tuple[int, ...], list[int]]:
    """The rule with every size summed up anew: ranks of the pieces, and tokens of the ranks."""
    parts: list[dict[str, list[int]]] = [{} for _ in range(ranks)]
    for index, piece in enumerate(pieces):
        parts[held_by[piece.group_id]].setdefault(piece.group_id, []).append(index)

    def size(members: list[int]) -> int:
        own = [pieces[index] for index in members]
        return sum(p.own for p in own) + max((p.prompt for p in own), default=0)

    def tokens() -> list[int]:
        return [sum(map(size, part.values())) for part in parts]

    for whole in (True, False):
        while max(tokens()) * ranks > BALANCED * sum(tokens()):
            longest = max(range(ranks), key=lambda rank: (tokens()[rank], -rank))
            shortest = min(range(ranks), key=lambda rank: (tokens()[rank], rank))
            before, best = tokens(), None
            least = (before[longest], 0)
            for group, here in parts[longest].items():
                there = parts[shortest].setdefault(group, [])
                for unit in [here] if whole and here else [[index] for index in here]:
                    left = [index for index in here if index not in unit]
                    after = (
                        before[longest] + size(left) - size(here),
                        before[shortest] + size([*there, *unit]) - size(there),
                    )
                    if (max(after), sum(after)) < least:
                        best, least = (group, unit, left), (max(after), sum(after))
            if best is None:
                break
            group, unit, left = best
            parts[longest][group] = left
            parts[shortest][group] = [*parts[shortest][group], *unit]
    where = {index: rank for rank, part in enumerate(parts) for m in part.values() for index in m}
    return tuple(where[index] for index in range(len(pieces))), tokens()


@settings(max_examples=200, deadline=None)
@given(
    rows=st.lists(
        st.tuples(st.sampled_from("abcdef"), st.integers(0, 9), st.integers(0, 4)),
        min_size=1,
        max_size=20,
    ),
    scale=st.sampled_from([1, 37]),
    ranks=st.integers(1, 5),
    where=st.lists(st.integers(0, 4), min_size=6, max_size=6),
)
def test_moves_are_those_of_the_simple_rule(
    rows: list[tuple[str, int, int]], scale: int, ranks: int, where: list[int]
) -> None:
    """Small numbers, so that many moves are equally good. Fails if the kept sums drift from the
    pieces, if a prompt that a second piece has counts as gone, or if another of equal moves is
    taken: ranks of different versions would no longer agree."""
    pieces = [piece(group, own * scale, prompt) for group, own, prompt in rows]
    held_by = {group: rank % ranks for group, rank in zip("abcdef", where, strict=True)}
    wanted, tokens = simply_assigned(pieces, held_by, ranks)
    found = assign_pieces(pieces, held_by=held_by, ranks=ranks)
    assert found == wanted
    assert loads(pieces, found, ranks) == tokens


@settings(max_examples=200, deadline=None)
@given(
    sizes=st.lists(st.lists(st.integers(1, 400), min_size=1, max_size=6), min_size=1, max_size=8),
    prompt=st.integers(0, 50),
    ranks=st.integers(1, 5),
    where=st.integers(0, 4),
)
def test_no_share_exceeds_the_mean_by_more_than_a_rollout(
    sizes: list[list[int]], prompt: int, ranks: int, where: int
) -> None:
    """Fails if moves stop too early, or if the loads that they go by are not those there are."""
    pieces = [piece(str(g), own, prompt) for g, members in enumerate(sizes) for own in members]
    held_by = {str(g): where % ranks for g in range(len(sizes))}
    found = assign_pieces(pieces, held_by=held_by, ranks=ranks)
    tokens = loads(pieces, found, ranks)
    largest = max(p.own + p.prompt for p in pieces)
    mean = sum(tokens) / ranks
    assert max(tokens) <= max(BALANCED * mean, min(tokens) + largest)
    assert found == assign_pieces(pieces, held_by=held_by, ranks=ranks)
