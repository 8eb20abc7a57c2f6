"""Pass rates on disk, and what they do to the order of tasks."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from agentrl.config.schema import DatasetSection, TrainDatasetSection
from agentrl.data import TaskCursor, load_tasks
from agentrl.data.tasks.difficulty import sampling_weights
from agentrl.data.tasks.pass_rates import (
    Measured,
    PassRate,
    append_measured,
    end_torn_line,
    profile_file,
    read_measured,
    task_digest,
    variance_weight,
)
from agentrl.errors import DataError
from agentrl.types import Task

EASY, HALF, HARD, NEW = (Task(id=name, prompt=name) for name in ("easy", "half", "hard", "new"))


def profile(path: Path, *, digest_of: dict[str, Task] | None = None) -> Path:
    with path.open("ab") as file:
        for task, solved in ((EASY, 8), (HALF, 4), (HARD, 0)):
            scores = [1.0] * solved + [0.0] * (8 - solved)
            task = (digest_of or {}).get(task.id, task)
            item = Measured.of(task, scores, failed=0, model="m", temperature=1.0)
            append_measured(file, item)
    return path


def write_tasks(folder: Path, *tasks: Task) -> str:
    rows = "".join(json.dumps({"id": task.id, "prompt": task.prompt}) + "\n" for task in tasks)
    (folder / "train.jsonl").write_text(rows)
    return "train.jsonl"


def test_what_is_written_is_read_and_the_last_line_counts(tmp_path: Path) -> None:
    path = profile(tmp_path / "rates.jsonl")
    with path.open("ab") as file:
        append_measured(file, Measured.of(HARD, [1.0], failed=3, model="m", temperature=1.0))
    found = read_measured(path)
    assert {name: (item.mean, item.n) for name, item in found.items()} == {
        "easy": (1.0, 8), "half": (0.5, 8), "hard": (1.0, 1),
    }  # fmt: skip
    assert found["hard"].failed == 3
    assert read_measured(tmp_path / "nowhere") == {}


def test_a_torn_line_loses_only_itself(tmp_path: Path) -> None:
    """Fails if half a line ends the reading, or if the next line is glued to it."""
    path = profile(tmp_path / "rates.jsonl")
    path.write_bytes(path.read_bytes()[:-20])
    assert set(read_measured(path)) == {"easy", "half"}
    end_torn_line(path)
    with path.open("ab") as file:
        append_measured(file, Measured.of(NEW, [0.5], failed=0, model="m", temperature=1.0))
    assert set(read_measured(path)) == {"easy", "half", "new"}
    path.write_text('{"a": 1}\n{"b": 2}\n')
    with pytest.raises(DataError, match="2 lines are no pass rates; expected a file that"):
        read_measured(path)


def test_bounds_and_weights_come_from_a_profile(tmp_path: Path) -> None:
    profile(tmp_path / "rates.jsonl")
    source = write_tasks(tmp_path, EASY, HALF, HARD, NEW)
    measured = {"keep": (0.05, 0.9), "source": "rates.jsonl"}
    section = TrainDatasetSection.model_validate(
        {"source": source, "difficulty": measured, "selection": "variance"}
    )
    tasks = load_tasks(section, base=tmp_path)
    assert [task.id for task in tasks] == ["half", "new"]
    weights = sampling_weights(tasks, section, base=tmp_path)
    assert weights == {"half": 25 / 110, "new": 1 / 6}
    assert sampling_weights(tasks, TrainDatasetSection(source=source)) is None


def test_a_task_that_was_changed_is_not_measured(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Fails if an id alone makes a pass rate that of a task which asks something else."""
    other = Task(id="easy", prompt="something else")
    assert task_digest(other) != task_digest(EASY)
    assert task_digest(Task(id="x", prompt="easy")) == task_digest(EASY)
    profile(tmp_path / "rates.jsonl", digest_of={"easy": other})
    section = DatasetSection(
        source=write_tasks(tmp_path, EASY, HALF),
        difficulty={"keep": (0, 0.9), "source": "rates.jsonl"},
    )
    assert [task.id for task in load_tasks(section, base=tmp_path)] == ["easy", "half"]
    assert "1 tasks were changed since rates.jsonl measured them" in caplog.text


def test_no_task_is_lost_for_good() -> None:
    rates = [PassRate(mean=mean, n=8) for mean in (0.0, 0.25, 0.5, 0.75, 1.0)]
    weights = [variance_weight(rate) for rate in rates]
    assert weights == [9 / 110, 21 / 110, 25 / 110, 21 / 110, 9 / 110]
    assert variance_weight(PassRate(mean=0.0, n=10**6)) < 1e-5


