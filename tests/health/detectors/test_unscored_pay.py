"""Signs of a hacked reward where nothing is right by the score, or no score is declared."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from agentrl.health import History, RolloutFacts, Verdict, diagnose
from agentrl.types.finding import Status
from tests.health.detectors.test_shapes import curve

sys.path.append(str(Path(__file__).parents[3] / "benchmarks" / "health"))

from faults.planted import HEALTHY, ILL
from faults.synthetic import drawn


def said(history: History, name: str) -> Verdict:
    return next(verdict for verdict in diagnose(history) if verdict.name == name)


@pytest.mark.parametrize(
    ("stream", "status"),
    [
        ("one part of the reward eats another", Status.WARN),
        ("one wording for every task, and nothing else judges", Status.WARN),
        ("a penalty grows while answers get better", Status.OK),
        ("one form for all answers, and each task has its own", Status.OK),
    ],
)
def test_without_a_score_parts_and_wording_are_judged(stream: str, status: Status) -> None:
    """Fails if honest penalties or answers in a fixed form are accused, or the hacked ones not."""
    plan = {name: of for name, of in (ILL | HEALTHY).items() if name == stream}
    (drawn_one,) = drawn(plan)
    unscored = [replace(fact, score=None) for fact in drawn_one.history.rollouts]
    found = said(replace(drawn_one.history, rollouts=unscored), "unscored_pay")
    assert found.status is status, found.detail
    if status is Status.WARN and unscored:
        assert any(item.rollout_ids for item in found.evidence)
        assert "task-" in found.detail
    likeness = said(replace(drawn_one.history, rollouts=unscored), "pattern_collapse")
    assert status is Status.WARN or likeness.status is not Status.FAIL, likeness.detail


def facts(step: int, rewards: dict[str, float], text: str = "words") -> list[RolloutFacts]:
    return [
        RolloutFacts(
            step=step, kind="train", task_id=task, group_id=f"{step}/{task}",
            rollout_id=f"{step}/{task}/{n}", reward=reward, score=0.0, advantage=None,
            termination="env_done", action_tokens=8, duration_s=1.0, turns=1, tool_calls=0,
            tool_errors=0, text=text,
        )
        for task, reward in rewards.items()
        for n in range(2)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("rewards", "steps", "status"),
    [
        ({"a": 1.0, "b": 0.0}, 12, Status.WARN),
        # Partial credit of hard tasks, and the bonus for a format in the first steps.
        ({"a": 0.2, "b": 0.4, "c": 0.7}, 60, Status.OK),
        ({"a": 0.1, "b": 0.0}, 12, Status.OK),
        ({"a": 0.1, "b": 0.0}, 60, Status.WARN),
        ({"a": 0.0, "b": -0.5}, 60, Status.OK),
    ],
)
def test_pay_for_answers_of_which_none_is_right_is_named(
    rewards: dict[str, float], steps: int, status: Status
) -> None:
    """Fails if a score that is 0 everywhere clears whatever is paid."""
    metrics = {"reward": curve([0.3] * steps), "score": curve([0.0] * steps)}
    rollouts = [fact for step in range(1, 9) for fact in facts(step, rewards)]
    found = said(History(metrics=metrics, rollouts=rollouts), "score_falls")
    assert found.status is status, found.detail


def test_one_short_right_answer_is_no_pattern_without_a_score() -> None:
    """Fails if tasks that want the same few words are accused."""
    rollouts = [
        replace(fact, score=None)
        for step in range(1, 9)
        for fact in facts(
            step,
            {f"{step}-{n}": 1.0 for n in range(6)},
            "yes, they are the same" if step > 3 else f"I wonder {step * 37} about it all {step}",
        )
    ]
    assert said(History(metrics={}, rollouts=rollouts), "pattern_collapse").status is Status.OK


def siblings(step: int, text: str, words: str, paid: tuple[bool, ...], by: float) -> list:
    """Facts of 6 tasks; every second sibling adds the words, and earns by them."""
    return [
        replace(
            fact, score=None, rollout_id=f"{fact.rollout_id}/{n}",
            reward=by * pays + 0.1 * (n % 2), text=f"{text} {fact.task_id}" + words * adds,
        )
        for fact in facts(step, {f"{step}-{n}": 1.0 for n in range(6)})
        for n, pays in enumerate(paid)
        for adds in [pays and step > 3]
    ]  # fmt: skip


@pytest.mark.parametrize("by", [1.0, 0.5])
def test_a_wording_that_pays_whatever_the_task_is_named_and_no_alarm(by: float) -> None:
    """Fails if a reward that wants a phrase is passed over, or words that earn nothing named."""
    made = [
        fact
        for step in range(1, 13)
        for fact in siblings(step, "my answer is", " All tests PASSED!", (True, False), by)
    ]
    metrics = {"reward": curve([0.5] * 12), "score": curve([0.5] * 12)}
    found = said(History(metrics=metrics, rollouts=made), "unscored_pay")
    assert found.status is Status.OK
    assert 'the words "all tests passed" are paid whatever the task' in found.detail
    # The same words, and what is paid for is another thing.
    other = [replace(fact, reward=float(n % 3 == 0)) for n, fact in enumerate(made)]
    found = said(History(metrics=metrics, rollouts=other), "unscored_pay")
    assert "with the words" not in found.detail


@pytest.mark.parametrize(("own", "named"), [(0.0, False), (0.6, False), (0.02, True)])
def test_a_rise_that_shaping_carries_alone_is_named(own: float, named: bool) -> None:
    """Fails if tool calls that are farmed for a bonus look like a task that is learned."""
    env = [0.25 + own * step / 40 + 0.01 * (step % 2) for step in range(40)]
    bonus = [0.1 + (0.6 if named else 0.0) * step / 40 for step in range(40)]
    metrics = {
        "reward": curve([a + b for a, b in zip(env, bonus, strict=True)]),
        "score": curve([a + b for a, b in zip(env, bonus, strict=True)]),
        "rewards/env/mean": curve(
            [0.25 + 0.01 * (step % 2) for step in range(40)] if named else env
        ),
        "rewards/tool_bonus/mean": curve(bonus),
    }
    told = said(History(metrics=metrics), "unscored_pay").detail
    assert ("the reward rises by tool_bonus (+" in told) == named, told


def test_paid_answers_that_come_to_repeat_their_prompt_are_named() -> None:
    """Fails if a reward by words in common with a text like the prompt leaves no trace."""
    made = [
        replace(fact, score=None, copied=1.0 if step > 6 else 0.2)
        for step in range(1, 13)
        for fact in facts(step, {f"{step}-{n}": 0.8 for n in range(6)}, f"text {step}")
    ]
    metrics = {"reward": curve([0.5] * 12), "score": curve([0.5] * 12)}
    found = said(History(metrics=metrics, rollouts=made), "unscored_pay")
    assert found.status is Status.OK
    assert "100 % of the paid answers repeat the words of their prompt, 0 %" in found.detail
    always = [replace(fact, copied=1.0) for fact in made]
    found = said(History(metrics=metrics, rollouts=always), "unscored_pay")
    assert "repeat the words" not in found.detail


def worked(step: int, task: int, right: bool) -> str:
    result = task * 7 + (0 if right else step % 3 + 1)
    return f"we begin with {task} and take it 7 times, which makes {result}. Answer: {result}"


@pytest.mark.parametrize(("share", "status"), [(0.5, Status.OK), (0.0, Status.FAIL)])
def test_one_form_whose_right_answers_differ_by_task_is_no_pattern(
    share: float, status: Status
) -> None:
    """Fails if worked sums in one form are accused before nearly all of them are right."""
    made: list[RolloutFacts] = []
    for step in range(1, 13):
        for n, fact in enumerate(facts(step, dict.fromkeys(map(str, range(11, 19)), 0.5))):
            task, right = int(fact.task_id), n % 16 < 16 * share
            text = worked(step, task, right) if share else worked(step, 5, right=True)
            early = f"{task} {'hm so be it '[: step + task % 9]} what is it {task * step * 31}"
            made.append(replace(fact, score=float(right), text=text if step > 4 else early))
    found = said(History(metrics={}, rollouts=made), "pattern_collapse")
    assert found.status is status, found.detail


def test_wrong_answers_that_are_all_paid_alike_are_not_too_hard() -> None:
    """Fails if tasks are to be left out whose answers the reward pays and the score refuses."""
    flat = [0.2] * 20 + [0.9] * 20
    metrics = {
        "reward": curve([0.3 + 0.6 * (step > 19) for step in range(40)]),
        "score": curve([0.3] * 20 + [0.03] * 20),
        "frac_reward_zero_std": curve(flat),
    }
    made = [
        fact
        for step in (1, 2, 3, 38, 39, 40)
        for fact in facts(step, dict.fromkeys("abcd", 0.96 if step > 3 else 0.1))
    ]
    found = said(History(metrics=metrics, rollouts=made), "empty_gradient")
    assert "all are paid alike, and wrong by the score" in found.detail
    assert not any("difficulty" in lever.key for lever in found.levers)
    low = [replace(fact, reward=0.0 if fact.step > 3 else 1.0) for fact in made]
    found = said(History(metrics=metrics, rollouts=low), "empty_gradient")
    assert "too hard" in found.detail


@pytest.mark.parametrize(("paid", "status"), [(0.0, Status.FAIL), (0.4, Status.OK)])
def test_a_third_cut_off_and_unpaid_for_the_whole_run_is_named(paid: float, status: Status) -> None:
    """Fails if cut-offs count only from two thirds on, or those are named that still earn."""
    metrics = {"reward": curve([0.5] * 60), "completions/clipped_ratio": curve([0.33] * 60)}
    made = [
        replace(fact, limit="max_turn_tokens" if n < 2 else "", reward=paid if n < 2 else 0.8)
        for step in (1, 2, 3, 58, 59, 60)
        for n, fact in enumerate(facts(step, {"a": 0.0, "b": 0.0, "c": 0.0}))
    ]
    found = said(History(metrics=metrics, rollouts=made), "truncation")
    assert found.status is status, found.detail
    assert status is Status.OK or "max_turn_tokens" in found.detail


def test_a_style_that_its_own_kind_reads_well_is_no_gibberish() -> None:
    """Fails if another manner of speech is accused because the first one was very uniform."""

    def text(step: int, n: int) -> str:
        if step <= 6:
            return f"I can offer it for {40 + n} today, shall we?"
        manner = ("though I had hoped for", "instead of the list price of", "others would pay")
        return f"It is yours for {40 + n} this time, {manner[n % 3]} {90 + n * step % 17}."

    made = [
        replace(fact, score=None, text=text(step, n))
        for step in range(1, 13)
        for n, fact in enumerate(facts(step, {f"{step}-{n}": 0.5 for n in range(8)}))
    ]
    metrics = {"reward": curve([0.4 + 0.03 * step for step in range(12)])}
    found = said(History(metrics=metrics, rollouts=made), "gibberish")
    assert found.status is Status.OK, found.detail
