"""Each fault of a grader or its tasks is called by its name, and by no name of what follows."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path

import pytest

from agentrl.config import load_config
from agentrl.preflight.checks import trials
from agentrl.preflight.checks.facts import PreflightFacts
from agentrl.preflight.loop_time import held_up
from agentrl.preflight.reward.known_answers import AnswerKind, TriedAnswer
from agentrl.preflight.reward.leaks import ShownText, answer_texts, find_leak
from agentrl.preflight.reward.repeats import find_flaky, surely_broken
from agentrl.preflight.reward.verdict import judge_answers
from agentrl.types import Task
from agentrl.types.finding import Finding, Status
from tests.preflight.reward.planted import looked_at, planted, write_planted

NAMES = (
    "flaky", "inverted", "constant", "leaks the answer", "length alone pays", "slow", "too hard",
    "too easy", "the form alone is paid", "a reward for nothing", "no more than",
    "the solution scores", "could not be judged", "no good answer",
)  # fmt: skip
FUNCTION = "reward.functions={judge: {target: 'planted.py:flaky_function'}}"
FAULTS = {
    "random": (planted("random", 0.5), "flaky", "draw from context.seed"),
    "noisy": (planted("noisy", 0.1), "flaky", "draw from context.seed"),
    "raises": (planted("raises", 0.1), "flaky", "mend what raises"),
    "a function raises": ([*planted(), FUNCTION], "flaky", "mend what raises"),
    "inverted": (planted("inverted", 1), "inverted", "turn the sign"),
    "inverted where read": (planted("inverted parse"), "inverted", "turn the sign"),
    "constant": (planted("constant", 0.5), "constant", "pay a right answer more"),
    "form": (planted("form"), "the form alone is paid", "compare what is answered"),
    "length": (planted("length", 200), "length alone pays", "not for its length"),
    "empty": (planted("any"), "a reward for nothing", "give 0 to answers without content"),
    "announced": (planted(style="announced"), "leaks the answer", "take it out of what reset"),
    "base64": (planted(style="base64"), "leaks the answer", "take it out of what reset"),
    "system": (planted(style="system"), "leaks the answer", "take it out of what reset"),
    "tail": (planted(style="tail"), "leaks the answer", "nothing if the task is to copy it"),
    "hard": (planted("hard"), "too hard", "take easier tasks"),
    "easy": (planted(kind="same"), "too easy", "more varied tasks"),
    "sound": (planted(), None, ""),
    "penalised": (planted("penalty", 10), None, ""),
    "seeded": (planted("seeded"), None, ""),
    "yes or no": (planted(kind="yes"), None, ""),
    "choices": (planted(kind="options"), None, ""),
    "few shots": (planted(style="few shots"), None, ""),
}  # fmt: skip


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_planted(tmp_path_factory.mktemp("planted"))


@pytest.fixture(autouse=True)
def _in_its_folder(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths of overrides start at the current folder."""
    monkeypatch.chdir(file.parent)


@pytest.fixture(scope="module")
def known() -> PreflightFacts:
    return PreflightFacts()


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_fault_has_one_name(file: Path, known: PreflightFacts, fault: str) -> None:
    overrides, name, fix = FAULTS[fault]
    found = await looked_at(file, overrides, known)
    odd = [f for f in found.values() if isinstance(f, Finding) and f.status is not Status.OK]
    said = "\n".join(finding.detail for finding in odd)
    assert [each for each in NAMES if each in said] == ([] if name is None else [name]), said
    assert len(odd) == (name is not None)
    assert all(fix in finding.fix for finding in odd), odd


async def test_the_rates_and_errors_of_a_flaky_grader_are_told(
    file: Path, known: PreflightFacts
) -> None:
    """Fails if a retry of the run hides what a grader raises, or errors are not counted."""
    found = await looked_at(file, [*planted("raises", 0.3), "rollout.retries=5"], known)
    test = found["reward test"]
    assert isinstance(test, Finding)
    first, *table = test.detail.splitlines()
    words = first.split()
    assert first.startswith("flaky: grading raised ")
    assert first.endswith(
        "ConnectionError: the judge's server answered 503 (" + words[3] + " times)"
    )
    assert 30 <= int(words[3]) <= 66
    assert words[5] == "160"
    assert "the solution: reward 1" in table


async def test_grading_that_holds_up_every_rollout_is_slow(file: Path) -> None:
    """A step of 12 rollouts; fails if a wait that others may use counts as well."""
    rollout = load_config(file, ["rollout.env_timeout_s=10"]).rollout

    async def judged(held_up_s: float, duration_s: float) -> Finding | str:
        answers = [replace(each, duration_s=duration_s) for each in graded(AnswerKind.EMPTY, 0.0)]
        return await trials.grading_time(
            rollout, PreflightFacts(answers=answers, held_up_s=held_up_s)
        )

    async with held_up() as held:
        await asyncio.sleep(0.3)
    assert held.total_s < 0.2
    async with held_up() as held:
        time.sleep(0.3)
    assert held.total_s > 0.2
    blocks, waits = await judged(1.0, 1.0), await judged(0.0, 6.0)
    assert isinstance(blocks, Finding)
    assert "slow: an answer takes 1 s" in blocks.detail
    assert "all rollouts of a step for 12 s" in blocks.detail
    assert "asyncio.to_thread" in blocks.fix
    assert isinstance(waits, Finding)
    assert "rollout.env_timeout_s ends a step after 10 s" in waits.detail
    assert isinstance(await judged(0.5, 4.0), str)


