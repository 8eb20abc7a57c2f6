"""Conversations of any source, checked row by row."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentrl.config.schema import DatasetSection
from agentrl.data.example_rows import (
    ANSWERS,
    PROMPTS,
    RowIds,
    mapped,
    read_rows,
    row_name,
    tools_in,
    weight_of,
)
from agentrl.data.tasks.files import SourceRow
from agentrl.errors import ConfigError, choices
from agentrl.fit.data.conversations.from_runs import conversations_of_run
from agentrl.fit.data.conversations.layouts import (
    ConversationLayout,
    conversation_in,
    conversation_layout,
)
from agentrl.fit.data.conversations.loaded import LoadedConversations
from agentrl.types import Completion, Conversation

MAPPED = (
    "messages", "conversations", "prompt", "completion", "system", "tools", "weight", "task_id",
)  # fmt: skip
"""What columns may be mapped; each is also the column taken when it is not."""

_LISTS = ("messages", "conversations")
_INSTEAD = {
    "messages": ("conversations",),
    "conversations": ("messages",),
    "prompt": (*_LISTS, *(name for name in PROMPTS if name != "prompt")),
    "completion": (*_LISTS, *(name for name in ANSWERS if name != "completion")),
}


class _ConversationReading:
    """Conversations as they are found."""

    def __init__(self) -> None:
        self.found = LoadedConversations()
        self.layouts: set[ConversationLayout] = set()
        self._ids = RowIds()

    def add_row(self, row: SourceRow, columns: Mapping[str, str]) -> None:
        if isinstance(row.values, Conversation):
            self._add(row.values, row.where)
            return
        row = mapped(row, columns, instead=_INSTEAD)
        layout = conversation_layout(row)
        prompt, said = conversation_in(row, layout)
        conversation = Conversation(
            id=self._ids.new(row_name(row)),
            prompt=prompt,
            completion=Completion(messages=said),
            tools=tools_in(row),
            weight=weight_of(row),
            task_id=str(row.values.get("task_id") or ""),
            source=row.where,
        )
        self._add(conversation, row.where)
        self.layouts.add(layout)

    def _add(self, conversation: Conversation, where: str) -> None:
        self._ids.add(conversation.id, where)
        self.found.append(conversation)
        said = conversation.completion.messages
        self.found.trailing += bool(said) and said[-1].role != "assistant"


def load_conversations(
    source: str,
    *,
    split: str = "train",
    columns: Mapping[str, str] | None = None,
    args: Mapping[str, Any] | None = None,
    limit: int | None = None,
    base: Path | None = None,
    min_score: float | None = None,
    collect_broken: bool = False,
) -> LoadedConversations:
    """The conversations of a file, a folder, a Hugging Face dataset, a function or a run.

    A function returns `Conversation`s or rows of any layout. Conversations may end with messages
    that the assistant did not answer; they are counted in `LoadedConversations.trailing`.

    Args:
        source: as `data.source` of a fit file.
        split: split to take, where the source has splits; of a run, the kind of rollouts:
            `train` or `eval/NAME`.
        columns: maps the names of `MAPPED` to columns, or to paths into nested ones.
        args: keyword arguments of a function.
        limit: read only the first so many rows; of a run, take the first so many conversations.
        base: folder that relative paths start from; default the working directory.
        min_score: see `conversations_of_run`.
        collect_broken: go on behind a broken row and keep its error in
            `LoadedConversations.broken`.

    Raises:
        DataError: no such source, no rows, or a broken row; names the file and the row.
        RunError: `run:` names no run directory.
        ConfigError: an import string or a column mapping that cannot be used, or a score asked of
            a source that has none.
    """
    if source.startswith("run:"):
        folder = (base or Path.cwd()) / Path(source.removeprefix("run:")).expanduser()
        return conversations_of_run(folder, kind=split, min_score=min_score, limit=limit)
    if min_score is not None:
        raise ConfigError(
            f"min_score is {min_score:g}, but {source!r} has no scores; it belongs to run:FOLDER"
        )
    columns = columns or {}
    for name in columns:
        if name not in MAPPED:
            raise ConfigError(f"columns of conversations: {choices(name, MAPPED)}")
    reading = _ConversationReading()
    found = reading.found
    found.rows, found.broken = read_rows(
        DatasetSection(source=source, split=split, args=dict(args or {})),
        lambda row: reading.add_row(row, columns),
        base=base,
        limit=limit,
        collect_broken=collect_broken,
        what="conversation",
    )
    found.layouts = frozenset(reading.layouts)
    return found
