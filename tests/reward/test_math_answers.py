"""Answers of mathematics against labels, in children that can be killed."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentrl.config.reward import RewardFunction, RewardSection
from agentrl.errors import ConfigError, GraderError
from agentrl.reward import load_reward_functions, math_answers, math_verify
from agentrl.reward.math_answers import AT_ONCE, MathJudge, MathVerdict, PatienceBudget, compare
from agentrl.reward.math_child import as_formula
from agentrl.types import RewardValue, Task, Termination, Trajectory, Turn

RIGHT = MathVerdict(right=True)
WRONG = MathVerdict(right=False)
UNJUDGED = MathVerdict(right=False, unjudged=True)


def conversation(*texts: Any) -> Trajectory:
    """A rollout whose assistant turns say `texts`, each answered by the environment."""
    turns = []
    for at, text in enumerate(texts):
        turns.append(Turn(role="assistant", start=2 * at, end=2 * at + 1, text=text))
        turns.append(Turn(role="user", start=2 * at + 1, end=2 * at + 2, text=r"\boxed{7}"))
    count = 2 * len(texts)
    return Trajectory(
        task_id="t", group_id="g", rollout_id="r", prompt_ids=(1,), response_ids=(7,) * count,
        response_mask=(1, 0) * len(texts), rollout_log_probs=(-1.0, 0.0) * len(texts),
        policy_versions=(0, -1) * len(texts), turns=tuple(turns), reward=0.0,
        termination=Termination.ENV_DONE,
    )  # fmt: skip


def value(answer: Any, label: Any) -> RewardValue:
    task = Task(id="t", prompt="?", label=label)
    found = asyncio.run(math_verify(conversation(answer), task))
    return replace(found, explanation=None)


@pytest.fixture
def judge() -> Iterator[MathJudge]:
    made = MathJudge()
    yield made
    made.close()


@pytest.mark.parametrize(
    ("label", "answer"),
    [
        ("1/2", "0.5"),
        (r"\frac{1}{2}", r"The answer is $\boxed{\frac12}$"),
        (r"so it is $\boxed{\frac{1}{2}}$.", r"$\boxed{0.5}$"),
        (r"2\frac{1}{2}", r"\boxed{2.5}"),
        (r"\sqrt{2}", r"$\sqrt2$"),
        ("sqrt(2)", r"\boxed{\sqrt{2}}"),
        ("(x+1)^2", "$x^2+2x+1$"),
        ("x=3", r"\boxed{3}"),
        ("{1,2,3}", r"\boxed{\{3,2,1\}}"),
        (r"\{1, 2\}", r"\boxed{1, 2}"),
        ("(1,2]", r"\boxed{(1,2]}"),
        ("1<x<2", r"\boxed{(1,2)}"),
        ("50%", r"\boxed{50\%}"),
        ("50%", r"\boxed{0.5}"),
        (r"50\%", "50 percent"),
        ("10 cm", r"\boxed{10\text{ cm}}"),
        (r"10\text{ cm}", "10"),
        ("$100", "100 dollars"),
        (r"\$100", r"\boxed{100}"),
        ("1,234", "1234"),
        ("48 / 2 = 24 #### 24", "24 + 0 = 24\n#### 24"),
        ("B", r"\boxed{B}"),
        (r"\text{even}", r"\boxed{\text{even}}"),
        ("4", r"first $\boxed{3}$, no: $\boxed{4}$"),
        (72, "72"),
        (-0.00001, "-0.00001"),
        ("1e3", "1000"),
    ],
)
def test_equal_forms_are_right(label: Any, answer: str) -> None:
    # Fails where labels are read without the dollar signs around them.
    assert value(answer, label) == RewardValue(value=1.0, parts={"unjudged": 0.0})


@pytest.mark.parametrize(
    ("label", "answer"),
    [
        ("1/2", "0.25"),
        ("1/3", "0.33"),
        ("{1,2,3}", r"\boxed{\{3,2\}}"),
        ("(1,2]", r"\boxed{(1,2)}"),
        ("50%", r"\boxed{5}"),
        ("x+1", r"\boxed{x+2}"),
        ("B", r"\boxed{C}"),
        ("2", r"\boxed{1} and \boxed{2}"),
        ("48 / 2 = 24 #### 25", "24"),
        ("1e3", "1"),
        ("2", "I do not know"),
        ("2", "\0\ud800"),
    ],
)
def test_others_are_wrong(label: Any, answer: str) -> None:
    assert value(answer, label) == RewardValue(value=0.0, parts={"unjudged": 0.0})


@pytest.mark.parametrize("answer", [None, "", " \n", 4, b"4", ["4"]])
def test_what_is_no_text_is_wrong(answer: Any) -> None:
    assert value(answer, "4") == RewardValue(value=0.0, parts={"unjudged": 0.0})


def test_the_last_turn_of_the_policy_is_the_answer() -> None:
    task = Task(id="t", prompt="?", label="4")
    right = asyncio.run(math_verify(conversation(r"\boxed{5}", r"\boxed{4}"), task))
    wrong = asyncio.run(math_verify(conversation(r"\boxed{4}", r"\boxed{5}"), task))
    none = asyncio.run(math_verify(conversation(), task))
    assert (right.value, wrong.value, none.value) == (1.0, 0.0, 0.0)


def test_an_answer_that_is_only_thought_is_none() -> None:
    """Fails if a turn that gives up is paid for what it had thought of."""
    assert value("<think>\nIt is 4.\n</think>\n\nI give up.", "4").value == 0.0
    assert value("[THINK]It is 4.", "4").value == 0.0
    assert value("<think>\nIs it 5?\n</think>\n\nIt is 4.", "4").value == 1.0
    begun = replace(conversation("It is 4.\n</think>\nNo."), prompt_text="user: ?\n<think>\n")
    assert asyncio.run(math_verify(begun, Task(id="t", prompt="?", label="4"))).value == 0.0


def test_each_answer_without_a_verdict_leaves_the_next_ones_less() -> None:
    """With the product's own limits, 40 in a step take 17 seconds of processor time, and not 55."""
    patience, given = PatienceBudget(), []
    for _ in range(40 // AT_ONCE):  # as many at once as there are children
        given += [patience.cpu_s(1)] * AT_ONCE
        for _ in range(AT_ONCE):
            patience.count(UNJUDGED)
    assert given[0] == math_answers.ANSWER_CPU_S
    assert sum(given) <= 20
    assert patience.cpu_s(2) == math_answers.ANSWER_CPU_S
    one = PatienceBudget()
    assert one.cpu_s(0) == math_answers.ANSWER_CPU_S
    one.count(UNJUDGED)
    one.count(RIGHT)
    assert 0.9 < one.cpu_s(0) < 1.1  # one bomb alone hardly touches the others


@pytest.mark.parametrize("label", [None, True, "", "  ", ["4"], {"answer": 4}, float("nan")])
def test_a_label_that_is_no_text_is_an_error_of_the_task(label: Any) -> None:
    with pytest.raises(GraderError, match=r"task 't': its label is .*, expected a number or"):
        value("4", label)


@pytest.mark.parametrize("label", ["x in {1,2}", "####", r"\frac{"])
def test_a_label_without_a_formula_is_an_error_of_the_task(label: Any) -> None:
    with pytest.raises(GraderError, match="no formula in the label"):
        value("4", label)


@pytest.mark.parametrize(
    "answer",
    [
        "word " * 200_000,
        "1" * 1_000_000,
        "$" * 1_000_000,
        r"\boxed{" * 100_000,
        r"\boxed{" + "(" * 100_000 + "}",
        "$" + r"\frac{1}{" * 900 + "1" + "}" * 900 + "$",
    ],
    ids=["words", "digits", "dollars", "boxes", "brackets", "fractions"],
)
def test_long_answers_are_judged_in_time(judge: MathJudge, answer: str) -> None:
    began = time.monotonic()
    assert value(answer, "4").value == 0.0
    assert time.monotonic() - began < 120.0


def test_what_is_said_at_the_end_of_a_long_answer_counts() -> None:
    assert value("word " * 200_000 + r"\boxed{4}", "4").value == 1.0


def test_an_answer_that_would_compute_for_ever_costs_itself_alone(judge: MathJudge) -> None:
    # Fails without the limit of processor time.
    assert judge.ask("4", "4") == RIGHT
    first, began = judge.pid, time.monotonic()
    assert judge.ask("9**9**9**9", "4", 0.25) == UNJUDGED
    assert time.monotonic() - began < 120.0
    assert judge.ask(r"\boxed{4}", "4") == RIGHT
    assert judge.pid == first, "its imports are not paid for again"


def test_many_answers_that_would_compute_for_ever_do_not_add_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # 40 of them took 40 times 4 s of processor time, and 40 starts.
    monkeypatch.setattr(math_answers, "_patience", PatienceBudget())
    monkeypatch.setattr(math_answers, "MOST_UNJUDGED", 2)
    monkeypatch.setattr(math_answers, "ANSWER_CPU_S", 1.0)
    monkeypatch.setattr(math_answers, "HASTY_CPU_S", 0.05)

    def all_judged(version: int, count: int) -> set[MathVerdict]:
        with ThreadPoolExecutor(4) as threads:
            return set(
                threads.map(lambda n: compare(f"9**9**9**{n}", "4", version), range(9, 9 + count))
            )

    assert all_judged(7, 40) == {UNJUDGED}
    assert compare("4", "4", 7) == RIGHT
    patience = math_answers._patience
    assert (patience.cpu_s(7), patience.cpu_s(6), patience.cpu_s(8)) == (0.05, 0.05, 1.0)


def test_an_answer_that_is_not_judged_is_counted() -> None:
    given = value(r"\boxed{9^{9^{9^9}}}", "4")
    assert given == RewardValue(value=0.0, parts={"unjudged": 1.0})


def test_one_child_judges_many_answers(judge: MathJudge) -> None:
    verdicts = [judge.ask(str(n), "4") for n in range(8)]
    first = judge.pid
    assert verdicts == [RIGHT if n == 4 else WRONG for n in range(8)]
    assert judge.ask("4", "4") == RIGHT
    assert judge.pid == first


def test_a_child_that_was_killed_between_calls_is_replaced(judge: MathJudge) -> None:
    for _ in range(3):
        assert judge.ask("4", "4") == RIGHT
        assert judge.pid is not None
        os.kill(judge.pid, signal.SIGKILL)
    assert judge.ask("5", "4") == WRONG


def test_calls_of_many_threads_do_not_mix() -> None:
    children = set()

    def ask(number: int) -> bool:
        if number == 16:  # every child is busy now and then
            children.update(one.pid for one in math_answers._JUDGES)
        return compare(rf"\boxed{{{number}}}", str(number - number % 2)).right

    with ThreadPoolExecutor(32) as threads:
        found = list(threads.map(ask, range(320)))
    assert found == [number % 2 == 0 for number in range(320)]
    assert len(children - {None}) <= AT_ONCE


def test_calls_of_many_event_loops_do_not_mix() -> None:
    found: dict[int, float] = {}

    def run(number: int) -> None:
        found[number] = value(rf"\boxed{{{number}}}", str(number - number % 2)).value

    threads = [threading.Thread(target=run, args=(number,)) for number in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: float(number % 2 == 0) for number in range(32)}


CHILD = """
import os, signal, time
from pathlib import Path

def serve(channel):
    channel.send({"ready": True})
    while True:
        asked = channel.receive().head
        told = asked.get("label", asked.get("answer"))
        seen = Path(told + ".seen") if told.startswith("/") else None
        if told == "dies" or (seen and not seen.exists()):
            if seen:
                seen.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if told == "hangs":
            time.sleep(600)
        channel.send({"read": True, "right": True, "unjudged": False})
"""


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[MathJudge]:
    path = tmp_path / "child.py"
    path.write_text(CHILD)
    made = MathJudge(f"{path}:serve", answer_s=1.0)
    yield made
    made.close()


def test_a_child_that_is_killed_at_work_is_asked_once_more(fake: MathJudge, tmp_path: Path) -> None:
    assert fake.ask(str(tmp_path / "answer"), "4") == RIGHT
    assert fake.ask("4", str(tmp_path / "label")) == RIGHT


def test_an_answer_that_ends_two_children_is_not_judged(fake: MathJudge) -> None:
    assert fake.ask("dies", "4") == UNJUDGED
    assert fake.ask("4", "4") == RIGHT


def test_wall_clock_is_limited_too(fake: MathJudge) -> None:
    began = time.monotonic()
    assert fake.ask("hangs", "4") == UNJUDGED
    assert time.monotonic() - began < 120.0


@pytest.mark.parametrize("label", ["dies", "hangs"])
def test_a_label_that_cannot_be_read_in_time_is_an_error(fake: MathJudge, label: str) -> None:
    with pytest.raises(GraderError, match=f"cannot read the label '{label}' in time or memory"):
        fake.ask("4", label)


def test_a_child_that_does_not_start_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "child.py"
    path.write_text("def serve(channel):\n    channel.send({'error': 'no antlr4'})\n")
    with pytest.raises(GraderError, match="math-verify does not start: no antlr4"):
        MathJudge(f"{path}:serve").ask("4", "4")


def test_the_wait_for_a_judge_is_not_held_against_the_answer() -> None:
    section = RewardSection(functions={"math": RewardFunction(target="agentrl.reward:math_verify")})
    functions = load_reward_functions(section, base=None, timeout_s=0.001)
    assert functions is not None
    task = Task(id="t", prompt="?", label="4")
    [row] = asyncio.run(functions(task, [conversation("4")]))
    assert row.reward == 1.0
    assert row.reward_parts == {"env": 0.0, "math": 1.0, "math/unjudged": 0.0}


def test_a_missing_library_is_found_with_the_config(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "antlr4" else find(name)
    )
    section = RewardSection(functions={"math": RewardFunction(target="agentrl.reward:math_verify")})
    with pytest.raises(ConfigError, match=r"functions\.math: .*it needs antlr4.*\[math\]"):
        load_reward_functions(section, base=None, timeout_s=1.0)


def test_unknown_arguments_are_refused() -> None:
    item = RewardFunction(target="agentrl.reward:math_verify", args={"tolerance": 1e-3})
    with pytest.raises(ConfigError, match="tolerance"):
        load_reward_functions(RewardSection(functions={"math": item}), base=None, timeout_s=1.0)


@pytest.mark.parametrize(
    ("label", "read"),
    [
        ("{1, 2}", r"$\{1, 2\}$"),
        ("$100", "$100$"),
        (r"costs \$5", r"$costs \$5$"),
        ("so $x = 2$", "so $x = 2$"),
        ("1e-2", "$0.01$"),
        ("6 * 7 = 42 #### 42", "$42$"),
    ],
)
def test_labels_are_formulas_from_end_to_end(label: str, read: str) -> None:
    assert as_formula(label) == read
