"""Puzzles of reasoning-gym: drawing them, judging them, and answers that are programs."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time

import pytest
from agentrl_envs.reasoning import ReasoningTask, families, make_tasks
from agentrl_envs.reasoning.judge import _JUDGES, Judge, judge

from agentrl.errors import ConfigError, GraderError
from agentrl.machine.processes.child import ChildProcess
from agentrl.types import Task
from tests.envs.reasoning.answering import answered, draw

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning"),
    pytest.mark.slow,
]


@pytest.fixture
def drawn_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """No process is started for the generators that walk over sets of text, where it does not
    matter which puzzle they draw."""
    monkeypatch.setenv("PYTHONHASHSEED", "0")


@pytest.mark.usefixtures("drawn_here")
def test_every_generator_judges_its_own_answer_right() -> None:
    # Fails if the guard refuses what sympy or numpy do by themselves, or if JSON changes an entry.
    assert len(families()) >= 100
    wrong = []
    for task in (draw(family) for family in families()):
        answer = task.label["answer"]
        if answer is not None and judge(task.metadata["family"], answer, task.label).score < 1:
            wrong.append(task.metadata["family"])
    assert wrong == []


def test_tasks_are_the_same_everywhere_and_are_json() -> None:
    args = {"families": ["maze", "n_queens", "countdown"], "n": 24, "levels": [0, 2]}
    tasks = make_tasks(seed=3, **args)
    assert tasks == make_tasks(seed=3, **args)
    assert tasks != make_tasks(seed=4, **args)
    assert len({task.id for task in tasks}) == 24
    assert json.loads(json.dumps([task.label for task in tasks])) is not None
    assert {task.metadata["level"] for task in tasks} == {0, 2}


def test_tasks_do_not_hang_on_the_hash_seed() -> None:
    names = ["ransom_note", "isomorphic_strings", "polynomial_multiplication", "maze"]
    source = (
        "from agentrl_envs.reasoning import make_tasks\n"
        f"print([(t.prompt, t.label) for t in make_tasks(families={names}, n=8)])"
    )
    under_another = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", source],
        env={**os.environ, "PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    # This process has a hash seed of its own.
    drawn = make_tasks(families=names, n=8)
    assert str([(task.prompt, task.label) for task in drawn]) == under_another.strip()


@pytest.mark.usefixtures("drawn_here")
def test_splits_share_no_generator_and_no_question() -> None:
    train = {task.metadata["family"] for task in make_tasks(n=84)}
    held = {task.metadata["family"] for task in make_tasks(split="held_out", n=21)}
    assert train | held == set(families())
    assert not train & held
    chosen = {"families": ["basic_arithmetic"], "n": 50}
    asked = {task.prompt for task in make_tasks(**chosen)}
    assert not asked & {task.prompt for task in make_tasks(split="held_out", **chosen)}


def test_levels_make_a_curriculum() -> None:
    lengths = [
        sum(len(task.prompt) for task in make_tasks(families=["maze"], levels=[level], n=20))
        for level in (0, 2)
    ]
    assert lengths[0] < lengths[1]
    (last,) = make_tasks(families=["maze"], levels=[99], n=1)
    assert 2 < last.metadata["level"] < 99


def test_no_word_is_the_answer_to_most_syllogisms() -> None:
    """Fails if the generator's own settings are taken: "Yes" is right in four of five, and more at
    the lowest level."""
    for level in (0, 1, 2):
        tasks = make_tasks(families=["syllogism"], n=100, levels=[level], seed=3)
        assert 0.35 < sum(task.label["answer"] == "Yes" for task in tasks) / 100 < 0.65


def test_a_level_that_its_generator_refuses_is_the_one_below() -> None:
    # caesar_cipher refuses 2 and 3, knight_swap all, sokoban looks for ever at 0.
    for family in ("caesar_cipher", "knight_swap", "sokoban"):
        assert make_tasks(families=[family], levels=[0, 3], n=2)


@pytest.mark.parametrize(
    ("args", "match"),
    [
        ({"families": ["mazes"]}, "did you mean 'maze'"),
        ({"families": "maze"}, "list of names"),
        ({"split": "test"}, "held_out"),
        ({"n": 0}, "n >= 1"),
        ({"levels": [-1]}, "levels"),
        ({"levels": []}, "levels"),
    ],
)
def test_bad_arguments_are_named(args: dict, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        make_tasks(**args)


CHEATS = {
    "n_queens": (
        "__import__('os').system('touch {mark}')",
        "open('{mark}', 'w')",
        "[c for c in ().__class__.__base__.__subclasses__()]",
        "exec('import os')",
        "(lambda: 1)()",
    ),
    "countdown": (
        "__import__('pathlib').Path('{mark}').touch()",
        "sympify(\"__import__('os').system('touch {mark}')\")",
        "lambdify(x, \"__import__('os').system('touch {mark}')\")(1)",
        "Symbol('x').__class__",
        "globals()",
    ),
    "spiral_matrix": ("setattr(__builtins__, 'eval', 1)", "[1] * 10 ** 10"),
}


@pytest.mark.parametrize("family", CHEATS)
async def test_an_answer_that_is_a_program_runs_nothing(family: str, tmp_path) -> None:
    # Each of these runs if the verifier is called without the guard.
    task, mark = draw(family), tmp_path / "mark"
    for cheat in CHEATS[family]:
        (step,) = await answered(task, f"<answer>{cheat.replace('{mark}', str(mark))}</answer>")
        assert step.rewards == 0.0, cheat
        assert not mark.exists(), cheat
    answer = task.label["answer"]
    if answer is not None:
        assert judge(family, answer, task.label).score == 1.0, "the next answer is judged wrong"


async def test_an_answer_that_hangs_the_verifier_costs_itself_and_nobody_else() -> None:
    task = draw("polynomial_multiplication")
    start = time.monotonic()
    (step,) = await answered(task, "<answer>9**9**9**9</answer>")
    assert (step.rewards, step.extra_logs["judge_hung"]) == (0.0, 1.0)
    assert time.monotonic() - start < 120
    assert judge("polynomial_multiplication", task.label["answer"], task.label).score == 1.0


def test_a_child_that_sends_no_frame_costs_its_answer_and_nothing_else() -> None:
    """Fails if what cannot be read is an error of the run."""
    judge = Judge("tests.machine.processes.children:answers_once_then_lies")
    try:
        verdict = judge.ask("basic_arithmetic", "3", {"question": "1 + 2", "answer": "3"})
    finally:
        judge.close()
    assert (verdict.score, verdict.hung) == (0.0, True)


def test_a_child_that_the_machine_kills_once_costs_its_answer_nothing(monkeypatch) -> None:
    """Fails if a right answer earns 0 where the verifier was killed from outside."""
    task, judge, kills = draw("gcd"), Judge(), [signal.SIGKILL]
    ask = ChildProcess.ask

    def killed(self, *args, **more):
        if kills and judge._ready:
            os.kill(self.pid, kills.pop())
        return ask(self, *args, **more)

    monkeypatch.setattr(ChildProcess, "ask", killed)
    try:
        verdict = judge.ask("gcd", task.label["answer"], task.label)
    finally:
        judge.close()
    assert (verdict.score, verdict.hung, kills) == (1.0, False, [])


async def test_answers_beside_one_that_hangs_are_judged_meanwhile() -> None:
    task = draw("polynomial_multiplication")
    right = f"<answer>{task.label['answer']}</answer>"
    for warm in _JUDGES[-2:]:  # the two that are asked first
        assert warm.ask("polynomial_multiplication", task.label["answer"], task.label).score == 1.0
    hanging = asyncio.create_task(answered(task, "<answer>9**9**9**9</answer>"))
    await asyncio.sleep(0.2)
    (step,) = await answered(task, right)
    assert step.rewards == 1.0
    assert not hanging.done(), "it waited for the answer that hangs"
    (step,) = await hanging
    assert step.extra_logs["judge_hung"] == 1.0


# Each is worth 1.0 (or a half, with `partial`) to the verifier alone, and solves nothing.
UNEARNED = {
    "countdown": (
        "{target:#x}+0x0*({sum})",
        "len('{target:x>{target}}')+len('')*({sum})",
        "{target}e0+sin(pi)*({sum})",
    ),
    "puzzle24": ("6*4*1*1", "0x18+0x0*({sum})"),
    "complex_arithmetic": ("nan", "NaN", "nan+1j"),
    "simple_integration": ("Integral({integrand}, {variable})",),
    "intermediate_integration": ("Integral({integrand}, {variable})",),
    "n_queens": ("entry['metadata']['solutions'][0]",),
    "spiral_matrix": ("entry['answer'].split()", "[oracle_answer]"),
    "coin_flip": ("0", "0.", "0.0", "0/1", "0e0", "0.3", "1e-9"),
    "number_sorting": ("{nan}", "{wrapped}"),
    "gsm_symbolic": ("-{answer}", "17 or {answer}", "{answer} or 17"),
    "rush_hour": ("A+5 " * 500, "{cars}"),
    "sokoban": ("LRUD" * 4000,),
    "boxnet": ("{sweep}",),
}


def sweep(facts: dict) -> str:
    """Plans that carry every box over every square of a board, without a look at it."""
    columns, rows = facts["column_num"], facts["row_num"]
    squares = [(r + 0.5, c + 0.5) for r in range(rows) for c in range(columns)]
    plans = []
    for colour in ("red", "blue", "green"):
        for row, column in squares:
            here = f"Agent[{row}, {column}]"
            plans.append({here: f"move(box_{colour}, target_{colour})"})
            for to in ((row, column + 1), (row + 1, column), (row, column - 1), (row - 1, column)):
                plans.append({here: f"move(box_{colour}, square[{to[0]}, {to[1]}])"})
    return json.dumps(plans * 4)


PAID_ALONE = [
    ("calendar_arithmetic", "-1", {"task": "recurring_event_day"}, "0", "-1"),
    ("calendar_arithmetic", "-1", {"task": "recurring_event_day"}, "31", "-1"),
    ("polynomial_equations", '""', {}, "x", '""'),
    ("polynomial_equations", '""', {}, "", '""'),
    ("polynomial_equations", '""', {}, "no idea", '""'),
]


@pytest.mark.parametrize(("family", "right", "facts", "cheat", "good"), PAID_ALONE)
def test_what_a_verifier_pays_where_the_right_answer_is_odd(
    family: str, right: str, facts: dict, cheat: str, good: str
) -> None:
    entry = {"question": "?", "answer": right, "metadata": facts}
    assert judge(family, cheat, entry).score == 0.0
    assert judge(family, good, entry).score == 1.0


@pytest.mark.parametrize(
    ("right", "said", "score"),
    [
        ("0.0009765625", "0.0010", 1.0),
        ("0.0009765625", "0.001", 1.0),
        ("0.0009765625", "0.00098", 1.0),
        ("0.0009765625", "0.0009", 0.0),
        ("0.0009765625", "0.00101", 0.0),
        ("6.103515625e-05", "0.0001", 1.0),
        ("6.103515625e-05", "0.0000", 0.0),
        ("3.051757812e-05", "0.0000", 0.0),
        ("3.051757812e-05", "0.0001", 0.0),
        ("3.051757812e-05", "0.0000305", 1.0),
    ],
)
def test_a_small_probability_may_be_rounded_to_four_places(
    right: str, said: str, score: float
) -> None:
    """Fails if the rounded number is refused by a message that asks for it, or if 0 is paid."""
    entry = {"question": "?", "answer": right, "metadata": {}}
    assert judge("coin_flip", said, entry).score == score


@pytest.mark.parametrize("family", UNEARNED)
def test_an_answer_without_the_work_earns_nothing(family: str) -> None:
    task = draw(family, seed=5)
    facts = dict(task.label["metadata"])
    numbers = facts.get("numbers", ())
    facts["sum"] = "+".join(map(str, numbers)) if isinstance(numbers, list) else ""
    facts["answer"] = task.label["answer"]
    facts["nan"] = json.dumps([float("nan")] * len(facts.get("original_numbers", ())))
    facts["wrapped"] = json.dumps(["nan"] * len(facts.get("original_numbers", ())))
    facts["cars"] = " ".join(f"{c}{s}1" for _ in range(80) for s in "+-" for c in "ABCDEFGH")
    facts["sweep"] = sweep(facts) if family == "boxnet" else ""
    for cheat in UNEARNED[family]:
        assert judge(family, cheat.format(**facts), task.label).score == 0.0, cheat


def test_what_looks_different_is_still_right() -> None:
    # Fails if the guard refuses the names of a formula or the signs of arithmetic.
    task = draw("intermediate_integration", seed=5)
    answer = f"sin(0) + ({task.label['answer']}) + exp(0) + sqrt(4)*pi"
    assert judge("intermediate_integration", answer, task.label).score == 1.0
    task = draw("countdown", seed=5)
    assert judge("countdown", f"(({task.label['answer']}))", task.label).score == 1.0
    # As people write them: a fraction, no zero in front, dollars, single quotes.
    task = draw("coin_flip", seed=5)
    half = task.label["metadata"]["rational"]
    fraction = f"{half['numerator']}/{half['denominator']}"
    assert judge("coin_flip", fraction, task.label).score == 1.0
    task = draw("gsm_symbolic", seed=5)
    assert judge("gsm_symbolic", f"${task.label['answer']}.", task.label).score == 1.0
    task = draw("number_sorting", seed=5)
    assert judge("number_sorting", task.label["answer"], task.label).score == 1.0


def test_words_of_every_length_are_judged() -> None:
    # The verifier alone knows words of four letters only and raises KeyError for others.
    tasks = make_tasks(families=["word_ladder"], levels=[0, 1, 2], n=9)
    assert {len(task.label["metadata"]["start_word"]) for task in tasks} > {3}
    for task in tasks:
        assert judge("word_ladder", task.label["answer"], task.label).score == 1.0


async def test_what_cannot_be_judged_is_no_zero() -> None:
    task = draw("maze")
    with pytest.raises(GraderError, match="no_such"):
        judge("no_such", "1", task.label)
    with pytest.raises(ValueError, match="make_tasks"):
        await ReasoningTask().reset(Task(id="x", prompt="?", label="3"))
