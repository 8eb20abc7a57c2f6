"""The change of a score shared out among causes, and what two runs began with."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from agentrl.data.run.paths import RunPaths
from agentrl.errors import RunError
from agentrl.inspect.pages.compare.answer import Side, compare_answer
from agentrl.inspect.pages.compare.causes import (
    cause_table,
    failure_causes,
    parts_by_task,
    parts_of_change,
)
from agentrl.inspect.pages.compare.starts import same_model
from agentrl.inspect.pages.compare.tried import Tried
from agentrl.inspect.read.reader import RunReader
from agentrl.inspect.read.runs import FoundRun
from agentrl.inspect.web.library import Library
from agentrl.inspect.web.task_questions import TASK_ANSWERS
from agentrl.types import CallStatus, Role, Termination, ToolCall, Trajectory
from tests.inspect.synthetic import make_rollout, write_step


def tried(tasks: list[str], scores: list[float], causes: list[str]) -> Tried:
    names = list(dict.fromkeys(tasks))
    return Tried(
        rollouts=pa.table({}),
        tasks=names,
        of_task=np.array([names.index(task) for task in tasks], dtype=np.int64),
        scores=np.array(scores),
        causes=np.array(causes, dtype=object),
        turns=np.ones(len(tasks)),
    )


def test_a_part_is_the_rate_before_times_the_score_after_less_the_reverse() -> None:
    before = tried(list("aabbx"), [0, 0, 1, 1, 0], ["error", "wrong", "", "", "error"])
    after = tried(list("aabby"), [1, 1, 1, 0, 0], ["", "", "", "wrong", "wrong"])
    # Task a: half failed by each cause, all solved after. Task b: half of it is lost by a wrong
    # answer. Tasks x and y are of one set only.
    assert parts_of_change(before, after) == {"error": 0.25, "wrong": 0.25 - 0.25}
    # As many failures before and after say nothing of the part: they are of other tasks.
    by_task = {cause: of.tolist() for cause, of in parts_by_task(before, after).items()}
    assert by_task == {"error": [0.5, 0.0], "wrong": [0.5, -0.5]}
    table = cause_table(before, after, {}, {"solved": [], "lost": []}, parts_by_task(before, after))
    assert {one["why"]: one["note"] for one in table} == {
        "error": "gained on 1 task, lost on 0", "wrong": "gained on 1 task, lost on 1",
    }  # fmt: skip


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-3.0, 5.0)])
def test_parts_add_up_to_the_change_of_any_scores(low: float, high: float) -> None:
    """Fails if what a cause is worth depends on how many rollouts a task has, or on the bounds."""
    random = np.random.default_rng(0)
    for _ in range(20):
        sides: list[Tried] = []
        means: list[dict[str, float]] = []
        for size in random.integers(5, 40, 2):
            tasks = [str(task) for task in random.integers(0, 8, size)]
            scores = random.uniform(low, high, size)
            scores[random.random(size) < 0.1] = np.nan
            causes = [
                "" if not score < high else str(random.choice(["a", "b", "c"])) for score in scores
            ]
            sides.append(tried(tasks, list(scores), causes))
            known = [(t, s) for t, s in zip(tasks, scores, strict=True) if s == s]
            means.append(
                {t: float(np.mean([s for u, s in known if u == t])) for t in {t for t, _ in known}}
            )
        common = means[0].keys() & means[1].keys()
        change = np.mean([means[1][task] - means[0][task] for task in common]) if common else 0.0
        assert sum(parts_of_change(*sides).values()) == pytest.approx(change, abs=1e-9)


def test_every_failed_rollout_has_one_cause() -> None:
    done, no_call = Termination.ENV_DONE, Termination.NO_TOOL_CALL
    ends = [no_call, no_call, done, Termination.MAX_TOKENS, done, done, done, done]
    scores = np.array([1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.75, np.nan])
    found = failure_causes(
        ends,
        scores,
        broken_last=np.array([1, 0, 0, 1, 1, 1, 1, 1]) > 0,
        raised=np.array([0.0, 0.0, np.nan, 1.0, 1.0, 0.0, 1.0, np.nan]),
    )
    assert found.tolist() == [
        "", "a wrong answer, no error", "a wrong answer", "ended by max tokens",
        "the answer raised an error", "the last tool call not parsed or broken",
        "solved, but not in full", "",
    ]  # fmt: skip


def run_of(path: Path, prompt: str, tasks: str, *, files: str = "") -> RunReader:
    """A run with one rollout a task, the first of which is failed, that began with a model."""
    rows = [
        replace(
            make_rollout(task, [("assistant", "x")], task_id=task, score=float(task != tasks[0])),
            prompt_text=f"<|im_start|>system\n{prompt}<|im_end|>\n<|im_start|>user\n{task}<|im_end|>\n",
        )
        for task in tasks
    ]
    write_step(path, rows)
    RunPaths(path).config_file.write_text(f"model:\n  path: {path.name}\n")
    model = {"path": path.name, "files": {"model.safetensors": files} if files else {}}
    identity = {"model": f"/models/{path.name}", "models": {"model.path": [model]}}
    RunPaths(path).identity_file.write_text(json.dumps(identity))
    return RunReader(FoundRun(id=path.name, path=path))


def test_two_names_of_one_model_are_one_and_two_prompts_are_shown(tmp_path: Path) -> None:
    a = run_of(tmp_path / "a", "Be short.", "tu", files="1")
    b = run_of(tmp_path / "b", "Be long.", "tu", files="1")
    answer = compare_answer(Side(reader=a), Side(reader=b))
    assert (answer["starts"], answer["config"]) == ([], [])
    assert answer["prompts"] == {
        "task_id": "t", "a": "system\nBe short.\nuser\nt", "b": "system\nBe long.\nuser\nt",
    }  # fmt: skip
    other = run_of(tmp_path / "c", "Be short.", "tu", files="2")
    unlike = compare_answer(Side(reader=a), Side(reader=other))
    assert [(one["what"], one["a"], one["b"]) for one in unlike["starts"]] == [
        ("starting model", "/models/a", "/models/c")
    ]
    assert unlike["headline"]["text"].endswith("; not a clean comparison (other starting model).")
    assert not same_model([a, run_of(tmp_path / "d", "", "tu")])


def test_runs_without_a_common_task_are_not_comparable_and_say_why_each_failed(
    tmp_path: Path,
) -> None:
    a, b = run_of(tmp_path / "a", "Be short.", "tu"), run_of(tmp_path / "b", "Be long.", "vwx")
    answer = compare_answer(Side(reader=a), Side(reader=b))
    told = answer["headline"]
    assert (told["verdict"], told["text"]) == (
        "Not comparable:", "A and B share no task (A 0.500 on 2 tasks, B 0.667 on 3 others).",
    )  # fmt: skip
    [cause] = answer["causes"]
    assert (cause["counts"], cause["sizes"], cause["part"]) == ([1, 1], [2, 3], None)
    assert cause["text"] == "A wrong answer: 1 of 2 -> 1 of 3 (50 % -> 33.3 %)."
    assert answer["prompts"] == {"task_id": None, "a": "system\nBe short.",
                                 "b": "system\nBe long."}  # fmt: skip


def test_a_count_of_a_cause_finds_exactly_its_rollouts(tmp_path: Path) -> None:
    """Fails if find has a rule of its own for causes, or finds those of tasks not compared."""
    for run, tasks in (("a", "tuvw"), ("b", "tuvx")):
        rows = [
            make_rollout(
                f"{run}{task}/{n}", [("assistant", "x")], group_id=task, task_id=task,
                score=float(run == "b" and task == "t"),
                termination=Termination.MAX_TOKENS if n else Termination.ENV_DONE,
            )
            for task in tasks
            for n in range(2)
        ]  # fmt: skip
        write_step(tmp_path / run, rows, 3)
    library = Library([tmp_path])
    ids = {reader.run.name: reader.run.id for reader in library.readers()}
    sides = [Side(reader=library.reader(ids[name])) for name in "ab"]
    answer = compare_answer(*sides)
    assert answer["shared_tasks"] == 3
    for cause in answer["causes"]:
        for name, other, count in zip("ab", "ba", cause["counts"], strict=True):
            asked = {"run": ids[name], "kind": "train", "step_min": "3", "step_max": "3",
                     "cause": cause["why"], "against": f"train 3 {ids[other]}"}  # fmt: skip
            found = TASK_ANSWERS["find"](library, asked)
            assert found["total"] == count
            assert {hit["task_id"] for hit in found["hits"]} <= set("tuv")
    with pytest.raises(
        RunError, match="cause: got 'x'; valid: a wrong answer, ended by max tokens"
    ):
        TASK_ANSWERS["find"](library, {"run": ids["a"], "cause": "x"})
    with pytest.raises(ValueError, match="against: got 'train', expected a kind and steps"):
        TASK_ANSWERS["find"](library, {"run": ids["a"], "cause": "x", "against": "train"})


def call(status: CallStatus) -> ToolCall:
    return ToolCall(id="1", name="python", arguments={"code": "1"}, raw="", status=status)


@pytest.mark.parametrize("parser", ["fenced_code", "hermes"])
def test_a_failure_is_named_by_its_last_call_and_open_code_blocks_are_no_broken_calls(
    tmp_path: Path, parser: str
) -> None:
    ok, unclosed, bad = CallStatus.OK, CallStatus.UNCLOSED, CallStatus.MALFORMED
    rows: list[Trajectory] = []
    # The last one has no further call after a tool's error, the one before it has.
    for n, statuses in enumerate([(unclosed, ok), (ok, unclosed), (ok, bad), (ok, ok), (ok,)]):
        texts: list[tuple[Role, str]] = [("assistant", "x"), ("tool", "no"), ("assistant", "y")]
        row = make_rollout(f"{n}/0", texts, task_id=str(n), score=0.0)
        turns = list(row.turns)
        for place, status in zip((0, 2), statuses, strict=False):
            turns[place] = replace(turns[place], tool_calls=(call(status),))
        rows.append(replace(row, turns=tuple(turns)))
    write_step(tmp_path, rows)
    RunPaths(tmp_path).config_file.write_text(f"chat:\n  tool_parser: {parser}\n")
    side = Side(reader=RunReader(FoundRun(id="r", path=tmp_path)), kind="train", steps=(1, 1))
    answer = compare_answer(side, side)
    counts = {one["why"]: one["counts"][0] for one in answer["causes"]}
    numbers = {one["title"]: one["a"]["mean"] for one in answer["numbers"] if one["a"]}
    broken = "the last tool call not parsed or broken"
    if parser == "fenced_code":
        assert counts == {"a wrong answer": 3, broken: 2}
        assert (numbers["code blocks not closed"], numbers["calls not parsed"]) == (0.4, 0.2)
    else:
        assert counts == {"a wrong answer": 2, broken: 3}
        assert numbers["calls not parsed"] == pytest.approx(0.6)
        assert "code blocks not closed" not in numbers
