"""Columns of tables in the terminal with the same content: shown once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from rich.text import Text

REWARD_AND_SCORE = "reward = score"
"""Name of both where the environment's score is the reward."""
Cell = TypeVar("Cell", str, Text, "Text | str")


def joined_columns(
    columns: Sequence[str], lines: Sequence[Sequence[Cell]]
) -> tuple[list[str], list[list[Cell]]]:
    """The columns `reward` and `score` as one where they agree in every line.

    Example:
        >>> joined_columns(["n", "reward", "score"], [["1", "0.5", "0.5"]])
        (['n', 'reward = score'], [['1', '0.5']])
    """
    names, kept = list(columns), [list(cells) for cells in lines]
    if {"reward", "score"} <= {*names} and kept:
        reward, score = names.index("reward"), names.index("score")
        if all(str(cells[reward]) == str(cells[score]) for cells in kept):
            names[reward] = REWARD_AND_SCORE
            for cells in (names, *kept):
                del cells[score]
    return names, kept
