"""Scores of tasks before and after, one task over the steps, and two sets of rollouts."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from statistics import fmean

import pyarrow as pa
import pytest

from agentrl.data.run.paths import RunPaths
from agentrl.data.run.task_labels import read_task_labels, write_task_labels
from agentrl.errors import RunError
from agentrl.inspect.pages.compare.answer import Side, compare_answer
from agentrl.inspect.pages.overview import run_overview
from agentrl.inspect.pages.task import task_answer
from agentrl.inspect.pages.tasks import TaskQuestion, tasks_answer, usual_ranges
from agentrl.inspect.read.reader import RunReader
from agentrl.inspect.read.runs import FoundRun
from agentrl.inspect.read.task_scores import rows_by_rollout, task_scores
from agentrl.metrics.intervals import paired_difference
from agentrl.types import (
    CallStatus,
    Role,
    Task,
    Termination,
    ToolCall,
    ToolResult,
    ToolStatus,
    Turn,
)
from tests.inspect.synthetic import make_rollout, write_metrics, write_step

TEXT: list[tuple[Role, str]] = [("assistant", "ab")]
BEFORE = {"a": (0.0, 0.0), "b": (1.0, 1.0), "c": (0.0, 1.0), "d": (0.0, 0.0), "e": (1.0,),
          "x-gone": (1.0,)}  # fmt: skip
AFTER = {"a": (1.0, 1.0), "b": (1.0, 0.0), "c": (0.0, 1.0), "d": (0.0, 0.0), "e": (0.75,),
         "Y-new": (1.0,)}  # fmt: skip


def reader_of(path: Path) -> RunReader:
    return RunReader(FoundRun(id=path.name, path=path))


def evaluation(run: Path, step: int, scores: dict[str, tuple[float, ...]]) -> None:
    """An evaluation whose rewards are no scores; one rollout broke and one has two rows."""
    rows = [
        make_rollout(f"{step}-{task}/{n}", TEXT, group_id=f"{step}-{task}", task_id=task,
                     score=score, reward=10 * score, reward_parts={"tests": score, "style": 0.5})
        for task, of_task in scores.items()
        for n, score in enumerate(of_task)
    ]  # fmt: skip
    broken = make_rollout(f"{step}-a/9", TEXT, group_id=f"{step}-a", task_id="a", score=0.0,
                          reward=0.0, termination=Termination.SANDBOX_FAILED)  # fmt: skip
    early = make_rollout(f"{step}-b/0", TEXT, group_id=f"{step}-b", task_id="b", score=0.0)
    later = [row for row in rows if row.rollout_id == f"{step}-b/0"]
    rest = [row for row in rows if row.rollout_id != f"{step}-b/0"]
    second = make_rollout(f"{step}-b/0", TEXT, group_id=f"{step}-b", task_id="b", row_index=1,
                          score=later[0].score, reward=later[0].reward)  # fmt: skip
    write_step(run, [broken, *rest, early, second], step, "eval/held")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two evaluations and six training steps of which each tries two of three tasks."""
    path = tmp_path_factory.mktemp("tasks") / "first"
    evaluation(path, 0, BEFORE)
    evaluation(path, 6, AFTER)
    for step in range(1, 7):
        rows = [
            make_rollout(f"s{step}-{task}/{n}", TEXT, group_id=f"s{step}-{task}", task_id=task,
                         score=None, reward=step / 10)
            for task in ("t0", f"t{step % 3}")
            for n in range(2)
        ]  # fmt: skip
        write_step(path, rows if step % 3 else rows[:2], step)
    write_metrics(path, *({"step": step, "eval/held/score": 0.5} for step in (0, 6)))
    metadata = {"a": ["new", "easy"], "b": ["easy"], "c": ["hard"], "d": ["hard"]}
    tasks = [Task(id=task, prompt="", metadata={"tags": tags, "secret": "s" * 99, "id": task})
             for task, tags in metadata.items()]  # fmt: skip
    write_task_labels(RunPaths(path).task_labels_file, {"eval/held": tasks, "train": []})
    return path


