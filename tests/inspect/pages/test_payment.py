"""Rollouts that a reward model pays, while the environment's own verdict counts nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from agentrl.inspect.pages.payment import payment, told_apart
from agentrl.inspect.pages.rollout import rollout_answer
from agentrl.inspect.terminal.text import rollout_lines
from agentrl.types import Explanation, Trajectory
from tests.inspect.synthetic import make_rollout, write_step
from tests.inspect.test_explanations import reader_of

WHY = Explanation(reason="0 of 8 tests passed.", reference="36")


def paid_run(
    folder: Path, *, env_weight: float = 0.0, rows: Sequence[Trajectory] | None = None
) -> Path:
    """A run whose reward model pays -1, while the environment counts `env_weight`."""
    run = folder / "run"
    row = make_rollout("g/0", [("assistant", "a"), ("user", "no"), ("assistant", "b")],
                       reward=-1.0, score=0.0, explanation=WHY,
                       reward_parts={"tests": 0.0, "env": 0.0, "rm": -1.0})  # fmt: skip
    turns = tuple(
        replace(turn, reward=0.0) if turn.role == "assistant" else turn for turn in row.turns
    )
    write_step(run, rows or [replace(row, turns=turns)])
    (run / "config.yaml").write_text(
        f"reward:\n  env_weight: {env_weight}\n  functions: {{}}\n"
        "  models:\n    rm: {path: [rm], weight: 1.0}\n"
    )
    return run


def test_what_is_not_paid_is_marked(tmp_path: Path) -> None:
    answer = rollout_answer(reader_of(paid_run(tmp_path)), "train", 1, "g/0")
    assert answer["outcome"] == (
        "2 turns, ended by env done; reward -1 (paid by rm); score 0 (not paid): "
        "0 of 8 tests passed"
    )
    assert answer["payment"] == [
        {"name": "rm", "value": -1.0, "weight": 1.0},
        {"name": "environment's reward", "value": 0.0, "weight": 0.0},
        {"name": "tests, by the environment", "value": 0.0, "weight": None},
    ]
    assert [part["paid"] for part in answer["explanation"]] == [False, False]
    (row,) = answer["rows"]
    assert [turn["reward_weight"] for turn in row["turns"]] == [0.0, 0.0, 0.0]
    said = "\n".join(line.plain for line in rollout_lines(answer, 200))
    assert said.count("environment's reward 0 (weight 0: not paid)") == 2


def test_what_is_paid_reads_as_before(tmp_path: Path) -> None:
    answer = rollout_answer(reader_of(paid_run(tmp_path, env_weight=0.5)), "train", 1, "g/0")
    assert answer["outcome"] == (
        "2 turns, ended by env done; 0 of 8 tests passed; "
        "reward -1 (paid by environment's reward and rm)"
    )
    assert [part["paid"] for part in answer["explanation"]] == [True, True]
    said = "\n".join(line.plain for line in rollout_lines(answer, 200))
    assert said.count("environment's reward 0 (weight 0.5)") == 2
    assert payment({}, {"tests": 1.0}) == [{"name": "tests", "value": 1.0, "weight": None}]


@pytest.mark.parametrize("text", ["own\n\nlen:\nshort", "len:\nshort"])
def test_reasons_of_functions_stand_apart(text: str) -> None:
    part = {"field": "reason", "title": "reason", "text": text}
    found = told_apart([part], {"env": 0.0, "len": 1.0})
    assert [one["text"] for one in found if one["paid"]] == ["len:\nshort"]
    assert [one["text"] for one in found if not one["paid"]] == ["own"][: text.startswith("own")]
