"""Reward functions of the config, run by a real worker when a rollout ends."""

from __future__ import annotations

import asyncio
import math
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentrl.config.reward import RewardFunction, RewardSection
from agentrl.env import StepResult
from agentrl.errors import ConfigError
from agentrl.reward import RewardFunctions, load_reward_functions
from agentrl.types import Message, Task, Termination, Trajectory
from tests.rollout.rollout_fakes import Bench, Talk

Make = Callable[..., Bench]


def length(trajectory: Trajectory, task: Task, *, per_token: float = 1.0) -> float:
    return per_token * trajectory.num_action_tokens


async def label(trajectory: Trajectory, task: Task) -> Any:
    await asyncio.sleep(0)
    return np.float32(task.label)


def all_rows(trajectory: Trajectory, task: Task, rows: tuple[Trajectory, ...]) -> float:
    assert rows[-1] is trajectory
    return float(len(rows))


def raises(trajectory: Trajectory, task: Task) -> float:
    raise KeyError("no rubric")


def not_a_number(trajectory: Trajectory, task: Task) -> float:
    return float("nan")


def not_one(trajectory: Trajectory, task: Task) -> Any:
    return np.zeros(2)


def nothing(trajectory: Trajectory, task: Task) -> None:
    return None


def slow(trajectory: Trajectory, task: Task) -> float:
    time.sleep(0.5)
    return 0.0


async def hangs(trajectory: Trajectory, task: Task) -> float:
    begun: list[str] = task.metadata.get("begun", [])  # type: ignore[assignment]
    begun.append(trajectory.rollout_id)
    await asyncio.sleep(600)
    return 0.0


def in_the_main_thread(trajectory: Trajectory, task: Task) -> float:
    return float(threading.current_thread() is threading.main_thread())


def compute_score(data_source, solution_str, ground_truth, extra_info=None, per_word=0.0):
    """As one is written for verl."""
    assert (data_source, extra_info) == ("sums", {"level": 2})
    right = solution_str.endswith(f"#### {ground_truth}")
    return {"score": float(right) + per_word * len(solution_str.split()), "acc": right}


def kept_short(solution_str, ground_truth, **kwargs):
    """As one is written for verl; the rest comes by name."""
    assert sorted(kwargs) == ["data_source", "extra_info"]
    return float(solution_str.endswith(ground_truth))


def strict_score(data_source, solution_str, ground_truth, extra_info):
    return extra_info == {}


async def about_right(prompts, completions, answer, level, **columns):
    """As one is written for TRL; `answer` is what this task calls its label."""
    assert level == [2]
    assert columns["data_source"] == ["sums"]
    if isinstance(prompts[0], str):
        return [float(said == answer[0]) for said in completions]
    roles = [[turn["role"] for turn in said] for said in completions]
    assert (prompts[0][0]["role"], roles) == ("user", [["assistant", "user", "assistant"]])
    return [float(said[-1]["content"] == answer[0]) for said in completions]


def by_name(completions, **kwargs):
    """As one is written for TRL that reads a column by its name."""
    return [
        float(said == answer) for said, answer in zip(completions, kwargs["answer"], strict=True)
    ]


def with_state(completions, trainer_state, **columns):
    return [1.0 if trainer_state is None else 0.0] * len(completions)


def not_for_this_one(completions, **columns):
    return [None]


def by_rank(prompts, completions, answer, log_metric, log_extra, **columns):
    """As one is written for TRL that compares the completions of a prompt."""
    count = len(completions)
    assert [len(of) for of in (prompts, answer, columns["level"])] == [count] * 3
    assert len(columns["completion_ids"]) == count
    log_metric("longest", max(map(len, completions)))
    log_extra("said", completions)
    log_extra("length", [len(said) for said in completions])
    ranks = [sorted(completions, key=len).index(said) for said in completions]
    return [None if said == "skip" else rank for said, rank in zip(completions, ranks, strict=True)]


async def too_few(completions, **columns):
    return [1.0]


def only_one(completions, **columns):
    return 1.0


def in_no_order(completions, **columns):
    return {1.0, 0.5}


def nameless(data_source, solution_str, ground_truth):
    return {"correct": 1.0, "format": 0.5}