@pytest.fixture(scope="module")
def reader(run: Path) -> RunReader:
    return reader_of(run)


def test_tasks_are_listed_with_their_change_by_gain_and_by_loss(reader, run):
    """Fails if a broken rollout or an early row counts, a reward is taken for a score, tasks with
    one evaluation get a change, or another interval than that of the run's end is shown."""
    answer = tasks_answer(reader, TaskQuestion())
    assert (answer["kind"], answer["before"], answer["after"]) == ("eval/held", (0, 0), (6, 6))
    listed = {task["task_id"]: task for task in answer["tasks"]}
    assert {name: task["change"] for name, task in listed.items()} == {
        "a": 1.0, "b": -0.5, "c": 0.0, "d": 0.0, "e": -0.25, "x-gone": None, "Y-new": None,
    }  # fmt: skip
    assert list(listed) == ["a", "c", "d", "e", "b", "Y-new", "x-gone"]
    by_loss = tasks_answer(reader, TaskQuestion(sort="loss", limit=2))
    assert [task["task_id"] for task in by_loss["tasks"]] == ["b", "e"]
    assert by_loss["total"] == 7
    assert listed["a"]["before"] == {
        "mean": 0.0, "std": 0.0, "n": 2, "step": 0, "group_id": "0-a",
    }  # fmt: skip
    assert listed["Y-new"]["before"] is None
    assert listed["a"]["solved"] == {"steps": 2, "solved": 1, "first": 6}
    assert listed["x-gone"]["solved"]["steps"] == 1
    assert answer["once"] == ""  # t0 comes back in every step
    stores = run / "trajectories"
    ends = [task_scores(stores, "eval/held", step) for step in (0, 6)]
    assert ends[0] == {task: fmean(scores) for task, scores in BEFORE.items()}
    change = paired_difference(*ends)
    shown = answer["change"]
    assert (shown["mean"], shown["low"], shown["high"]) == pytest.approx(
        (change.mean, change.low, change.high)
    )
    assert (shown["tasks"], shown["gained"], shown["lost"]) == (5, 1, 2)
    moved = run_overview(reader)["evals"]["held"]["moved"]
    assert [task["task_id"] for task in moved["gained"]] == ["a"]
    assert moved["lost"][0] == {"task_id": "b", "before": 1.0, "after": 0.5}
    assert (moved["gained_count"], moved["lost_count"], moved["same_count"]) == (1, 2, 2)
    assert moved["families"] is None  # no label divides all of its tasks


def test_the_first_screen_names_families_that_gained_and_were_forgotten(tmp_path: Path) -> None:
    """Fails if a family that was forgotten is seen in the table of tasks alone."""
    solved = {"sort": (3, 0), "sum": (0, 3), "max": (1, 1), "pow": (1, 2), "len": (0, 2),
              "abs": (0, 1)}  # fmt: skip
    names = [f"{family}-{n}" for family in solved for n in range(3)]
    for at, step in enumerate((0, 5)):
        scores = {f"{family}-{n}": (float(n < won[at]),) for family, won in solved.items()
                  for n in range(3)}  # fmt: skip
        rows = [
            make_rollout(f"{step}-{task}/0", TEXT, task_id=task, score=scores[task][0])
            for task in names
        ]
        write_step(tmp_path, rows, step, "eval/held")
        write_metrics(tmp_path, {"step": step, "eval/held/score": 0.5, "eval/held/score_low": 0.4,
                                 "eval/held/score_high": 0.6})  # fmt: skip
    # What names a single task, and what a task has several of, divides nothing.
    tasks = [
        Task(id=name, prompt="", metadata={
            "family": name.split("-")[0], "reference": name, "level": name[-1],
            "tags": ["x", name[-1]]})
        for name in names
    ]  # fmt: skip
    write_task_labels(RunPaths(tmp_path).task_labels_file, {"eval/held": tasks})
    found = run_overview(reader_of(tmp_path))["evals"]["held"]["moved"]["families"]
    assert found["label"] == "family"
    gained = [(one["value"], one["tasks"], one["before"], one["after"]) for one in found["gained"]]
    assert gained == [
        ("sum", [3, 3], 0.0, 1.0), ("len", [3, 3], 0.0, pytest.approx(2 / 3)),
        ("abs", [3, 3], 0.0, pytest.approx(1 / 3)),
    ]  # fmt: skip
    [lost] = found["lost"]
    assert (lost["value"], lost["tasks"], lost["before"], lost["after"]) == ("sort", [3, 3], 1, 0)
    counts = tuple(found[f"{what}_count"] for what in ("gained", "lost", "same"))
    assert counts == (4, 1, 1)


