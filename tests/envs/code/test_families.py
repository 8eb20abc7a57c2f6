"""The generator: determinism, splits, and cases that tell right from wrong."""

from __future__ import annotations

import json

import pytest
from agentrl_envs.code import FAMILIES, HELD_OUT, TRAIN, make_tasks, run_solution
from agentrl_envs.code.env import problem_of
from agentrl_envs.code.runner import same

from agentrl.errors import ConfigError


def _all_tasks(per_family: int, seed: int = 0):
    return make_tasks("train", n=per_family * len(TRAIN), seed=seed) + make_tasks(
        "held_out", n=per_family * len(HELD_OUT), seed=seed
    )


def test_the_split_is_by_family_and_both_halves_span_easy_to_hard():
    assert len(FAMILIES) >= 40
    assert set(TRAIN) | set(HELD_OUT) == set(FAMILIES)
    assert not set(TRAIN) & set(HELD_OUT)
    assert 0.65 <= len(TRAIN) / len(FAMILIES) <= 0.8
    for names in (TRAIN, HELD_OUT):
        assert {FAMILIES[name].level for name in names} == {1, 2, 3}
    train = {task.metadata["family"] for task in make_tasks("train", n=500)}
    held_out = {task.metadata["family"] for task in make_tasks("held_out", n=500)}
    assert train == set(TRAIN)
    assert held_out == set(HELD_OUT)


def test_the_same_seed_draws_the_same_tasks_and_another_does_not():
    # Fails if a draw uses `hash()` or the global generator.
    assert make_tasks(n=100, seed=3) == make_tasks(n=100, seed=3)
    assert make_tasks(n=100, seed=3)[:40] == make_tasks(n=40, seed=3)
    assert make_tasks(n=100, seed=3) != make_tasks(n=100, seed=4)


def test_tasks_have_unique_ids_and_survive_json():
    tasks = _all_tasks(4)
    assert len({task.id for task in tasks}) == len(tasks)
    for task in tasks:
        assert json.loads(json.dumps(task.label)) == task.label
        assert json.loads(json.dumps(dict(task.metadata))) == task.metadata


def test_families_have_several_variants():
    for name in FAMILIES:
        split = "train" if name in TRAIN else "held_out"
        prompts = {task.prompt for task in make_tasks(split, n=12, families=[name])}
        assert len(prompts) >= 3, name


def test_prompts_show_a_public_case_and_no_hidden_one():
    for task in _all_tasks(2):
        first = task.label["public"][0]
        shown = f"{task.label['entry_point']}({', '.join(map(repr, first['args']))})"
        assert f"Example: {shown} == {first['expected']!r}" in task.prompt
        assert len(task.prompt) < 260
        assert len(task.label["public"]) == 2
        assert len(task.label["hidden"]) >= 4
        assert not [case for case in task.label["hidden"] if case in task.label["public"]]


def _passes(source: str, task) -> bool:
    namespace: dict = {}
    exec(source, namespace)
    function = namespace[task.label["entry_point"]]
    try:
        return all(
            same(case["expected"], function(*json.loads(json.dumps(case["args"]))))
            for case in task.label["hidden"]
        )
    except (TypeError, IndexError):
        return False


def test_references_pass_and_obvious_wrong_answers_do_not():
    # Fails if the hidden cases of a variant all have one answer, or all return their argument.
    for seed in (0, 1):
        for task in _all_tasks(6, seed=seed):
            assert _passes(task.metadata["reference"], task), task.id
            head = task.metadata["reference"].splitlines()[0]
            parameter = head[head.index("(") + 1 : head.index(")")].split(",")[0]
            constant = repr(task.label["public"][0]["expected"])
            for body in ("None", constant, parameter, "True", "False", "0", "1", "[]", '""'):
                assert not _passes(f"{head}\n    return {body}\n", task), (task.id, body)


def test_no_constant_and_no_argument_is_right_anywhere():
    # Fails if hidden cases of a drawn task all have one answer: 3 of 1,080 held-out tasks had.
    for seed in range(6):
        for task in _all_tasks(30, seed=seed):
            hidden = task.label["hidden"]
            answers = [case["expected"] for case in hidden]
            arguments = zip(*(case["args"] for case in hidden), strict=True)
            for guesses in ([answers[0]] * len(answers), *arguments):
                assert not all(map(same, answers, guesses)), task.id


async def test_every_family_is_solved_by_its_reference_in_a_sandbox(sandbox):
    for task in _all_tasks(1):
        problem = problem_of(task)
        report = await run_solution(sandbox, task.metadata["reference"], problem, wall_s=5)
        assert report.solved, (task.id, report)
        assert report.public_ok, (task.id, report)


def test_a_selection_can_be_made_and_a_wrong_one_is_explained():
    tasks = make_tasks(n=10, levels=[3])
    assert {task.metadata["level"] for task in tasks} == {3}
    with pytest.raises(ConfigError, match="held_out, train"):
        make_tasks("test")
    with pytest.raises(ConfigError, match="did you mean 'multiply'"):
        make_tasks(families=["multipli"])
    with pytest.raises(ConfigError, match="no task"):
        make_tasks(n=0)