def soft_overlong(completion_ids):
    return [-len(ids) for ids in completion_ids]


def reward_func(queries, prompts, labels, **rest):
    """As one is written for OpenRLHF."""
    answers = [query.removeprefix(prompt) for query, prompt in zip(queries, prompts, strict=True)]
    right = [float(a == b) for a, b in zip(answers, labels, strict=True)]
    assert "<|im_start|>" in prompts[0]
    logs = {"words": np.array([len(answers[0].split())]), "said": answers, "broken": [math.nan]}
    return {"rewards": np.array(right), "scores": np.array(right), "extra_logs": logs}


def two_columns(completions, first, second):
    return [0.0]


def one_more(data_source, solution_str, ground_truth, judge):
    return 0.0


def ours(trajectory, task, completions=3.0):
    return completions


HERE = f"{Path(__file__).name}:"


def grading(timeout_s: float = 120.0, **section: Any) -> RewardFunctions | None:
    """As the config says; a function may be given by its name in this file alone."""
    functions = {}
    for name, item in section.pop("functions", {}).items():
        keys = {"target": item} if isinstance(item, str) else item
        functions[name] = RewardFunction(**{**keys, "target": HERE + keys["target"]})
    return load_reward_functions(
        RewardSection(functions=functions, **section),
        base=Path(__file__).parent,
        timeout_s=timeout_s,
    )


async def test_the_weighted_sum_and_its_parts(bench: Make) -> None:
    grade = grading(
        env_weight=0.5,
        functions={
            "length": {"target": "length", "weight": -0.25, "args": {"per_token": 2.0}},
            "label": {"target": "label", "weight": 3.0},
            "rows": "all_rows",
        },
    )
    step = StepResult(done=True, rewards=1.0, scores=0.75, reward_parts={"tests": 1.0})
    row = await bench(["ab"], lambda: Talk(step), grade=grade).one(label=2)
    tokens = row.num_action_tokens
    assert row.reward == 0.5 * 1.0 - 0.25 * 2.0 * tokens + 3.0 * 2.0 + 1.0
    assert row.reward_parts == {
        "tests": 1.0, "env": 1.0, "length": 2.0 * tokens, "label": 2.0, "rows": 1.0
    }  # fmt: skip
    # The environment's verdict is its own; and what `step` returned stays on record.
    assert row.score == 0.75
    assert row.turns[0].reward == 1.0


async def test_a_score_follows_the_whole_reward_where_there_is_none(bench: Make) -> None:
    """Fails if the score defaults before the functions ran: with `env_weight` 0 a filter or an
    evaluation would see nothing but the environment's 1."""
    grade = grading(env_weight=0.0, functions={"label": "label"})
    row = await bench(["a"], lambda: Talk(StepResult(done=True, rewards=1.0)), grade=grade).one(
        label=3
    )
    assert (row.reward, row.score) == (3.0, 3.0)
    # An environment whose score happens to be its reward has said so all the same.
    said = StepResult(done=True, rewards=1.0, scores=1.0)
    row = await bench(["a"], lambda: Talk(said), grade=grade).one(label=3)
    assert (row.reward, row.score) == (3.0, 1.0)


@pytest.mark.parametrize(
    ("target", "args", "worth"),
    [
        ("compute_score", {}, 1.0),
        ("compute_score", {"per_word": 0.5}, 2.5),
        ("kept_short", {}, 1.0),
        ("about_right", {}, 0.0),
        ("by_name", {}, 0.0),
        ("with_state", {"trainer_state": None}, 1.0),
        ("not_for_this_one", {}, None),
        ("reward_func", {}, 0.0),
        ("ours", {}, 3.0),
    ],
)
async def test_functions_for_other_trainers_run_unchanged(
    bench: Make, target: str, args: dict[str, Any], worth: float | None
) -> None:
    grade = grading(functions={"f": {"target": target, "args": args}})
    metadata = {"data_source": "sums", "extra_info": {"level": 2}, "level": 2}
    made = bench(["so: #### 4"], Talk, grade=grade)
    row = await made.one(label="4", label_column="answer", metadata=metadata)
    assert (row.termination, row.reward_parts.get("f")) == (Termination.ENV_DONE, worth)