def test_tasks_are_chosen_by_text_by_what_they_were_and_by_label(reader):
    def listed(**asked: object) -> set[str]:
        return {t["task_id"] for t in tasks_answer(reader, TaskQuestion(**asked))["tasks"]}

    assert listed(text="y-NEW") == {"Y-new"}
    assert listed(was="zero") == {"a", "d"}
    assert listed(was="between") == {"c"}
    assert listed(was="one") == {"b", "e", "x-gone"}
    assert listed(labels={"tags": "easy"}) == {"a", "b"}
    answer = tasks_answer(reader, TaskQuestion(labels={"tags": "hard"}))
    assert answer["labels"] == {"tags": ["easy", "hard", "new"]}
    assert answer["change"]["mean"] == 0.0
    assert [(of["value"], of["tasks"], of["change"]) for of in answer["by_label"]["tags"]] == [
        ("new", [1, 1], 1.0), ("easy", [2, 2], 0.25), ("hard", [2, 2], 0.0),
    ]  # fmt: skip
    page = tasks_answer(reader, TaskQuestion(sort="task", limit=2, offset=2))
    assert [task["task_id"] for task in page["tasks"]] == ["b", "c"]
    with pytest.raises(ValueError, match=r"sort: got 'x'; valid: after, before, gain"):
        TaskQuestion(sort="x")
    with pytest.raises(RunError, match=r"kind: got 'eval/no'.* valid: eval/held, train"):
        tasks_answer(reader, TaskQuestion(kind="eval/no"))


def test_training_is_compared_in_ranges_by_reward_where_there_is_no_score(reader):
    assert usual_ranges("train", list(range(1, 7))) == ((1, 2), (5, 6))
    answer = tasks_answer(reader, TaskQuestion(kind="train", before=(1, 3), after=(4, 6)))
    listed = {task["task_id"]: task for task in answer["tasks"]}
    assert listed["t0"]["before"]["mean"] == pytest.approx(0.2)
    assert listed["t0"]["before"]["group_id"] == "s3-t0"
    assert listed["t0"]["change"] == pytest.approx(0.3)
    assert (listed["t1"]["after"]["step"], listed["t1"]["after"]["group_id"]) == (4, "s4-t1")
    assert [cell and cell["mean"] for cell in listed["t1"]["over"]] == [
        0.1, None, None, 0.4, None, None,
    ]  # fmt: skip
    many = tasks_answer(reader, TaskQuestion(kind="train"))["columns"]
    assert many == [(step, step) for step in range(1, 7)]


def test_tasks_that_never_come_back_are_compared_by_label(tmp_path):
    for step, rewards in ((1, (0.0, 0.5)), (2, (1.0, 0.5))):
        rows = [
            make_rollout(f"{step}/{n}", TEXT, group_id=f"{step}{n}", task_id=f"{step}-{n}",
                         score=None, reward=reward)
            for n, reward in enumerate(rewards)
        ]  # fmt: skip
        write_step(tmp_path, rows, step)
    tasks = [Task(id=f"{step}-{n}", prompt="", metadata={"odd": n == 1})
             for step in (1, 2) for n in (0, 1)]  # fmt: skip
    write_task_labels(RunPaths(tmp_path).task_labels_file, {"train": tasks})
    answer = tasks_answer(reader_of(tmp_path), TaskQuestion(before=(1, 1), after=(2, 2)))
    assert answer["change"] is None
    assert answer["by_label"] == {
        "odd": [
            {"value": "false", "tasks": [1, 1], "before": 0.0, "after": 1.0, "change": 1.0},
            {"value": "true", "tasks": [1, 1], "before": 0.5, "after": 0.5, "change": 0.0},
        ]
    }


