"""A score that misses 1 by the rounding of a sum is a solved task, wherever that is asked."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from agentrl.config.schema import DatasetSection
from agentrl.data.tasks.difficulty import keep_by_pass_rate
from agentrl.fit.data.conversations.from_runs import _left_out
from agentrl.inspect.pages.find import _by_index
from agentrl.inspect.pages.find_line import parse_question
from agentrl.inspect.pages.tasks import TaskQuestion, _kept
from agentrl.preflight.reward.known_answers import AnswerKind, TriedAnswer
from agentrl.preflight.reward.verdict import _solved
from agentrl.reward import why_filtered
from agentrl.types import Task, Termination, Trajectory
from agentrl.types.solved import is_solved, unrounded

TEN_TENTHS = sum([0.1] * 10)
FLOAT32 = float(np.cumsum(np.full(10, 0.1, dtype=np.float32))[-1])
"""A sum in float32, above 1."""


def test_rounding_is_told_from_a_miss() -> None:
    assert TEN_TENTHS < 1 < FLOAT32
    assert [is_solved(score) for score in (TEN_TENTHS, FLOAT32, 2.0, 0.9999)] == [True] * 3 + [
        False
    ]
    assert [unrounded(score) for score in (TEN_TENTHS, FLOAT32, 1e-9, 0.3)] == [1.0, 1.0, 0.0, 0.3]


@pytest.mark.parametrize("score", [TEN_TENTHS, FLOAT32])
def test_filters_and_views_see_a_solved_task(score: float, tmp_path: Path) -> None:
    """Each of these compared with 1.0 itself."""
    assert why_filtered([score] * 4, (0.0, 1.0)) == "too_easy"
    rows = pa.table({"score": [score, 0.5]})
    assert _by_index(rows, parse_question("score>=1")).num_rows == 1
    assert _by_index(rows, parse_question("score=1")).num_rows == 1
    for was, tasks in (("one", [0]), ("between", [1])):
        assert _kept(["a", "b"], np.array([score, 0.5]), {}, TaskQuestion(was=was)) == tasks  # type: ignore[arg-type]
    tried = TriedAnswer(
        kind=AnswerKind.SOLUTION, task_id="a", text="", reward=score, score=score,
        termination="env_done", detail="", tokens=1, sandbox=False,
    )  # fmt: skip
    assert _solved(tried)
    row = Trajectory(
        task_id="a", group_id="g", rollout_id="g/0", prompt_ids=(1,), response_ids=(2,),
        response_mask=(1,), rollout_log_probs=(-0.1,), policy_versions=(0,), score=score,
        termination=Termination.ENV_DONE,
    )  # fmt: skip
    assert _left_out(row, 1.0) == ""
    section = DatasetSection.model_validate(
        {"source": "x.jsonl", "difficulty": {"source": "column:rate", "keep": [1.0, 1.0]}}
    )
    kept = keep_by_pass_rate([Task(id="a", prompt="", metadata={"rate": score})], section)
    assert [task.id for task in kept] == ["a"]
