"""The stored steps of a run with their counts and means, newest first."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from agentrl.inspect.read.reader import RunReader
from agentrl.inspect.read.safe_json import rows_of, shown

_COLUMNS = ["kind", "step", "group_id", "rollout_id", "reward", "score", "termination"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredStep:
    """One trajectory file in a line."""

    kind: str
    """`train` or `eval/NAME`."""
    step: int
    """Optimizer step."""
    groups: int
    """Groups in it."""
    rollouts: int
    """Rollouts in it; one of several rows counts once."""
    reward: float | None
    """Mean of the trusted rewards; None without any."""
    score: float | None
    """Mean score, as `reward`."""
    terminations: Mapping[str, int]
    """Rollouts by termination."""


def step_list(reader: RunReader) -> list[StoredStep]:
    """Every stored step, the newest first and `train` before evaluations."""
    reader.rows.refresh()
    found: dict[tuple[int, str], dict[str, dict]] = {}
    for row in rows_of(reader.rows.table().select(_COLUMNS)):
        found.setdefault((row["step"], row["kind"]), {})[row["rollout_id"]] = row
    ordered = sorted(found, key=lambda key: (-key[0], key[1] != "train", key[1]))
    return [_step(step, kind, list(found[step, kind].values())) for step, kind in ordered]


def _step(step: int, kind: str, rows: list[dict]) -> StoredStep:
    return StoredStep(
        kind=kind,
        step=step,
        groups=len({row["group_id"] for row in rows}),
        rollouts=len(rows),
        reward=_mean(row["reward"] for row in rows),
        score=_mean(row["score"] for row in rows),
        terminations=Counter(shown(row["termination"], 100) for row in rows),
    )


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None and math.isfinite(value)]
    return sum(known) / len(known) if known else None
