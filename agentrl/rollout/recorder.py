"""The one place where the token arrays of a trajectory are built.

Ids, mask, log-probabilities and versions grow together, so that position `t` of one is position
`t` of all. `ids` is the very list the engine is given, prompt first: it only ever grows at its end,
and a history that changes in front of that end starts a new row instead (`start_row`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from agentrl.errors import EngineError
from agentrl.types import (
    FinishReason,
    Generation,
    ImageSpan,
    Role,
    ToolCall,
    ToolResult,
    Turn,
)


@dataclass(slots=True, kw_only=True)
class RecordedRow:
    """One row in the making. Legend: `_P` prompt tokens, `_T` response positions."""

    ids: list[int]
    """[_P + _T] What the engine is given next."""
    prompt_length: int
    """_P."""
    temperature: float
    """Sampling temperature of every action token of the row."""
    mask: list[int] = field(default_factory=list)
    """[_T] 1 = sampled."""
    log_probs: list[float] = field(default_factory=list)
    """[_T] 0.0 where the mask is 0."""
    versions: list[int] = field(default_factory=list)
    """[_T] -1 where the mask is 0."""
    turns: list[Turn] = field(default_factory=list)
    """Spans over the response."""
    images: list[ImageSpan] = field(default_factory=list)
    """Images among `ids`, by position."""

    def check(self) -> None:
        """Raise if the arrays have drifted apart.

        Raises:
            ValueError: unequal lengths, or turns that do not cover the response in order.
        """
        length = len(self.ids) - self.prompt_length
        lengths = {
            "ids": length,
            "mask": len(self.mask),
            "log_probs": len(self.log_probs),
            "versions": len(self.versions),
        }
        if len(set(lengths.values())) != 1:
            raise ValueError(f"recorder: unequal lengths {lengths}")
        end = 0
        for turn in self.turns:
            if turn.start != end or turn.end < turn.start:
                raise ValueError(f"recorder: turn {turn.start}:{turn.end} follows position {end}")
            end = turn.end
        if end != length:
            raise ValueError(f"recorder: turns end at {end}, the response at {length}")


@dataclass(slots=True)
class _OpenTurn:
    """An assistant turn between its tokens and its reward."""

    text: str
    tool_calls: tuple[ToolCall, ...]
    finish_reason: FinishReason
    duration_s: float


class Recorder:
    """Builds the rows of one rollout."""

    _row: RecordedRow

    def __init__(
        self, prompt_ids: Sequence[int], *, temperature: float, images: Sequence[ImageSpan] = ()
    ) -> None:
        self.rows: list[RecordedRow] = []
        """Rows so far; the last one grows."""
        self.response_tokens = 0
        """Response positions of all rows."""
        self._open: _OpenTurn | None = None
        self.start_row(prompt_ids, temperature=temperature, images=images)

    @property
    def ids(self) -> list[int]:
        """[_P + _T] Everything the engine sees next. Read it, never change it."""
        return self._row.ids

    @property
    def images(self) -> list[ImageSpan]:
        """Images among `ids`. Read it, never change it."""
        return self._row.images

    @property
    def temperature(self) -> float:
        """Of the row that grows."""
        return self._row.temperature

    def start_row(
        self,
        prompt_ids: Sequence[int] | None = None,
        *,
        temperature: float,
        images: Sequence[ImageSpan] = (),
    ) -> None:
        """Go on in a new row of the same rollout.

        Args:
            prompt_ids: the rewritten history; None keeps the present one, for a row that differs
                in the temperature only.
            temperature: of the action tokens to come.
            images: among `prompt_ids`.
        """
        self._close_turn(None)
        ids = list(self._row.ids if prompt_ids is None else prompt_ids)
        kept = list(self._row.images if prompt_ids is None else images)
        self._row = RecordedRow(
            ids=ids, prompt_length=len(ids), temperature=temperature, images=kept
        )
        self.rows.append(self._row)

    def add_assistant(
        self,
        generation: Generation,
        *,
        text: str,
        tool_calls: tuple[ToolCall, ...] = (),
        duration_s: float = 0.0,
    ) -> None:
        """Append a sampled turn; every id of it is an action, the stop token included.

        Raises:
            EngineError: a log-probability is not a finite number.
        """
        self._close_turn(None)
        row = self._row
        count = len(generation.ids)
        if not math.isfinite(sum(generation.log_probs)):
            raise EngineError(
                "the engine returned a log-probability that is not finite for one of the "
                f"{count} sampled tokens; such a turn cannot be trained on"
            )
        row.ids.extend(generation.ids)
        row.mask.extend([1] * count)
        row.log_probs.extend(generation.log_probs)
        row.versions.extend(generation.policy_versions)
        self.response_tokens += count
        self._open = _OpenTurn(text, tool_calls, generation.finish_reason, duration_s)

    def add_environment(
        self,
        ids: Sequence[int],
        *,
        role: Role,
        text: str,
        tool_results: tuple[ToolResult, ...] = (),
        duration_s: float = 0.0,
        images: Sequence[ImageSpan] = (),
    ) -> None:
        """Append what the environment put there; none of it is an action.

        Args:
            ids: may be empty, for results the model never got to see.
            role: `tool` if there are tool results, else `user`.
            text: what was encoded into `ids`.
            tool_results: what the calls gave.
            duration_s: wall time of tools and step.
            images: among `ids`, from its first one.
        """
        self._close_turn(None)
        row = self._row
        count = len(ids)
        row.images.extend(replace(span, start=span.start + len(row.ids)) for span in images)
        row.ids.extend(ids)
        row.mask.extend([0] * count)
        row.log_probs.extend([0.0] * count)
        row.versions.extend([-1] * count)
        self.response_tokens += count
        start = row.turns[-1].end if row.turns else 0
        row.turns.append(
            Turn(
                role=role,
                start=start,
                end=start + count,
                text=text,
                tool_results=tool_results,
                duration_s=duration_s,
            )
        )

    def set_reward(self, reward: float) -> None:
        """Note the reward of the assistant turn added last; once, before anything else is added.

        Raises:
            ValueError: there is no such turn, or it has its reward.
        """
        if self._open is None:
            raise ValueError("recorder: a reward belongs to the assistant turn added last")
        self._close_turn(reward)

    def attach_data(self, data: Mapping[str, Any]) -> None:
        """Keep data of the environment beside the data of the last tool result.

        Args:
            data: lost where there is no tool result.
        """
        turns = [
            (row, at) for row in self.rows for at, it in enumerate(row.turns) if it.tool_results
        ]
        if data and turns:
            row, at = turns[-1]
            *others, last = row.turns[at].tool_results
            old = last.data if isinstance(last.data, Mapping) else {"result": last.data}
            kept = replace(last, data=dict(data) if last.data is None else {**old, **data})
            row.turns[at] = replace(row.turns[at], tool_results=(*others, kept))

    def finish(self) -> list[RecordedRow]:
        """The checked rows, without later rows in which nothing was sampled.

        Raises:
            ValueError: see `Row.check`.
        """
        self._close_turn(None)
        for row in self.rows:
            row.check()
        return self.rows[:1] + [row for row in self.rows[1:] if any(row.mask)]

    def _close_turn(self, reward: float | None) -> None:
        """Describe the assistant turn whose tokens were added, now that its reward is known."""
        turn, self._open = self._open, None
        if turn is None:
            return
        row = self._row
        row.turns.append(
            Turn(
                role="assistant",
                start=row.turns[-1].end if row.turns else 0,
                end=len(row.ids) - row.prompt_length,
                text=turn.text,
                tool_calls=turn.tool_calls,
                reward=reward,
                finish_reason=turn.finish_reason,
                duration_s=turn.duration_s,
            )
        )
