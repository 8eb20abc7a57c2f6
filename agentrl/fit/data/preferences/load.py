"""Preference pairs of any source, checked row by row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from agentrl.config.schema import DatasetSection
from agentrl.data.example_rows import (
    PROMPTS,
    RowIds,
    mapped,
    own_number,
    read_rows,
    row_name,
    tools_in,
    weight_of,
)
from agentrl.data.tasks.files import SourceRow
from agentrl.errors import ConfigError, choices
from agentrl.fit.data.preferences.files import sampled_pair
from agentrl.fit.data.preferences.layouts import (
    PairLayout,
    ScoredCompletions,
    compared_in,
    layout_of,
)
from agentrl.types import PreferencePair

MAPPED = ("prompt", "chosen", "rejected", "margin", "label_probability", "weight", "tools")
"""What columns may be mapped; each is also the column taken when it is not."""
_INSTEAD = {"prompt": PROMPTS[1:]}


class LoadedPairs(list[PreferencePair]):
    """Pairs in the order of their source, and what was left out on the way."""

    layouts: frozenset[PairLayout] = frozenset()
    """The layouts that rows had."""
    ties: int = 0
    """Comparisons by whose scores neither is better."""
    unscored: int = 0
    """Completions without a score among others that have one."""
    rows: int = 0
    """Rows that were read."""
    broken: Sequence[str] = ()
    """Errors of rows that could not be read, where they were to be collected."""

    def left_out(self) -> Counter[str]:
        """Comparisons that gave no pair, by reason."""
        reasons = {
            "neither answer is the better one": self.ties,
            "an answer without a score": self.unscored,
        }
        return Counter({why: number for why, number in reasons.items() if number})


class PairReading:
    """Pairs as they are found, row by row."""

    def __init__(self) -> None:
        """Begin without a pair."""
        self.found = LoadedPairs()
        self.layouts: set[PairLayout] = set()
        self.rated: dict[str, list[tuple[SourceRow, ScoredCompletions]]] = {}
        self._ids = RowIds()

    def add_row(self, row: SourceRow, columns: Mapping[str, str]) -> None:
        """Take a row of any layout.

        Raises:
            DataError: a broken one.
        """
        if isinstance(row.values, PreferencePair):
            self._add_own(row.values, row.where)
            return
        row = mapped(row, columns, instead=_INSTEAD)
        layout = layout_of(row)
        if layout is PairLayout.SAMPLED:
            self._add_own(sampled_pair(row), row.where)
        elif layout is PairLayout.RATED:
            one = compared_in(row, layout)
            self.rated.setdefault(repr((one.prompt, tools_in(row))), []).append((row, one))
        else:
            compared = compared_in(row, layout)
            self.add_compared([row] * len(compared.completions), compared)
        self.layouts.add(layout)

    def _add_own(self, pair: PreferencePair, where: str) -> None:
        self._ids.add(pair.id, where)
        self.found.append(pair)

    def finished(self) -> LoadedPairs:
        """All pairs, once every row is there: rated responses are compared within their prompt."""
        for together in self.rated.values():
            self.add_compared([row for row, _ in together], _joined([one for _, one in together]))
        self.rated = {}
        self.found.layouts = frozenset(self.layouts)
        return self.found

    def add_compared(self, rows: Sequence[SourceRow], compared: ScoredCompletions) -> None:
        """All pairs of what is compared; a completion without a score takes part in none.

        Args:
            rows: that of each completion.
            compared: a prompt with its completions.
        """
        name, tools = row_name(rows[0]), tools_in(rows[0])
        several = len(compared.completions) > 2
        if not compared.ordered:
            self.found.unscored += list(compared.scores).count(None)
        for first, second, margin in _ordered(compared):
            if margin == 0 and not compared.ordered:
                self.found.ties += 1
                continue
            row, other = rows[first], rows[second]
            own = own_number(row, "margin") if compared.ordered else None
            pair = PreferencePair(
                id=self._ids.new(f"{name}/{first}-{second}" if several else name),
                prompt=compared.prompt,
                chosen=compared.completions[first],
                rejected=compared.completions[second],
                tools=tools,
                margin=margin if own is None else own,
                label_probability=own_number(row, "label_probability", 0.0, 1.0),
                weight=weight_of(row),
                source=row.where if row is other else f"{row.where} and {other.where}",
            )
            self._add_own(pair, pair.source)


def load_pairs(
    source: str,
    *,
    split: str = "train",
    columns: Mapping[str, str] | None = None,
    args: Mapping[str, Any] | None = None,
    limit: int | None = None,
    base: Path | None = None,
    collect_broken: bool = False,
) -> LoadedPairs:
    """The pairs of a file, a folder, a Hugging Face dataset or a function.

    A function returns `PreferencePair`s or rows of any layout. A row of several scored completions
    gives a pair for each two that differ in score; rows of one rated response are compared within
    their prompt.

    Args:
        source: as `dataset.source`.
        split: split to take, where the source has splits.
        columns: maps `prompt`, `chosen`, `rejected`, `margin`, `label_probability`, `weight`
            and `tools` to columns, or to paths into nested ones.
        args: keyword arguments of a function.
        limit: read only the first so many rows.
        base: folder that relative paths start from; default the working directory.
        collect_broken: go on behind a broken row and keep its error in `LoadedPairs.broken`.

    Raises:
        DataError: no such source, no rows, or a broken row; names the file and the row.
        ConfigError: an import string or a column mapping that cannot be used.
    """
    columns = columns or {}
    for name in columns:
        if name not in MAPPED:
            raise ConfigError(f"columns of preference pairs: {choices(name, MAPPED)}")
    reading = PairReading()
    found = reading.found
    found.rows, found.broken = read_rows(
        DatasetSection(source=source, split=split, args=dict(args or {})),
        lambda row: reading.add_row(row, columns),
        base=base,
        limit=limit,
        collect_broken=collect_broken,
        what="preference",
    )
    return reading.finished()


def _joined(rated: Sequence[ScoredCompletions]) -> ScoredCompletions:
    return ScoredCompletions(
        prompt=rated[0].prompt,
        completions=[one.completions[0] for one in rated],
        scores=[one.scores[0] for one in rated],
    )


def _ordered(compared: ScoredCompletions) -> Iterator[tuple[int, int, float | None]]:
    """The better one, the worse one, and by how much: 0 for a tie, None unknown."""
    for first, second in combinations(range(len(compared.completions)), 2):
        left, right = compared.scores[first], compared.scores[second]
        if left is None or right is None:
            if compared.ordered:
                yield first, second, None
        elif left >= right or compared.ordered:
            yield first, second, left - right
        else:
            yield second, first, right - left
