"""Tasks that lack the label which their environment reads are refused by their numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentrl.config import load_config
from agentrl.config.plan import plan_run
from agentrl.errors import DataError
from agentrl.runtime.assembly.parts import load_task_sets
from agentrl.runtime.checks.task_faults import check_labels
from tests.runtime.tiny_project import ENV, write_project

NEEDS = (
    "self.label = float(task.label)",
    "gold = task.label\n        self.gold = gold.strip()",
    "try:\n            n = len(task.label)\n        except TypeError:\n            raise",
)
DOES_WITHOUT = (
    "",
    '"""The label is not read."""',
    "self.gold = task.label  # `if self.gold is None` in a step",
    "gold = task.label\n        if not gold:\n            gold = 'x'\n        gold.strip()",
    "self.gold = task.label.strip() if isinstance(task.label, str) else ''",
    "gold = task.label or 'none'\n        gold.strip()",
    "try:\n            n = int(task.label)\n        except TypeError:\n            n = 0",
)
SCORE = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    if data_source == "style":
        return 1.0
    return float(solution_str == ground_truth.strip())


def strict(data_source, solution_str, ground_truth, extra_info=None):
    return float(solution_str == ground_truth.strip())
"""


def test_tasks_without_a_label_are_refused_only_where_it_is_surely_needed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = write_project(tmp_path)
    rows = [{"id": f"t{n}", "prompt": "p", "label": x} for n, x in enumerate(["1", None, ""])]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "score.py").write_text(SCORE)

    def check(*words: str) -> None:
        plan = plan_run(load_config(run, list(words)), tmp_path)
        caplog.clear()
        check_labels(load_task_sets(plan.tasks), plan.rollouts)

    def reader(code: str) -> str:
        text = ENV.replace("        await asyncio", f"        {code}\n        await asyncio")
        path = tmp_path / f"reader_{len(list(tmp_path.iterdir()))}.py"
        path.write_text(text)
        return f"env.target={path}:Vowels"

    for code in NEEDS:
        with pytest.raises(DataError, match=r"1 of 3 tasks .*, task 2 \('t1'\), and env"):
            check(reader(code))
    for code in DOES_WITHOUT:
        check(reader(code))
        assert caplog.text.count("1 of 3 tasks have no label, task 2 ('t1')") == 1
    check(f"reward.functions.r.target={tmp_path}/score.py:compute_score")
    ours = ("arithmetic:ArithmeticTask", "reasoning:ReasoningTask", "swe:RepairTask")
    for name in ours:
        with pytest.raises(DataError, match=name):
            check(f"env.target=agentrl_envs.{name}")
    for name in (f"{tmp_path}/score.py:strict", "agentrl.reward.math_answers:math_verify"):
        with pytest.raises(DataError, match=r"reward\.functions\.r "):
            check(f"reward.functions.r.target={name}")
    (tmp_path / "train.jsonl").write_text('{"prompt": "p"}\n{"prompt": "q"}\n')
    check(reader(NEEDS[0]))  # nobody has one