async def test_functions_for_trl_are_given_their_whole_group(bench: Make) -> None:
    """Fails if they are asked for one rollout at a time, where every completion is the best."""
    words = iter(["bb", "a", "skip", "ccc"])
    grade = grading(env_weight=0.0, functions={"f": "by_rank"})
    made = bench(lambda turn, session: next(words), Talk, grade=grade)
    group = await made.group(4, label="4", metadata={"level": 2})
    found = {row.turns[0].text: row for row in group.trajectories}
    assert {said: row.reward for said, row in found.items()} == {
        "a": 0.0, "bb": 1.0, "ccc": 2.0, "skip": None
    }  # fmt: skip
    assert found["skip"].termination is Termination.NOT_JUDGED
    assert "reward.functions (f) returned None" in found["skip"].termination_detail
    # What it logs is for reading: a metric of all, and what of a column is a number.
    assert found["bb"].reward_parts == {
        "env": 1.0, "f": 1.0, "f/longest": 4.0, "f/length": 2.0
    }  # fmt: skip
    for target, got in (
        ("too_few", "1 values"),
        ("only_one", "1.0"),
        ("in_no_order", "{0.5, 1.0}"),
    ):
        grade = grading(functions={"f": target})
        for row in (await bench(["a"], Talk, grade=grade, retries=0).group(2)).trajectories:
            assert row.termination is Termination.GRADER_CRASHED
            assert f"returned {got} for 2 rollouts, expected a sequence" in row.termination_detail


async def test_other_numbers_that_they_give_become_metrics(bench: Make) -> None:
    """Fails if verl's further keys, or OpenRLHF's scores and logs, are lost."""
    grade = grading(functions={"v": "compute_score", "o": "reward_func"})
    metadata = {"data_source": "sums", "extra_info": {"level": 2}}
    row = await bench(["so: #### 4"], Talk, grade=grade).one(label="4", metadata=metadata)
    assert row.reward_parts == {
        "env": 1.0, "v": 1.0, "v/acc": 1.0, "o": 0.0, "o/scores": 0.0, "o/words": 3.0
    }  # fmt: skip
    grade = grading(functions={"f": "nameless"})
    row = await bench(["4"], Talk, grade=grade, retries=0).one(label="4")
    assert row.termination is Termination.GRADER_CRASHED
    assert "a dictionary with ['correct', 'format'], expected 'score'" in row.termination_detail


async def test_what_no_function_judges_is_no_failure(bench: Make) -> None:
    """Fails if TRL's None is taken for a 0, which trains a rollout that nobody judged."""
    talk = StepResult(done=True, rewards=9.0)
    alone = grading(env_weight=0.0, functions={"f": "not_for_this_one"})
    made = bench(["a"], lambda: Talk(talk), grade=alone, retries=3)
    row = await made.one(label=3)
    assert (row.termination, row.reward, row.score) == (Termination.NOT_JUDGED, None, None)
    assert not row.rule.in_baseline
    assert not made.worker.retried  # nothing is broken
    # Beside a function that judges, and beside the environment, it adds nothing.
    both = grading(env_weight=0.0, functions={"f": "not_for_this_one", "label": "label"})
    row = await bench(["a"], lambda: Talk(talk), grade=both).one(label=3)
    assert (row.reward, row.reward_parts) == (3.0, {"env": 9.0, "label": 3.0})
    row = await bench(
        ["a"], lambda: Talk(talk), grade=grading(functions={"f": "not_for_this_one"})
    ).one()
    assert (row.reward, row.reward_parts) == (9.0, {"env": 9.0})


async def test_they_are_given_what_these_trainers_give(bench: Make) -> None:
    metadata = {"data_source": "sums", "level": 2}
    steps = (StepResult(environment_feedback="again"), StepResult(done=True))
    grade = grading(functions={"f": "about_right", "g": "soft_overlong"})
    chat = (Message(role="user", content="2 + 2?"),)
    made = bench(["5", "4"], lambda: Talk(*steps), grade=grade)
    row = await made.one(label="4", metadata=metadata, prompt=chat)
    assert row.reward_parts["f"] == 1.0
    assert row.reward_parts["g"] == -len(row.response_ids)
    for target in ("about_right", "reward_func", "strict_score"):
        grade = grading(functions={"f": target})
        row = await bench(["4"], Talk, grade=grade).one(label="4", metadata=metadata)
        assert row.reward_parts["f"] == 1.0


