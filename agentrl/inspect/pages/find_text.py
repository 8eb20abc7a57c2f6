"""The text that is looked for in the rows of a step, in columns that are read for it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from agentrl.data.store.bounds import open_parquet
from agentrl.data.store.columns import escape
from agentrl.errors import RunError
from agentrl.inspect.pages.find_line import Question
from agentrl.inspect.read.kept_columns import KEPT, mark_of
from agentrl.inspect.read.reader import RunReader
from agentrl.inspect.read.safe_json import shown
from agentrl.inspect.read.shelf import Shelf

_AROUND = 80
"""Characters shown on either side of a hit."""


class WantedText(NamedTuple):
    """The text that is looked for."""

    pattern: str
    regex: bool
    role: str | None

    @classmethod
    def of(cls, question: Question) -> WantedText:
        """The text of a question.

        Raises:
            RunError: it is no regular expression.
        """
        text = question.text
        if len(text) < 3 or not (text.startswith("/") and text.endswith("/")):
            return cls(escape(text), False, question.role)
        wanted = cls(escape(text[1:-1]), True, question.role)
        try:
            re.compile(wanted.pattern)
            wanted.within(pa.array([""]))
        except (re.error, pa.ArrowException) as error:
            raise RunError(f"{text} is no regular expression: {error}") from error
        return wanted

    def within(self, texts: pa.Array | pa.ChunkedArray) -> np.ndarray:
        """[texts] True where a text has it."""
        if self.regex:
            hits = pc.match_substring_regex(texts, self.pattern, ignore_case=True)  # pyright: ignore[reportAttributeAccessIssue] - made at run time
        else:
            plain = self.pattern.isascii() and not any(char.isalpha() for char in self.pattern)
            hits = pc.match_substring(texts, self.pattern, ignore_case=not plain)  # pyright: ignore[reportAttributeAccessIssue] - made at run time
        hits = hits.fill_null(False) if hits.null_count else hits
        return hits.to_numpy(zero_copy_only=False)

    def first(self, text: str) -> re.Match[str] | None:
        """The first hit, in the text itself: in lower case it may have another length."""
        pattern = self.pattern if self.regex else re.escape(self.pattern)
        return re.search(pattern, text, re.IGNORECASE)


def first_hit(long: Mapping[str, Any], wanted: WantedText) -> tuple[list[str] | None, int | None]:
    """Before, match and after of a hit, and its turn; None is the prompt. What the policy wrote
    comes first."""
    texts: list[tuple[str, int | None, str]] = []
    for position, turn in enumerate(long["turns"]):
        texts.append((turn["role"], position, turn["text"]))
        texts += [(turn["role"], position, result["text"]) for result in turn["tool_results"]]
    texts.append(("prompt", None, long["prompt_text"]))
    texts.sort(key=lambda each: each[0] != "assistant")
    for role, position, text in texts:
        match = wanted.first(text or "") if wanted.role in (None, role) else None
        if match:
            at, end = match.span()
            before = shown(text[max(0, at - _AROUND) : at])
            return [before, shown(text[at:end]), shown(text[end : end + _AROUND])], position
    return None, None


def row_groups(
    reader: RunReader, shelf: Shelf, columns: Sequence[str]
) -> Iterator[tuple[int, pa.Table]]:
    """Row groups with the row they begin at; a file that is damaged or was replaced ends early."""
    try:
        mark = mark_of(shelf, columns)
    except OSError as error:
        reader.rows.damaged(shelf.parts[0].file.path, error)
        return
    kept = KEPT.get(mark)
    if kept is not None:
        yield from kept
        return
    read: list[tuple[int, pa.Table]] = []
    whole = True
    for part in shelf.parts:
        try:
            with open_parquet(part.file.path, verify=False) as file:
                part.check(file)
                for group, start in enumerate(part.starts[:-1]):
                    table = file.read_row_group(group, columns=list(columns), use_threads=False)
                    read.append((start, table))
                    yield start, table
        except (OSError, pa.ArrowException, ValueError) as error:
            reader.rows.damaged(part.file.path, error)
            whole = False
    if whole:
        KEPT.keep(mark, reader.path, tuple(read))


def flat_lists(column: pa.ChunkedArray) -> pa.ListArray:
    """A column of lists in one piece."""
    # Joining a single piece would copy it.
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def any_of(lists: pa.ListArray, hits: np.ndarray) -> np.ndarray:
    """[lists] Whether any element of each list is hit."""
    if not hits.any():
        return np.zeros(len(lists), dtype=bool)
    offsets = np.asarray(lists.offsets)
    before = np.zeros(len(hits) + 1, dtype=np.int32)
    np.cumsum(hits, out=before[1:])
    return before[offsets[1:]] > before[offsets[:-1]]
