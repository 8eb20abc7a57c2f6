"""Small made-up runs for what a real run does not come by: several rows, weird ends, odd text."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentrl.data import TrajectoryStore
from agentrl.types import (
    Role,
    Termination,
    ToolResult,
    ToolStatus,
    Trajectory,
    TrajectoryGroup,
    Turn,
)


def make_rollout(
    rollout_id: str,
    texts: Sequence[tuple[Role, str]],
    *,
    group_id: str = "g",
    task_id: str = "t",
    **more: Any,
) -> Trajectory:
    """One byte of a text is one token; only the assistant's are sampled."""
    turns: list[Turn] = []
    ids: list[int] = []
    mask: list[int] = []
    for role, text in texts:
        new = list(text.encode(errors="replace")[:50])
        results = (ToolResult(text=text, name="look", status=ToolStatus.ERROR),)
        turns.append(
            Turn(
                role=role,
                start=len(ids),
                end=len(ids) + len(new),
                text=text,
                tool_results=results if role == "tool" else (),
            )
        )
        ids += new
        mask += [int(role == "assistant")] * len(new)
    values: dict[str, Any] = {
        "prompt_ids": (1, 2, 3),
        "prompt_text": "do it",
        "reward": 1.0,
        "score": 1.0,
        "termination": Termination.ENV_DONE,
        "policy_versions": tuple(0 if m else -1 for m in mask),
    }
    return Trajectory(
        task_id=task_id,
        group_id=group_id,
        rollout_id=rollout_id,
        response_ids=tuple(ids),
        response_mask=tuple(mask),
        rollout_log_probs=tuple(-0.5 if m else 0.0 for m in mask),
        turns=tuple(turns),
        **{**values, **more},
    )


def write_step(
    run: Path, rows: Sequence[Trajectory], step: int = 1, kind: str = "train", **more: Any
) -> Path:
    """Store rows as one step; returns its file."""
    return TrajectoryStore(run / "trajectories").write(step, kind, groups_of(rows), **more)


def write_parts(
    run: Path, parts: Sequence[Sequence[Trajectory]], step: int = 1, kind: str = "train"
) -> list[Path]:
    """Store a step as so many trainer ranks do; returns its files."""
    store = TrajectoryStore(run / "trajectories")
    store.remove(step, kind)
    return [
        store.write_part(step, kind, groups_of(rows), part=part, parts=len(parts))
        for part, rows in enumerate(parts)
    ]


def groups_of(rows: Sequence[Trajectory]) -> list[TrajectoryGroup]:
    """Rows as the groups that they belong to."""
    by_group: dict[str, list[Trajectory]] = {}
    for row in rows:
        by_group.setdefault(row.group_id, []).append(row)
    return [
        TrajectoryGroup(group_id=name, task_id=members[0].task_id, trajectories=tuple(members))
        for name, members in by_group.items()
    ]


def write_metrics(run: Path, *lines: dict[str, Any]) -> None:
    """Append lines to the metrics of a run."""
    run.mkdir(parents=True, exist_ok=True)
    with (run / "metrics.jsonl").open("a") as file:
        file.write("".join(json.dumps(line) + "\n" for line in lines))


def write_live(run: Path, **changes: Any) -> None:
    """Write the live file of a run, as `agentrl.runtime.live_state` does."""
    waits = {"model": {"count": 2, "longest_s": 4.5}, "tool": {"count": 1, "longest_s": 61.0}}
    rollout = {"rollout_id": "step-5/0001-slow/2", "task_id": "slow", "turn": 7, "age_s": 75.0,
               "waits_for": "tool", "waits_s": 61.0, "engine": "vllm-0"}  # fmt: skip
    engine = {"name": "vllm-0", "state": "active", "why": "", "version": 4, "in_flight": 20,
              "slots": 16}  # fmt: skip
    phase = {"name": "rollout", "for_s": 75.0, "rollouts_done": 1, "rollouts": 4, "tokens": 900,
             "batches_done": 0, "batches": 0}  # fmt: skip
    record = {
        "written": time.time(), "pid": 1, "steps_done": 4, "steps": 9, "step_s": 80.0,
        "phase": phase, "engines": [engine],
        "rollouts": {"count": 3, "waits": waits, "oldest": [rollout]},
        "finished_groups": {"count": 1, "oldest_s": 12.0},
    }  # fmt: skip
    (run / "live.json").write_text(json.dumps(record | changes))
