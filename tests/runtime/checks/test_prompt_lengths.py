"""Prompts over `dataset.max_prompt_tokens`: refused with numbers, dropped or shortened."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from agentrl.config import load_config
from agentrl.config.plan import Plan, plan_run
from agentrl.errors import DataError
from agentrl.models.source import load_tokenizer
from agentrl.runtime.assembly.parts import TaskSets, load_task_sets
from agentrl.runtime.checks.task_faults import limit_prompts, scored_tasks, training_tasks
from agentrl.runtime.sampling.checkpoint_scores import RolloutScorer
from tests.runtime.tiny_project import write_project


def test_long_prompts_are_refused_dropped_or_shortened_with_their_number(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = write_project(tmp_path, dataset__source="rows.jsonl")
    chat = [{"role": "system", "content": "S" * 40}, {"role": "user", "content": "x" * 60 + "end"}]
    rows = [
        {"id": "short", "prompt": "ab"},
        {"id": "long", "prompt": "z" * 80 + "tail"},
        {"id": "chat", "prompt": chat},
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def limited(*words: str) -> TaskSets:
        config = load_config(run, [f"dataset.{word}" for word in words])
        plan = plan_run(config, tmp_path)
        return limit_prompts(load_task_sets(plan.tasks), plan.rollouts, plan.tasks)

    assert [task.id for task in limited().train] == ["short", "long", "chat"]
    assert len(limited("max_prompt_tokens=400").train) == 3
    with pytest.raises(DataError) as refused:
        limited("max_prompt_tokens=80")
    text = str(refused.value)
    assert text.startswith("2 of 3 prompts of ")
    assert "more than 80 tokens" in text
    assert re.search(r"the longest (\d+): task \d \('(long|chat)', \d+\), task 3 ", text), text
    kept = limited("max_prompt_tokens=80", "long_prompts=drop").train
    assert [task.id for task in kept] == ["short"]
    assert "2 of 3 prompts" in caplog.text
    assert "they are left out, and 1 are left" in caplog.text
    with pytest.raises(DataError, match="so none is left"):
        limited("max_prompt_tokens=2", "long_prompts=drop")
    tasks = {t.id: t for t in limited("max_prompt_tokens=80", "long_prompts=truncate_left").train}
    text, chatted = tasks["long"].prompt, tasks["chat"].prompt
    assert isinstance(text, str)
    assert text.endswith("ztail")
    assert len(text) < 80
    assert not isinstance(chatted, str)
    system, said = chatted
    assert (system.content, said.content[-3:]) == ("S" * 40, "end")
    config = load_config(run, [])
    tokenizer = load_tokenizer(config.model)
    for task in tasks.values():
        messages = (
            [{"role": "user", "content": task.prompt}]
            if isinstance(task.prompt, str)
            else [{"role": said.role, "content": said.content} for said in task.prompt]
        )
        ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
        assert len(ids) <= 80
    with pytest.raises(DataError, match="cannot be cut"):
        limited("max_prompt_tokens=45", "long_prompts=truncate_left")


def test_prompts_of_evaluations_are_held_to_the_limit_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A score of tasks that the policy cannot read, or of fewer tasks without a word, is none."""
    run = write_project(tmp_path)
    rows = [{"id": f"held-{n}", "prompt": "ab" + "y" * 80 * n} for n in range(3)]
    (tmp_path / "held.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def planned(treatment: str, most: int = 80) -> Plan:
        words = [f"dataset.max_prompt_tokens={most}", f"dataset.long_prompts={treatment}"]
        return plan_run(load_config(run, words), tmp_path)

    refused = r"2 of 3 prompts of .*held.jsonl \(eval.datasets.held\) have more than 80 tokens"
    with pytest.raises(DataError, match=refused):
        scored_tasks(planned("refuse"))
    with pytest.raises(DataError, match=refused):
        RolloutScorer().check(planned("refuse"))
    assert len(training_tasks(planned("refuse")).train) == 12  # the evaluations are not its own
    sets = scored_tasks(planned("drop"))
    assert [task.id for task in sets.evals["held"]] == ["held-0"]
    (note,) = sets.notes
    assert note.endswith("they are left out, and 1 are left")
    assert note in caplog.text
    cut = scored_tasks(planned("truncate_left")).evals["held"]
    assert [task.id for task in cut] == ["held-0", "held-1", "held-2"]
    assert all(len(str(task.prompt)) < 80 for task in cut)
    with pytest.raises(DataError, match="so none is left"):
        scored_tasks(planned("drop", most=2))
