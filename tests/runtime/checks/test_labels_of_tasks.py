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


def test_tasks_without_the_label_that_is_read_are_refused_by_number(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = write_project(tmp_path)
    labels = ["a", None, "c", ""]
    rows = [{"id": f"t{n}", "prompt": "p", "label": label} for n, label in enumerate(labels)]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def check(name: str, *words: str) -> None:
        code = f"        self.label = task.label{name}\n        await asyncio"
        (tmp_path / "reader.py").write_text(ENV.replace("        await asyncio", code))
        plan = plan_run(load_config(run, list(words)), tmp_path)
        check_labels(load_task_sets(plan.tasks), plan.rollouts)

    target = f"env.target={tmp_path}/reader.py:Vowels"
    with pytest.raises(DataError, match=r"2 of 4 .*task 2 \('t1'\), task 4 \('t3'\), and env"):
        check("", target)
    check(' or "none"', target.replace("reader.py", "./reader.py"))
    assert "2 of 4 tasks have no label" in caplog.text
    check("")  # an environment that reads none
    (tmp_path / "train.jsonl").write_text('{"prompt": "p"}\n{"prompt": "q"}\n')
    check("", target)  # nobody has one
