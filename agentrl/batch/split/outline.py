"""Outlines of groups: everything that decisions about a step need, and no token.

A rank that has fetched a group checks its rows and sends the outline to all others, a few hundred
bytes a rollout. An outline is a `TrajectoryGroup`: selection, shaping, filters, counts and metrics
take it for one. What they must not read (ids, log-probabilities) raises. What a check found wrong
with a row travels with it, so that every rank refuses the step with the same words.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any

import numpy as np

from agentrl.batch.records import BoolArray, RowKey
from agentrl.batch.rows import CheckedRow, check_row
from agentrl.batch.split.runs import Hidden, Runs
from agentrl.errors import DataError
from agentrl.types import AgentRequest, CallStatus, ToolCall, Trajectory, TrajectoryGroup, Turn

CheckedRows = dict[RowKey, CheckedRow | None]
"""By row what `check_row` made of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutlinedRow:
    """A checked row without its tokens; see `RowFacts`."""

    key: RowKey
    """Names the row."""
    prompt_length: int
    """Tokens before the first response position."""
    mask: Runs
    """[R] 1 where a token is trained, up to the last that a loss looks at."""
    num_trained: int
    """Tokens that are trained."""

    @property
    def mask_R(self) -> BoolArray:
        """[R] The mask as an array, made at each call."""
        return np.asarray(self.mask, dtype=np.bool_)

    @property
    def length(self) -> int:
        """Tokens the model reads."""
        return self.prompt_length + len(self.mask)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutlinedTrajectory(Trajectory):
    """A trajectory whose ids, log-probabilities and texts are elsewhere."""

    sampled: int = 0
    """Tokens sampled by the policy."""
    versions: Mapping[int, int] = field(default_factory=dict[int, int])
    """Sampled tokens by the weights that sampled them."""
    checked: OutlinedRow | None = None
    """The row as `check_row` leaves it; None if no loss looks at it, or with a flaw."""
    flaw: str = ""
    """Words of `check_row` for a broken row."""

    @property
    def num_action_tokens(self) -> int:
        """Tokens sampled by the policy."""
        return self.sampled

    @property
    def tokens_by_version(self) -> Mapping[int, int]:
        """Tokens sampled by the policy, by the weights that sampled them."""
        return self.versions


def outline_group(
    group: TrajectoryGroup, *, oldest_version: int | None, looked_at: Sequence[str]
) -> tuple[TrajectoryGroup, CheckedRows]:
    """The outline of a group, and its rows without a flaw, checked.

    Args:
        group: as it was fetched.
        oldest_version: as in `check_row`.
        looked_at: likewise.
    """
    checked: CheckedRows = {}
    rows = tuple(
        _outline(row, checked, oldest_version=oldest_version, looked_at=looked_at)
        for row in group.trajectories
    )
    return replace(group, trajectories=rows), checked


def outlined_rows(trajectories: Sequence[Trajectory]) -> tuple[OutlinedRow, ...]:
    """The rows of some outlines that a loss looks at.

    Raises:
        DataError: the flaw of the first row that has one.
    """
    found = []
    for trajectory in trajectories:
        assert isinstance(trajectory, OutlinedTrajectory)
        if trajectory.flaw:
            raise DataError(trajectory.flaw)
        if trajectory.checked is not None:
            found.append(trajectory.checked)
    return tuple(found)


def _outline(
    row: Trajectory,
    checked: CheckedRows,
    *,
    oldest_version: int | None,
    looked_at: Collection[str],
) -> OutlinedTrajectory:
    key = RowKey.of(row)
    facts, flaw = None, ""
    try:
        found = check_row(row, oldest_version=oldest_version, looked_at=looked_at)
    except DataError as error:
        flaw = str(error)
    else:
        checked[key] = found
        if found is not None:
            facts = OutlinedRow(
                key=key,
                prompt_length=found.prompt_length,
                mask=Runs.of(found.mask_R),
                num_trained=found.num_trained,
            )
    mask = np.fromiter(row.response_mask, np.int64, len(row.response_mask))
    versions = np.fromiter(row.policy_versions, np.int64, len(mask))
    hidden: Any = Hidden(len(mask))
    kept = {item.name: getattr(row, item.name) for item in fields(Trajectory)}
    kept |= {
        "prompt_ids": Hidden(len(row.prompt_ids)),
        "prompt_text": "",
        "response_ids": hidden,
        "response_mask": Runs.of(mask),
        "rollout_log_probs": hidden,
        "policy_versions": hidden,
        "turns": tuple(map(_outlined_turn, row.turns)),
        "requests": tuple(AgentRequest(row=one.row, turn=one.turn) for one in row.requests),
    }
    return OutlinedTrajectory(
        **kept,
        sampled=int(mask.sum()),
        versions=Runs.of(versions[mask != 0]).counts(),
        checked=facts,
        flaw=flaw,
    )


def _outlined_turn(turn: Turn) -> Turn:
    """Spans, reward and statuses, without texts."""
    return replace(
        turn,
        text="",
        tool_calls=tuple(_call(call.status) for call in turn.tool_calls),
        tool_results=tuple(
            replace(result, text="", data=None, call_id="") for result in turn.tool_results
        ),
    )


@cache
def _call(status: CallStatus) -> ToolCall:
    """A call of which nothing but the status is known."""
    return ToolCall(id="", name="", arguments={}, raw="", status=status)
