"""What Python says about the source of an answer does not reach the terminal."""

from __future__ import annotations

import pytest
from agentrl_envs.reasoning import make_tasks
from agentrl_envs.reasoning.judge import Judge

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")


def test_doubtful_source_in_an_answer_is_judged_in_silence(capfd: pytest.CaptureFixture) -> None:
    # Fails if the child that judges prints `SyntaxWarning: 'int' object is not callable`.
    (task,) = make_tasks(families=["countdown"], n=1)
    judge = Judge()
    try:
        for answer in ("3 (4)", "1 is 1", "5if 1else 2", "[1] (2)"):
            assert judge.ask("countdown", answer, task.label).score < 1.0
    finally:
        judge.close()
    assert "Warning" not in capfd.readouterr().err