def graded(kind: str, *rewards: float | None, task_id: str = "t", tokens: int = 9):
    base = TriedAnswer(
        kind=kind, task_id=task_id, text="x", reward=0.0, score=0.0, termination="env_done",
        detail="", tokens=tokens, sandbox=False,
    )  # fmt: skip
    crashed = replace(base, reward=None, score=None, termination="env_crashed", detail="step: boom")
    return [crashed if r is None else replace(base, reward=r, score=r) for r in rewards]


def test_what_always_raises_is_not_flaky_and_bad_luck_is_no_kind() -> None:
    broken = [*graded(AnswerKind.EMPTY, *[None] * 5), *graded(AnswerKind.SOLUTION, *[1.0] * 5)]
    assert find_flaky(broken) is None
    assert len(surely_broken(broken, None)) == 5
    assert "5 of 10 answers could not be judged (empty)" in judge_answers(broken).detail
    # Raised nine times of ten: that it did so on every empty answer is luck.
    often = [*graded(AnswerKind.EMPTY, *[None] * 5), *graded(AnswerKind.LONG, *[None] * 9, 0.0)]
    flaky = find_flaky(often)
    assert flaky is not None
    assert surely_broken(often, flaky) == []
    # One in twenty: an empty answer that raises each time is a fault of its own.
    seldom = [*graded(AnswerKind.EMPTY, *[None] * 5), *graded(AnswerKind.LONG, *[0.0] * 19, None)]
    assert len(surely_broken(seldom, find_flaky(seldom))) == 5
    # What a reward model gives differs with its batch.
    assert find_flaky(graded(AnswerKind.LONG, 0.5, 0.5004, 0.4999)) is None
    assert find_flaky(graded(AnswerKind.LONG, 0.5, 0.6)) is not None


def test_a_sum_of_faults_keeps_what_has_another_cause() -> None:
    """A grader that raises now and then, but never pays: both are told."""
    rows = [*graded(AnswerKind.EMPTY, 0.0, None), *graded(AnswerKind.LONG, 0.0, 0.0)]
    rows += graded(AnswerKind.SOLUTION, 0.0, 0.0)
    said = judge_answers(rows).detail
    assert "flaky" in said
    assert "constant: every answer gets 0" in said
    mixed = [*rows, *graded(AnswerKind.TOKEN, 0.0, 1.0)]
    assert "constant" not in judge_answers(mixed).detail


def leak_in(prompts: dict[str, str], answers: dict[str, str], *, paid: bool = True):
    shown = {key: [ShownText(place="user message", text=text)] for key, text in prompts.items()}
    return find_leak(shown, {key: [text] for key, text in answers.items()}, paid=paid)


def test_a_number_that_says_what_is_wanted_is_no_leak() -> None:
    """`in 5 words` has a fixed place, but 5 is not what is paid; by chance is not always."""
    wanted = {str(n): f"Describe rain in exactly {n} words" for n in range(3, 20)}
    answers = {key: key for key in wanted}
    assert leak_in(wanted, answers, paid=False) is None
    found = leak_in(wanted, answers)
    assert found is not None
    assert not found.announced
    chance = {str(n): f"What is {n // 3} times {n % 7}?" for n in range(3, 20)}
    assert leak_in(chance, answers) is None


def test_a_word_that_announces_the_same_everywhere_is_no_leak() -> None:
    """Nine of ten are `yes`; fails if that alone makes `Answer: yes or no` announce it."""
    form = {str(n): f"Is {n} more than 3? Answer: yes or no" for n in range(10)}
    answers = {key: "no" if key == "0" else "yes" for key in form}
    assert leak_in(form, answers) is None
    assert leak_in({key: f"{text}. Answer: {answers[key]}" for key, text in form.items()}, answers)


def test_numbers_are_found_in_any_usual_form() -> None:
    for text in ("Answer: 1,234.", "answer = 1234.0", "<answer>1234</answer>", "Hint: 4321"):
        found = leak_in({"a": f"Add 617 and 617. {text}"}, {"a": "1234"})
        assert found is not None, text
        assert "in the user message at character" in found.where
    for text in ("Answer: 12345", "Answer: 1234.5", "Answer: -1234", "the answer has 1234 parts"):
        assert leak_in({"a": f"Add. {text}"}, {"a": "1234"}) is None, text


def test_only_what_is_an_answer_is_looked_for() -> None:
    task = Task(id="a", prompt="?", label={"answer": 7, "repo": "numpy", "tests": [1]})
    assert answer_texts(task, "x" * 50) == ["7", "x" * 50]
    assert answer_texts(Task(id="b", prompt="?", label=True), "short") == []


def test_constant_and_inverted_are_told_apart_only_by_a_right_answer() -> None:
    wrong = [
        row
        for task in ("a", "b")
        for kind in (AnswerKind.EMPTY, AnswerKind.TOKEN, AnswerKind.LONG, AnswerKind.FORM)
        for row in graded(kind, 1.0, task_id=task)
    ]
    unknown = judge_answers(wrong)
    assert unknown.status is Status.FAIL
    assert "constant or inverted: every answer that was tried gets 1" in unknown.detail
    assert "so it is not known whether one gets as much (constant) or less" in unknown.detail
    assert "solution(task)" in unknown.fix
    # A bare label that is not read as an answer tells no more; one that is read does.
    bare = [*wrong, *graded(AnswerKind.LABEL, 1.0, task_id="a")]
    assert "the bare label may not have the form" in judge_answers(bare).detail
    read = [*wrong, *graded(AnswerKind.LABEL, 0.0, task_id="a")]
    assert judge_answers(read).detail.startswith("inverted: wrong answers are paid more")
    paid = [*wrong, *graded(AnswerKind.SOLUTION, 1.0, task_id="a")]
    assert judge_answers(paid).detail.startswith("constant: every answer gets 1")