async def test_what_nobody_fills_is_said(bench: Make) -> None:
    with pytest.raises(ConfigError, match="missing a required argument: judge; name it in args"):
        grading(functions={"f": "one_more"})
    with pytest.raises(ConfigError, match="only TRL's trainer has an argument for trainer_state"):
        grading(functions={"f": "with_state"})
    assert grading(functions={"f": {"target": "one_more", "args": {"judge": "x"}}})
    grade = grading(functions={"f": "two_columns"})
    row = await bench(["4"], Talk, grade=grade, retries=0).one(metadata={"third": 1})
    assert row.termination is Termination.GRADER_CRASHED
    assert "no column for a parameter: got 'first'; valid: third" in row.termination_detail


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("raises", r"reward function 'f' \(test_reward_functions.py:raises\): KeyError: 'no rub"),
        ("not_a_number", "returned nan, expected one finite number"),
        ("not_one", "returned more than one value"),
        ("nothing", "returned None, expected one finite number"),
        ("hangs", "took longer than 0.1 s"),
        ("slow", "took longer than 0.1 s"),
    ],
)
async def test_a_function_that_fails_is_a_crashed_grader(
    bench: Make, target: str, message: str
) -> None:
    # Others have the time of a busy machine.
    limit = 0.1 if target in ("hangs", "slow") else 60.0
    grade = grading(timeout_s=limit, functions={"f": target, "label": "label"})
    made = bench(["a"], Talk, grade=grade, retries=1)
    row = await made.one(label=1)
    assert row.termination is Termination.GRADER_CRASHED
    assert (row.reward, row.score) == (None, None)
    assert row.num_action_tokens > 0
    assert re.search(message, row.termination_detail)
    assert made.worker.retried == {Termination.GRADER_CRASHED: 1}
    assert [env.closed for env in made.envs] == [1, 1]


async def test_a_part_that_both_name_is_an_error_that_says_so(bench: Make) -> None:
    step = StepResult(done=True, rewards=1.0, reward_parts={"label": 1.0})
    grade = grading(functions={"label": "label"})
    row = await bench(["a"], lambda: Talk(step), grade=grade).one(label=1)
    assert row.termination is Termination.GRADER_CRASHED
    assert "the environment gives a reward part 'label', and so does the config" in (
        row.termination_detail
    )


async def test_what_cannot_be_trusted_is_not_graded(bench: Make) -> None:
    """Fails if functions run after a crash: their value would stand in for a reward."""
    grade = grading(functions={"label": "label"})
    row = await bench(["a"], lambda: Talk(ValueError("broken")), grade=grade).one(label=1)
    assert (row.termination, row.reward) == (Termination.ENV_CRASHED, None)


async def test_plain_functions_do_not_hold_the_loop_up(bench: Make) -> None:
    """Fails if they are called on the event loop, where one slow one stops every rollout."""
    grade = grading(functions={"main": "in_the_main_thread"})
    row = await bench(["a"], Talk, grade=grade).one()
    assert row.reward_parts["main"] == 0.0


async def test_cancelled_while_grading(bench: Make) -> None:
    made = bench(["a"], Talk, grade=grading(timeout_s=60.0, functions={"f": "hangs"}))
    begun: list[str] = []
    running = asyncio.ensure_future(made.group(n=2, metadata={"begun": begun}))
    while len(begun) < 2:
        await asyncio.sleep(0.001)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running, 120)
    assert [env.closed for env in made.envs] == [1, 1]


def test_nothing_to_do_is_nothing() -> None:
    assert grading() is None
    assert grading(env_weight=0.5) is not None


@pytest.mark.parametrize(
    ("functions", "message"),
    [
        ({"f": "missing"}, "has no 'missing'"),
        (
            {"f": {"target": "length", "args": {"wrong": 1}}},
            r"argument 'wrong'.*expected f\(.* solution_str",
        ),
        ({"f": "HERE"}, "not callable"),
        ({"env": "length"}, "'env' is the environment's own part; rename it"),
    ],
)
def test_mistakes_in_the_config_are_found_before_anything_runs(
    functions: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        grading(functions=functions)
