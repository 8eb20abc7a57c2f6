"""The change of a score shared out among causes, and what two runs began with."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from agentrl.data.run.paths import RunPaths
from agentrl.inspect.pages.compare.answer import Side, compare_answer
from agentrl.inspect.pages.compare.causes import failure_causes, parts_of_change
from agentrl.inspect.pages.compare.starts import same_model
from agentrl.inspect.pages.compare.tried import Tried
from agentrl.inspect.read.reader import RunReader
from agentrl.inspect.read.runs import FoundRun
from agentrl.types import Termination
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
    # A solved one had a broken call, too: only more of them are a cause.
    found = failure_causes(
        ends,
        scores,
        broken_calls=np.array([1, 1, 1, 2, 2, 2, 1, 1]),
        raised=np.array([0.0, 0.0, np.nan, 1.0, 1.0, 0.0, 1.0, np.nan]),
    )
    assert found.tolist() == [
        "", "a wrong answer, no error", "a wrong answer", "ended by max tokens",
        "the answer raised an error", "a tool call not parsed or broken", "solved, but not in full",
        "",
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
    assert cause["text"] == "A wrong answer: 1 of 2 -> 1 of 3 (0.500 -> 0.333)."
    assert answer["prompts"] == {"task_id": None, "a": "system\nBe short.",
                                 "b": "system\nBe long."}  # fmt: skip