def test_one_task_is_shown_in_every_step_and_evaluation(reader):
    answer = task_answer(reader, "b")
    assert [(one["kind"], one["step"], one["n"]) for one in answer["groups"]] == [
        ("eval/held", 0, 2), ("eval/held", 6, 2),
    ]  # fmt: skip
    last = answer["groups"][1]
    assert (last["score"]["mean"], last["score"]["std"], last["reward"]["mean"]) == (0.5, 0.5, 5.0)
    assert last["terminations"] == {"env_done": 2}
    assert answer["labels"] == {"tags": ("easy",)}
    assert answer["prompt_text"] == "do it"
    newest = answer["attempts"]
    assert (newest["kind"], newest["step"], answer["once"]) == ("eval/held", 6, False)
    assert [(one["score"], one["text"]) for one in newest["rollouts"]] == [(1.0, "ab"), (0.0, "ab")]
    assert answer["solved"] == ["Solved at step 0 (2 of 2), solved at step 6 (1 of 2)."]
    broken = task_answer(reader, "a")["groups"][0]
    assert (broken["n"], broken["score"]["n"]) == (3, 2)
    with pytest.raises(RunError, match="no rollout of task 'nobody' is stored"):
        task_answer(reader, "nobody")


def acting(name: str, *statuses: ToolStatus, score: float, **more: object):
    """A rollout whose first turn calls a tool once for each status, and once unreadably."""
    wrote = {"path": "a", "text": "b"}
    calls = [
        ToolCall(id=str(n), name="look", arguments=wrote, raw="") for n in range(len(statuses))
    ]
    bad = ToolCall(id="bad", name="", arguments={}, raw="{", status=CallStatus.MALFORMED)
    results = tuple(ToolResult(text="", status=status, name="look") for status in statuses)
    turns = (
        Turn(role="assistant", start=0, end=2, text="ab", tool_calls=(*calls, bad)),
        Turn(role="tool", start=2, end=3, text="x", tool_results=results),
        Turn(role="assistant", start=3, end=4, text="c"),
    )
    row = make_rollout(name, [("assistant", "ab"), ("user", "x"), ("assistant", "c")],
                       group_id=name, task_id=name.partition("/")[0], score=score, reward=score,
                       **more)  # fmt: skip
    return dataclasses.replace(row, turns=turns)


