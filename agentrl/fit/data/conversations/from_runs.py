"""The stored rollouts of a run as conversations: the very tokens that were sampled.

With a least score this is rejection sampling: what the policy did well is learned once more.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agentrl.data.run.paths import RunPaths
from agentrl.data.run.read import require_run
from agentrl.data.store.trajectory_store import TrajectoryStore
from agentrl.errors import DataError, choices
from agentrl.fit.data.conversations.loaded import LoadedConversations
from agentrl.types import Completion, Conversation, Trajectory
from agentrl.types.solved import reaches


def conversations_of_run(
    folder: Path, *, kind: str = "train", min_score: float | None = None, limit: int | None = None
) -> LoadedConversations:
    """One conversation for each stored row whose reward can be trusted.

    A rollout whose prompt was changed on the way has several rows, each with a prompt of its own.
    Rows with the same prompt and response are taken once. A response ends with its last sampled
    token: nothing behind it can be learned.

    Args:
        folder: the run directory.
        kind: `train` or `eval/NAME`.
        min_score: rollouts with a lower score, or without one, are left out. The score is the
            environment's verdict, or the reward where there is none.
        limit: most conversations.

    Returns:
        In the order of the steps; `left_out` counts the others by reason.

    Raises:
        RunError: no run directory.
        DataError: nothing of this kind is stored, or no rollout is left; says why.
    """
    require_run(folder)
    store = TrajectoryStore(RunPaths(folder).trajectories)
    if kind not in (kinds := store.kinds()):
        names = [name.encode("ascii", "backslashreplace").decode() for name in kinds]
        raise DataError(f"run {folder}: rollouts of kind {choices(kind, names)}")
    found = LoadedConversations()
    seen: set[tuple[Any, ...]] = set()
    for step in store.steps(kind):
        for stored in store.read(kind, step=step):
            if limit is not None and len(found) >= limit:
                return found
            found.rows += 1
            row = stored.trajectory
            if reason := _left_out(row, min_score):
                found.left_out[reason] += 1
                continue
            conversation = _conversation(row, f"{folder.name}/{kind}/{step}", folder, kind, step)
            digests = tuple(span.digest for span in conversation.completion.images)
            key = conversation.prompt_ids, conversation.completion.ids, digests
            if key in seen:
                found.left_out["the same tokens as another rollout"] += 1
                continue
            seen.add(key)
            found.append(conversation)
    if not found:
        reasons = ", ".join(f"{why} ({count})" for why, count in found.left_out.most_common())
        raise DataError(
            f"run {folder}, kind {kind!r}: none of {found.rows} stored rollouts can be learned: "
            f"{reasons or 'there are none'}"
        )
    return found


def _left_out(row: Trajectory, min_score: float | None) -> str:
    """Why a row is not taken; empty if it is."""
    if not row.rule.reward_trusted:
        return "its reward cannot be trusted"
    if not row.num_action_tokens or not row.prompt_ids:
        return "nothing was sampled"
    score = row.reward if row.score is None else row.score
    if min_score is not None and (score is None or not reaches(score, min_score)):
        return f"a score below {min_score:g}"
    return ""


def _conversation(row: Trajectory, name: str, folder: Path, kind: str, step: int) -> Conversation:
    end = max(index for index, sampled in enumerate(row.response_mask) if sampled) + 1
    part = f"#{row.row_index}" if row.row_index else ""
    return Conversation(
        id=f"{name}/{row.rollout_id}{part}",
        prompt_ids=row.prompt_ids,
        completion=Completion(
            ids=row.response_ids[:end],
            mask=row.response_mask[:end],
            images=tuple(span for span in row.images if span.end <= len(row.prompt_ids) + end),
        ),
        task_id=row.task_id,
        source=f"{folder}, {kind} step {step}, group {row.group_id}",
    )
