"""Stored rollouts as conversations: which ones, and with which tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentrl.data import TrajectoryStore
from agentrl.errors import DataError, RunError
from agentrl.fit.data.conversations.load import load_conversations
from agentrl.types import Termination, Trajectory
from tests.data.records import group, trajectory


def row(number: int, reward: float | None, **values: Any) -> Trajectory:
    fields: dict[str, Any] = {
        "task_id": "task", "group_id": "g", "rollout_id": f"g-{number}", "reward": reward,
        "score": None, "response_ids": (100 + number, 11, 12, 13, 14), "turns": (),
        "response_mask": (1, 1, 0, 1, 0), "rollout_log_probs": (-0.5, -0.5, 0.0, -0.5, 0.0),
        "policy_versions": (0, 0, -1, 0, -1),
    }  # fmt: skip
    return trajectory(**{**fields, **values})


def store(run: Path, *steps: tuple[Trajectory, ...], kind: str = "train") -> None:
    for step, rows in enumerate(steps):
        TrajectoryStore(run / "trajectories").write(step, kind, [group(*rows)])


def ids(run: Path, **options: Any) -> list[str]:
    loaded = load_conversations("run:run", base=run.parent, **options)
    return [each.id for each in loaded]


def test_a_conversation_has_the_tokens_that_were_sampled(tmp_path: Path) -> None:
    """Fails if the environment's last tokens stay, or ids and mask come apart."""
    store(tmp_path / "run", (row(0, 1.0),))
    (one,) = load_conversations(f"run:{tmp_path / 'run'}")
    assert one.prompt_ids == (1, 2, 3)
    assert (one.completion.ids, one.completion.mask) == ((100, 11, 12, 13), (1, 1, 0, 1))
    assert (one.id, one.task_id) == ("run/train/0/g-0", "task")
    assert one.source == f"{tmp_path / 'run'}, train step 0, group g"


def test_what_cannot_be_learned_is_counted(tmp_path: Path) -> None:
    """Fails if a reward that cannot be trusted is learned from, or the score is not asked first."""
    rows = (
        row(0, 1.0),
        row(1, 1.0, response_ids=(100, 11, 12, 13, 9)),
        row(2, 1.0, score=0.0),
        row(3, 0.0, score=1.0),
        row(4, None, termination=Termination.ENV_CRASHED),
        row(5, 1.0, response_mask=(0,) * 5),
        row(6, None),
    )
    store(tmp_path / "run", rows, (row(7, 1.0, row_index=1),))
    loaded = load_conversations("run:run", base=tmp_path, min_score=0.5)
    names = [each.id for each in loaded]
    assert names == ["run/train/0/g-0", "run/train/0/g-3", "run/train/1/g-7#1"]
    assert loaded.rows == 8
    assert loaded.left_out == {
        "the same tokens as another rollout": 1,
        "a score below 0.5": 2,
        "its reward cannot be trusted": 1,
        "nothing was sampled": 1,
    }
    assert len(ids(tmp_path / "run")) == 5
    assert ids(tmp_path / "run", limit=2) == ["run/train/0/g-0", "run/train/0/g-2"]


def test_other_kinds_can_be_taken(tmp_path: Path) -> None:
    store(tmp_path / "run", (row(0, 1.0),), kind="eval/hard")
    assert ids(tmp_path / "run", split="eval/hard") == ["run/eval/hard/0/g-0"]
    with pytest.raises(DataError, match="rollouts of kind got 'train'; valid: eval/hard"):
        ids(tmp_path / "run")


def test_a_run_without_anything_to_learn_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="does not exist"):
        ids(tmp_path / "run")
    store(tmp_path / "run", (row(0, 0.25),))
    with pytest.raises(DataError, match=r"none of 1 stored .*: a score below 0.5 \(1\)"):
        ids(tmp_path / "run", min_score=0.5)
