"""Stored rollouts as the facts that detectors may know, sampled so that a large run stays cheap."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from agentrl.data.store.columns import stored_numbers, unescape
from agentrl.data.store.trajectory_store import TrajectoryStore
from agentrl.errors import DataError
from agentrl.health.measures.error_texts import MOST_ERRORS, error_line
from agentrl.health.measures.texts import copied_share
from agentrl.health.records import LARGEST, RolloutFacts
from agentrl.types import TERMINATION_RULES, Termination, ToolStatus, Trajectory

TEXT_CHARS = 20_000
"""Kept of what one rollout wrote, half of it from its end."""
_ENDINGS = frozenset(name.value for name in TERMINATION_RULES)
_FIRST, _BETWEEN, _LAST = 4, 6, 6
"""Sampled steps of a kind: so many at its start, in between, and at its end. Of a run of fewer than
20 steps, whose quarters `movement` compares by their rollouts, both quarters are among them."""
_COLUMNS = (
    "task_id",
    "group_id",
    "rollout_id",
    "row_index",
    "reward",
    "score",
    "reward_parts",
    "advantage",
    "termination",
    "termination_detail",
    "duration_s",
    "turns",
    "prompt_text",
    "response_mask",
)


def read_rollouts(directory: Path, per_step: int, notes: list[str]) -> list[RolloutFacts]:
    """Some rollouts of the first, the latest and some steps between, by kind and step.

    Args:
        directory: `RUN/trajectories`; may be missing.
        per_step: about so many of each step, whole groups.
        notes: what could not be read is added here.
    """
    store = TrajectoryStore(directory)
    found: list[RolloutFacts] = []
    try:
        chosen = [(kind, sampled_steps(store.steps(kind))) for kind in store.kinds()]
    except (OSError, DataError) as error:
        notes.append(f"trajectories/ cannot be read: {error}")
        return []
    for kind, steps in chosen:
        for step in steps:
            try:
                rows = store.table(_COLUMNS, kind, step=step)
                facts = _of_step(rows, kind, step, per_step)
            except (
                DataError,
                OSError,
                pa.ArrowException,
                ValueError,
                TypeError,
                KeyError,
            ) as error:
                notes.append(f"trajectories of {kind} step {step} cannot be read: {error}")
                continue
            if not facts:
                notes.append(
                    f"trajectories of {kind} step {step} are torn, of another version, or refused "
                    "(links out of the run, or far more in them than a run has)"
                )
            found += facts
    return sorted(found, key=lambda fact: (fact.step, fact.kind != "train", fact.kind))


def rollouts_of_step(
    store: TrajectoryStore, kind: str, step: int, per_step: int
) -> list[RolloutFacts]:
    """About `per_step` stored rollouts of one step, whole groups; empty for a torn file.

    Raises:
        DataError: a file that is well formed and yet not one of ours.
    """
    try:
        return _of_step(store.table(_COLUMNS, kind, step=step), kind, step, per_step)
    except (OSError, pa.ArrowException, ValueError, TypeError, KeyError, AttributeError) as error:
        raise DataError(f"trajectories of {kind} step {step}: {error}") from error


def sampled_steps(steps: Sequence[int]) -> list[int]:
    """Which steps are looked at: the first, the last, and evenly between.

    Example:
        >>> sampled_steps(range(1, 101))
        [1, 2, 3, 4, 18, 31, 44, 56, 69, 82, 95, 96, 97, 98, 99, 100]
    """
    if len(steps) <= _FIRST + _BETWEEN + _LAST:
        return list(steps)
    low, high = _FIRST, len(steps) - _LAST
    stride = (high - low) / (_BETWEEN + 1)
    between = [steps[low + round(stride * (index + 1))] for index in range(_BETWEEN)]
    return sorted({*steps[:low], *between, *steps[high:]})


def facts_of(
    rows: Sequence[Trajectory], *, step: int, kind: str, advantage: float | None
) -> RolloutFacts:
    """The facts of one rollout from its rows, as the run has them in memory."""
    last = max(rows, key=lambda row: row.row_index)
    turns = [turn for row in rows for turn in row.turns]
    results = [result for turn in turns for result in turn.tool_results]
    text = _text(turn.text for turn in turns if turn.role == "assistant")
    return RolloutFacts(
        step=step,
        kind=kind,
        task_id=last.task_id,
        group_id=last.group_id,
        rollout_id=last.rollout_id,
        reward=_trusted(last.reward),
        score=last.score,
        advantage=advantage,
        termination=last.termination.value,
        action_tokens=sum(row.num_action_tokens for row in rows),
        duration_s=last.duration_s,
        turns=sum(turn.role == "assistant" for turn in turns),
        tool_calls=len(results),
        tool_errors=sum(result.status != ToolStatus.OK for result in results),
        text=text,
        parts=dict(last.reward_parts),
        limit=_limit(last.termination.value, last.termination_detail),
        copied=copied_share(text, _text([rows[0].prompt_text])),
        errors=_errors(
            last.termination.value,
            last.termination_detail,
            [call.error for turn in turns for call in turn.tool_calls],
            [(result.status, result.text) for result in results],
        ),
    )


def _of_step(table: pa.Table, kind: str, step: int, per_step: int) -> list[RolloutFacts]:
    """Whole groups, in the order they were written, until there are `per_step` rollouts."""
    ids = table.column("rollout_id").to_pylist()
    groups = table.column("group_id").to_pylist()
    by_group: dict[str, set[str]] = {}
    for group, rollout in zip(groups, ids, strict=True):
        by_group.setdefault(group, set()).add(rollout)
    taken: set[str] = set()
    count = 0
    for group, members in by_group.items():
        if count >= per_step:
            break
        taken.add(group)
        count += len(members)
    keep = [index for index, group in enumerate(groups) if group in taken]
    part = table.take(pa.array(keep, pa.int64())) if len(keep) < len(groups) else table
    sampled = [sum(mask) for mask in part.column("response_mask").to_pylist()]
    rows: dict[str, list[dict[str, Any]]] = {}
    for row, tokens in zip(part.drop_columns(["response_mask"]).to_pylist(), sampled, strict=True):
        rows.setdefault(row["rollout_id"], []).append({**row, "tokens": tokens})
    return [_facts(of_rollout, kind, step) for of_rollout in rows.values()]


def _facts(rows: list[dict[str, Any]], kind: str, step: int) -> RolloutFacts:
    rows.sort(key=lambda row: row["row_index"])
    last = rows[-1]
    turns: list[Mapping[str, Any]] = [turn for row in rows for turn in row["turns"]]
    results = [result for turn in turns for result in turn["tool_results"]]
    text = _text(unescape(turn["text"]) for turn in turns if turn["role"] == "assistant")
    return RolloutFacts(
        step=step,
        kind=kind,
        task_id=unescape(last["task_id"]),
        group_id=unescape(last["group_id"]),
        rollout_id=unescape(last["rollout_id"]),
        reward=_trusted(last["reward"]),
        score=last["score"],
        advantage=last["advantage"],
        termination=last["termination"],
        action_tokens=sum(row["tokens"] for row in rows),
        duration_s=last["duration_s"],
        turns=sum(turn["role"] == "assistant" for turn in turns),
        tool_calls=len(results),
        tool_errors=sum(result["status"] != ToolStatus.OK for result in results),
        text=text,
        parts=stored_numbers(last["reward_parts"]),
        limit=_limit(last["termination"], unescape(last["termination_detail"] or "")),
        copied=copied_share(text, _text([unescape(rows[0]["prompt_text"] or "")])),
        errors=_errors(
            last["termination"],
            unescape(last["termination_detail"] or ""),
            [unescape(call["error"] or "") for turn in turns for call in turn["tool_calls"]],
            [(result["status"], unescape(result["text"] or "")) for result in results],
        ),
    )


def _limit(termination: str, detail: str) -> str:
    """The key that a detail begins with, as `max_turn_tokens: the last turn was cut off ...`."""
    rule = TERMINATION_RULES[Termination(termination)] if termination in _ENDINGS else None
    key, colon, _ = detail.partition(":")
    return key if rule and rule.truncated and colon and key.isidentifier() else ""


def _trusted(reward: float | None) -> float | None:
    """The reward, if numbers can be computed with it."""
    return reward if reward is not None and abs(reward) <= LARGEST else None


def _errors(
    termination: str, detail: str, calls: Sequence[str], results: Sequence[tuple[str, str]]
) -> tuple[str, ...]:
    lost = termination in _ENDINGS and TERMINATION_RULES[Termination(termination)].retried
    failed = [text for status, text in results if status != ToolStatus.OK]
    found = [error_line(text) for text in ([detail] if lost else []) + [*calls, *failed]]
    return tuple(dict.fromkeys(line for line in found if line))[:MOST_ERRORS]


def _text(parts: Iterable[str]) -> str:
    text = "\n".join(parts)
    if len(text) <= TEXT_CHARS:
        return text
    return text[: TEXT_CHARS // 2] + text[-TEXT_CHARS // 2 :]
