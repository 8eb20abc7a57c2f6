"""Preference pairs of any source, checked row by row."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, islice
from pathlib import Path
from typing import Any

from agentrl.config.schema import DatasetSection
from agentrl.data.preferences.files import own_number, sampled_pair, weight_of
from agentrl.data.preferences.layouts import (
    PairLayout,
    ScoredCompletions,
    compared_in,
    layout_of,
)
from agentrl.data.tasks.files import SourceRow
from agentrl.data.tasks.formats import ABSENT
from agentrl.data.tasks.rows import content_hash, value_at
from agentrl.data.tasks.sources import open_source
from agentrl.errors import ConfigError, DataError, choices
from agentrl.types import Message, PreferencePair

MAPPED = ("prompt", "chosen", "rejected", "margin", "label_probability", "weight")
"""What columns may be mapped; each is also the column taken when it is not."""


class LoadedPairs(list[PreferencePair]):
    """Pairs in the order of their source, and what was left out on the way."""

    layouts: frozenset[PairLayout] = frozenset()
    """The layouts that rows had."""
    ties: int = 0
    """Comparisons whose scores say that neither is better."""
    rows: int = 0
    """Rows that were read."""


def load_pairs(
    source: str,
    *,
    split: str = "train",
    columns: Mapping[str, str] | None = None,
    args: Mapping[str, Any] | None = None,
    limit: int | None = None,
    base: Path | None = None,
) -> LoadedPairs:
    """The pairs of a file, a folder, a Hugging Face dataset or a function.

    A function returns `PreferencePair`s or rows of any layout. A row of several scored completions
    gives a pair for each two that differ in score; rows of one rated response are compared within
    their prompt.

    Args:
        source: as `dataset.source`.
        split: split to take, where the source has splits.
        columns: maps `prompt`, `chosen`, `rejected`, `margin`, `label_probability` and `weight`
            to columns, or to paths into nested ones.
        args: keyword arguments of a function.
        limit: read only the first so many rows.
        base: folder that relative paths start from; default the working directory.

    Raises:
        DataError: no such source, no rows, or a broken row; names the file and the row.
        ConfigError: an import string or a column mapping that cannot be used.
    """
    columns = columns or {}
    for name in columns:
        if name not in MAPPED:
            raise ConfigError(f"columns of preference pairs: {choices(name, MAPPED)}")
    found = LoadedPairs()
    seen: set[PairLayout] = set()
    rated: dict[tuple[Message, ...], list[tuple[SourceRow, ScoredCompletions]]] = {}
    ids: dict[str, int] = {}
    section = DatasetSection(source=source, split=split, args=dict(args or {}))
    with contextlib.closing(open_source(section, base=base)) as rows:
        for row in islice(rows, limit):
            found.rows += 1
            if isinstance(row.values, PreferencePair):
                found.append(row.values)
                continue
            row = _mapped(row, columns)
            layout = layout_of(row)
            seen.add(layout)
            if layout is PairLayout.SAMPLED:
                found.append(sampled_pair(row))
            elif layout is PairLayout.RATED:
                one = compared_in(row, layout)
                rated.setdefault(one.prompt, []).append((row, one))
            else:
                _add(found, row, compared_in(row, layout), ids)
    for together in rated.values():
        _add(found, together[0][0], _joined([one for _, one in together]), ids)
    if not found.rows:
        raise DataError(f"preference source {source!r}, split {split!r}: no rows")
    found.layouts = frozenset(seen)
    return found


def _mapped(row: SourceRow, columns: Mapping[str, str]) -> SourceRow:
    if not columns or not isinstance(row.values, Mapping):
        return row
    values = dict(row.values)
    for name, path in columns.items():
        value = value_at(row.values, path)
        if value is ABSENT:
            known = choices(path, list(map(str, row.values)))
            raise DataError(f"{row.where}: no column for the {name}: {known}")
        values[name] = value
    return SourceRow(where=row.where, values=values)


def _joined(rated: Sequence[ScoredCompletions]) -> ScoredCompletions:
    return ScoredCompletions(
        prompt=rated[0].prompt,
        completions=[one.completions[0] for one in rated],
        scores=[one.scores[0] for one in rated],
    )


def _add(
    found: LoadedPairs, row: SourceRow, compared: ScoredCompletions, ids: dict[str, int]
) -> None:
    """All pairs of what is compared; a completion without a score takes part in none."""
    given = row.values.get("id") or row.values.get("prompt_id")
    name = str(given) if given else content_hash(row.values)
    ids[name] = ids.get(name, 0) + 1
    if ids[name] > 1:
        name = f"{name}-{ids[name]}"
    several = len(compared.completions) > 2
    given_margin = own_number(row, "margin") if compared.ordered else None
    for first, second, margin in _ordered(compared):
        if margin == 0 and not compared.ordered:
            found.ties += 1
            continue
        found.append(
            PreferencePair(
                id=f"{name}/{first}-{second}" if several else name,
                prompt=compared.prompt,
                chosen=compared.completions[first],
                rejected=compared.completions[second],
                margin=margin if given_margin is None else given_margin,
                label_probability=own_number(row, "label_probability", 0.0, 1.0),
                weight=weight_of(row),
                source=row.where,
            )
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
