"""The turns that an episode is given, and the record of what it showed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from agentrl.types import ToolCall

Turn = str | ToolCall
"""One turn of the model: its text, or a call that it makes."""
Shown = tuple[str, str]
"""A place, as `the feedback`, and a text that a model reads there before its episode is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeScript:
    """Turns of a model for one task, of which the last is repeated until the episode is over."""

    task: int
    """Index of the task."""
    turns: Sequence[Turn]
    """The turns, at least one."""
    kind: Literal["ordinary", "solution", "calls"] = "ordinary"
    """Origin of the turns."""

    def as_json(self) -> dict[str, Any]:
        """Plain data that `script_from` reads."""
        turns = [t if isinstance(t, str) else [t.name, dict(t.arguments)] for t in self.turns]
        return {"task": self.task, "turns": turns, "kind": self.kind}


def script_from(data: Mapping[str, Any]) -> EpisodeScript:
    """A script from what `EpisodeScript.as_json` gave."""
    turns = tuple(t if isinstance(t, str) else call_of(*t) for t in data["turns"])
    return EpisodeScript(task=data["task"], turns=turns, kind=data["kind"])


def call_of(name: str, arguments: Mapping[str, Any]) -> ToolCall:
    """A call of a tool, as a parser gives it."""
    return ToolCall(id="call_0", name=name, arguments=arguments, raw="")


@dataclass(slots=True, kw_only=True)
class Played:
    """An episode that was played to its end."""

    script: EpisodeScript
    """Turns that it was given."""
    lines: tuple[str, ...]
    """Everything that it showed and paid, as comparable text."""
    total: float
    """Sum of its rewards."""
    score: float | None
    """The last score that it gave."""
    shown: Sequence[Shown] = field(default_factory=list[Shown])
    """Texts that the model read."""
    seconds: float = 0.0
    """Wall time."""