def test_two_runs_are_compared_by_parts_endings_length_tools_and_pairs(reader, tmp_path):
    other = tmp_path / "second"
    ok, error = ToolStatus.OK, ToolStatus.ERROR
    rows = [
        acting("a/0", ok, error, error, score=1.0, reward_parts={"tests": 1.0, "length": 0.25}),
        acting("b/0", ok, score=0.0, termination=Termination.MAX_TURNS),
        acting("c/0", score=1.0),
    ]
    write_step(other, rows, 3, "eval/held")
    answer = compare_answer(Side(reader=reader, steps=(0, 0)), Side(reader=reader_of(other)))
    assert [(of["name"], of["kind"], of["steps"], of["rollouts"]) for of in answer["sides"]] == [
        ("first", "eval/held", (0, 0), 11), ("second", "eval/held", (3, 3), 3),
    ]  # fmt: skip
    numbers = {(one["group"], one["name"]): one for one in answer["numbers"]}
    of = {name: one["b"] and one["b"]["mean"] for (_, name), one in numbers.items()}
    assert of["tool_errors"] == pytest.approx(2 / 3)
    assert of["tool_calls"] == pytest.approx(7 / 3)
    assert (of["parse_errors"], of["turns"], of["tokens"]) == (1, 2, 3)
    assert (of["tests"], of["style"], of["length"]) == (1.0, None, 0.25)
    score = numbers["", "score"]
    assert score["a"]["n"] == 6  # of the three tasks that both tried; the broken one has none
    assert answer["headline"] == {
        "text": "on the 3 shared tasks: A 0.500, B 0.667, B - A = +0.167 [-2.42, +2.75].",
        "better": "",
        "verdict": "Neither is better for certain",
    }
    assert score["change"] == pytest.approx(2 / 3 - 5 / 10)
    assert score["paired"]["mean"] == pytest.approx((1 - 1 + 0.5) / 3)
    # Of the one task of which both have it, so that the difference adds up.
    assert numbers["part of the reward", "tests"]["a"]["mean"] == 0.0
    # Tokens of both rows of the rollout that has two; the mean of the means of three tasks.
    assert numbers["length", "tokens"]["a"]["mean"] == pytest.approx((2 + 3 + 2) / 3)
    ends = {one["name"]: (one["a"], one["b"]) for one in answer["endings"]}
    assert ends == {"env_done": (10, 2), "max_turns": (0, 1), "sandbox_failed": (1, 0)}
    pairs = [(p["task_id"], *(p[side]["rollout_id"] for side in "ab")) for p in answer["solved"]]
    assert pairs == [("a", "0-a/0", "a/0"), ("c", "0-c/0", "c/0")]
    assert [(p["task_id"], p["b"]["rollout_id"]) for p in answer["lost"]] == [("b", "b/0")]
    assert (answer["solved_count"], answer["lost_count"], answer["common_tasks"]) == (2, 1, 3)
    assert sum(one["tasks"] for one in answer["solved_why"]) == 2
    assert answer["lost_why"] == [{"why": "ended by max turns", "tasks": 1}]
    # Where the last turn is closing words, the one that wrote a file before it was graded.
    assert [answer["lost"][0][side]["text"] for side in "ab"] == ["ab", "ab"]
    assert (answer["lost"][0]["b"]["turn"], answer["lost"][0]["b"]["turns"]) == (1, 2)
    assert answer["behaviour"] == []  # of three tasks nothing is certain
    inside = compare_answer(Side(reader=reader), Side(reader=reader))
    assert [of["steps"] for of in inside["sides"]] == [(0, 0), (6, 6)]
    # Task e has lost, too, but is solved in both.
    assert [pair["task_id"] for pair in inside["lost"]] == ["b"]
    across = compare_answer(Side(reader=reader), Side(reader=reader_of(other)))
    assert [of["steps"] for of in across["sides"]] == [(6, 6), (3, 3)]
    with pytest.raises(RunError, match="steps 9 to 9 of eval/held of first hold no rollout"):
        compare_answer(Side(reader=reader, steps=(9, 9)), Side(reader=reader))


def test_labels_that_are_torn_or_too_long_are_left_out(tmp_path):
    path = tmp_path / "task_labels.jsonl"
    good = {"kind": "train", "task": "a", "labels": {"level": 2, "long": "x" * 99, "": "y"}}
    lines = [json.dumps(good), "{torn", json.dumps({"kind": 1}), json.dumps({**good, "labels": 3})]
    path.write_text("\n".join(lines))
    assert read_task_labels(path) == {"train": {"a": {"level": ("2",)}}}
    unlike = [Task(id=str(n), prompt="", metadata={"name": str(n), "one": 1, "many": n // 2})
              for n in range(210)]  # fmt: skip
    write_task_labels(tmp_path / "none.jsonl", {"train": unlike})
    assert not (tmp_path / "none.jsonl").exists()


def test_rows_are_those_of_their_rollout_in_whatever_order_they_are_stored():
    stored = {"rollout_id": ["x", "y", "x", "x"], "row_index": [1, 0, 2, 0]}
    of_row, last = rows_by_rollout(pa.table(stored))
    assert (of_row.tolist(), last.tolist()) == ([1, 0, 1, 1], [1, 2])
    of_shelf, _ = rows_by_rollout(pa.table({**stored, "shelf": [0, 0, 1, 1]}))
    assert of_shelf.tolist() == [0, 1, 2, 2]