def drawn(cursor: TaskCursor, epochs: int, size: int) -> list[Counter[str]]:
    return [Counter(task.id for task in cursor.take(size)) for _ in range(epochs)]


def test_tasks_come_as_often_as_their_weights_say() -> None:
    """Each epoch rounds up or down; over many the share is that of the weights."""
    tasks = [Task(id=str(n), prompt="?") for n in range(10)]
    weights = {task.id: 1.0 + int(task.id) for task in tasks}
    expected = {name: 10 * weight / 55 for name, weight in weights.items()}
    epochs = drawn(TaskCursor(tasks, seed=3, weights=weights), 400, 10)
    for epoch in epochs:
        assert sum(epoch.values()) == 10
        assert all(abs(epoch[name] - expected[name]) < 1 for name in weights)
    for name in weights:
        mean = sum(epoch[name] for epoch in epochs) / 400
        assert mean == pytest.approx(expected[name], abs=0.08)
    equal = drawn(TaskCursor(tasks, seed=3, weights=dict.fromkeys(weights, 0.25)), 5, 10)
    assert all(set(epoch.values()) == {1} for epoch in equal)


def test_a_weighted_order_is_the_same_after_a_resume_and_for_good() -> None:
    tasks = [Task(id=name, prompt="?") for name in "abcdef"]
    weights = {"a": 4.0, "b": 1.0, "c": 1.0, "d": 1.0, "e": 0.5, "f": 0.1}
    first = TaskCursor(tasks, seed=0, weights=weights)
    begun = [task.id for task in first.take(8)]
    state = json.loads(json.dumps(first.state()))
    again = TaskCursor.restore(tasks[::-1], state, weights=weights)
    assert [task.id for task in again.take(10)] == [task.id for task in first.take(10)]
    assert "".join(begun) == "abaaadba"
    for other in (None, {**weights, "a": 3.0}):
        with pytest.raises(DataError, match="put the dataset and its weights back"):
            TaskCursor.restore(tasks, state, weights=other)


def test_weights_that_are_none() -> None:
    tasks = [Task(id="a", prompt="?"), Task(id="b", prompt="?")]
    for weights in ({"a": 1.0}, {"a": 1.0, "b": 0.0}, {"a": 1.0, "b": float("nan")}):
        with pytest.raises(DataError, match=r"positive and finite.*for task 'b'"):
            TaskCursor(tasks, seed=0, weights=weights)


@pytest.mark.parametrize(
    ("values", "place"),
    [
        ({"source": "rows.parquet"}, "_rows.pass-rates.jsonl"),
        ({"source": "rows.csv.gz"}, "_rows.pass-rates.jsonl"),
        ({"source": "folder"}, "folder/_train.pass-rates.jsonl"),
        ({"source": "a.b:make", "args": {"path": "folder"}}, "_folder-train.pass-rates.jsonl"),
        ({"source": "a.b:make", "split": "x"}, "_a.b-make-x.pass-rates.jsonl"),
        ({"source": "a.b:make", "split": "x/y"}, "_a.b-make-x-y.pass-rates.jsonl"),
        ({"source": "hf:owner/name"}, "_hf-owner-name-train.pass-rates.jsonl"),
        ({"source": "a.b:make", "args": {"n": 3}}, "_a.b-make-train-888fede4.pass-rates.jsonl"),
    ],
)
def test_every_kind_of_source_has_one_place(values: dict, place: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for name in ("rows.parquet", "rows.csv.gz"):
        (tmp_path / name).touch()
    assert profile_file(DatasetSection(**values), tmp_path) == tmp_path / place


def test_a_profile_is_found_by_its_word(tmp_path: Path) -> None:
    """Fails if reading looks in another place than writing."""
    (tmp_path / "made.py").write_text(
        "from agentrl.types import Task\n"
        "def tasks(split, n): return [Task(id=str(i), prompt=str(i)) for i in range(n)]\n"
    )
    section = DatasetSection(
        source="made.py:tasks", args={"n": 2}, difficulty={"keep": (0.1, 0.9), "source": "profile"}
    )
    with pytest.raises(DataError, match=r"is not there; measure first, with 'agentrl tasks prof"):
        load_tasks(section, base=tmp_path)
    with profile_file(section, tmp_path).open("wb") as file:
        for name, scores in (("0", [1.0, 1.0]), ("1", [0.0, 1.0])):
            task = Task(id=name, prompt=name)
            item = Measured.of(task, scores, failed=0, model="m", temperature=1.0)
            append_measured(file, item)
    assert [task.id for task in load_tasks(section, base=tmp_path)] == ["1"]
