"""The best walk through a Gymnasium game that names what every move does: for `agentrl preflight`.

The toy-text games (FrozenLake, Taxi, CliffWalking) have a table `P[state][move]` of outcomes. Where
each move has one outcome, the walk with the highest return can be worked out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_MOST = 3_000_000
"""Table look-ups, which take seconds; a larger game has no plan."""

Outcomes = Mapping[int, Mapping[int, tuple[int, float, bool]]]
"""Next state, reward and end, by state and move."""


def best_moves(game: Any, seed: int, most: int) -> list[int] | None:
    """The moves of the best episode that begins with `seed`, in at most so many of them.

    Returns:
        The shortest of the best; None where the game has no table, or leaves moves to chance.
    """
    bare = game.unwrapped
    if not hasattr(bare, "P"):
        return None
    game.reset(seed=seed)
    start = int(bare.s)
    table = _table(bare.P, start)
    if table is None or len(table) * max(map(len, table.values())) * most > _MOST:
        return None
    # Return and, of equal ones, how soon the end comes, of the best walk with so many moves left.
    best = dict.fromkeys(table, (0.0, 0))
    plans: list[dict[int, int]] = []
    for _ in range(most):
        found = {state: _best_move(moves, best) for state, moves in table.items()}
        best = {state: worth for state, (worth, _) in found.items()}
        plans.append({state: move for state, (_, move) in found.items()})
    walk: list[int] = []
    state, over = start, False
    while plans and not over:
        walk.append(plans.pop()[state])
        state, _, over = table[state][walk[-1]]
    return walk


def _best_move(
    moves: Mapping[int, tuple[int, float, bool]], best: Mapping[int, tuple[float, int]]
) -> tuple[tuple[float, int], int]:
    choices: list[tuple[tuple[float, int], int]] = []
    for move, (then, reward, over) in moves.items():
        worth, ends = (0.0, 0) if over else best[then]
        choices.append(((reward + worth, ends - 1), move))
    return max(choices)


def _table(outcomes: Mapping[int, Any], start: int) -> Outcomes | None:
    """The table of reachable states; None if anything is left to chance."""
    table: dict[int, dict[int, tuple[int, float, bool]]] = {}
    waiting = [start]
    while waiting:
        state = waiting.pop()
        if state in table:
            continue
        table[state] = {}
        for move, found in outcomes[state].items():
            if len(found) != 1:
                return None
            _, then, reward, over = found[0]
            table[state][int(move)] = (int(then), float(reward), bool(over))
            if not over:
                waiting.append(int(then))
    return table
