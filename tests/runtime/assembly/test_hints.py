"""Hints of a run: filled in from the task, put into every trained prompt, never left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentrl.batch.records import RowKey
from agentrl.chat import build_chat
from agentrl.config import RunConfig, load_config
from agentrl.config.plan import plan_run
from agentrl.errors import DataError
from agentrl.models.source import load_tokenizer
from agentrl.runtime.assembly.hints import check_hints, hint_section, hint_text, open_hints
from agentrl.runtime.assembly.step_batch import StepMaker
from agentrl.types import Message, Task, Termination, Trajectory, TrajectoryGroup
from tests.runtime.tiny_project import write_project

HINT = {"teacher": {"kind": "hint", "hint": "Write {word} and {label}."}}


def test_a_hint_has_columns_and_label() -> None:
    task = Task(id="1", prompt="x", label=7, metadata={"word": "aeiou"})
    assert hint_text("Write {word} and {label}.", task) == "Write aeiou and 7."


@pytest.mark.parametrize(
    ("metadata", "words"),
    [({}, "no such column"), ({"word": ""}, "nothing there"), ({"word": None}, "nothing there")],
)
def test_a_task_without_its_column_is_named(metadata: dict[str, Any], words: str) -> None:
    """Fails if an empty hint makes a teacher that knows no more than the student."""
    task = Task(id="t7", prompt="x", label=7, metadata=metadata)
    with pytest.raises(DataError, match=rf"names 'word', but task t7 has {words}"):
        hint_text("Write {word}.", task)


@pytest.mark.parametrize("hint", ["{word:d}", "{word:{width}}"])
def test_a_format_that_a_column_does_not_have_is_named(hint: str) -> None:
    task = Task(id="t7", prompt="x", label=7, metadata={"word": "aeiou"})
    with pytest.raises(DataError, match=r"cannot be filled in for task t7: .*without a format"):
        hint_text(hint, task)


def project(folder: Path, **changes: Any) -> Path:
    path = write_project(folder, algorithm={"distill": HINT}, **changes)
    rows = "".join(
        f'{{"id": "train-{i}", "prompt": "say {i}", "label": {i}, "word": "w{i}"}}\n'
        for i in range(12)
    )
    (folder / "train.jsonl").write_text(rows)
    return path


def maker_of(config: RunConfig, base: Path) -> StepMaker:
    plan = plan_run(config, base)
    return StepMaker(plan.schedule, hints=open_hints(plan.trainer, plan.tasks, plan.rollouts.chat))


def row_of(chat: Any, task: int, rollout: int, *, index: int = 0) -> Trajectory:
    prompt = chat.render_prompt([Message(role="user", content=f"say {task}")])
    if index:
        said = Message(role="user", content="more")
        prompt += chat.encode_plain("abc") + chat.turn_delta([said], ended=False)
    return Trajectory(
        task_id=f"train-{task}", group_id=f"g{task}", rollout_id=f"g{task}/{rollout}",
        row_index=index, prompt_ids=prompt, response_ids=(65, 66, 67), response_mask=(1, 0, 1),
        rollout_log_probs=(-1.0, 0.0, -1.0), policy_versions=(0, -1, 0), reward=1.0,
        termination=Termination.ENV_DONE,
    )  # fmt: skip


def test_every_trained_row_gets_the_hint_of_its_own_task(tmp_path: Path) -> None:
    """Also rows whose reward has no advantage, and later rows of a rollout. Fails if hints are
    exchanged between tasks, or only first rows get one."""
    path = project(tmp_path)
    config = load_config(path)
    chat = build_chat(load_tokenizer(config.model), config.chat)
    rows = {
        task: (row_of(chat, task, 0), row_of(chat, task, 0, index=1), row_of(chat, task, 1))
        for task in (3, 5)
    }
    groups = [
        TrajectoryGroup(group_id=f"g{task}", task_id=f"train-{task}", trajectories=own)
        for task, own in rows.items()
    ]
    batch = maker_of(config, tmp_path).prepare(1, groups).batch
    prompts = batch.teacher_prompts
    assert prompts is not None
    assert sorted(prompts) == sorted(
        RowKey(group_id=row.group_id, rollout_id=row.rollout_id, row_index=row.row_index)
        for own in rows.values()
        for row in own
    )
    for key, ids in prompts.items():
        (row,) = (
            row
            for own in rows.values()
            for row in own
            if (row.rollout_id, row.row_index) == (key.rollout_id, key.row_index)
        )
        number = row.task_id.removeprefix("train-")
        text, plain = chat.decode_raw(ids.tolist()), chat.decode_raw(row.prompt_ids)
        hint = f"\n\nWrite w{number} and {number}."
        assert text.count(hint) == 1
        assert text.replace(hint, "") == plain
        assert text.index(hint) > text.index("more" if key.row_index else "say")


def test_every_task_is_looked_at_before_a_run(tmp_path: Path) -> None:
    section = hint_section(plan_run(load_config(project(tmp_path)), tmp_path).trainer)
    assert section is not None
    tasks = [Task(id=str(i), prompt="x", label=i, metadata={"word": "a" * i}) for i in range(1, 4)]
    assert check_hints(section, tasks) == len("Write aaa and 3.")
    with pytest.raises(DataError, match="task 9"):
        check_hints(section, [*tasks, Task(id="9", prompt="x", label=9)])


def test_a_row_of_an_unknown_task_is_refused(tmp_path: Path) -> None:
    path = project(tmp_path)
    config = load_config(path)
    chat = build_chat(load_tokenizer(config.model), config.chat)
    groups = [
        TrajectoryGroup(
            group_id="g99", task_id="train-99",
            trajectories=(row_of(chat, 99, 0), row_of(chat, 99, 1)),
        )
    ]  # fmt: skip
    with pytest.raises(DataError, match=r"train-99, which is not among the 12 tasks"):
        maker_of(config, tmp_path).prepare(1, groups)


def test_a_run_without_a_hint_has_no_prompts(tmp_path: Path) -> None:
    config = load_config(write_project(tmp_path))
    chat = build_chat(load_tokenizer(config.model), config.chat)
    group = TrajectoryGroup(
        group_id="g3", task_id="train-3", trajectories=(row_of(chat, 3, 0), row_of(chat, 3, 1))
    )
    assert maker_of(config, tmp_path).prepare(1, [group]).batch.teacher_prompts is None
