"""Whether the reward is hacked: the doctor's answer, rewards of a step, near-identical answers."""

from __future__ import annotations

import json
import random
import shlex
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentrl.errors import RunError
from agentrl.health import History, Series, Verdict, diagnose, read_history
from agentrl.health.commands import next_command
from agentrl.health.measures.paid_wrong import count_paid_wrong, paid_limits
from agentrl.health.measures.texts import ALIKE, SHINGLE, plain_text
from agentrl.inspect.pages.compare.answer import Side, compare_answer
from agentrl.inspect.pages.find import find_answer
from agentrl.inspect.pages.find_line import Question, parse_question
from agentrl.inspect.pages.hacking.answer import SIGNS, answer_of, hacking_answer
from agentrl.inspect.pages.hacking.clusters import clusters_answer
from agentrl.inspect.pages.overview import run_overview
from agentrl.inspect.pages.tasks import TaskQuestion, tasks_answer
from agentrl.inspect.read.reader import RunReader
from agentrl.inspect.read.row_facts import turn_facts
from agentrl.inspect.read.runs import FoundRun
from agentrl.inspect.read.safe_json import jsonable
from agentrl.inspect.read.sketches import BINS, EMPTY, answer_sketches, likeness
from agentrl.inspect.web.library import Library
from agentrl.types import Explanation, Role, Termination
from agentrl.types.finding import Status
from tests.inspect.hacked_runs import SAME, write_hacked_run
from tests.inspect.synthetic import make_rollout, write_metrics, write_step


def reader_of(path: Path) -> RunReader:
    return RunReader(FoundRun(id=path.name, path=path))


@pytest.fixture(scope="module")
def hacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hacked_run(tmp_path_factory.mktemp("hacking") / "hacked")


def curves(run: Path, **of_step: object) -> RunReader:
    """A run of 30 steps with these metrics, as functions of the step, and one stored step."""
    for step in range(1, 31):
        values = {name: value(step) for name, value in of_step.items()}  # type: ignore[operator]
        write_metrics(run, {"step": step, **values})
    write_step(run, [make_rollout("a", [("assistant", "words")])], 30)
    return reader_of(run)


def test_rollouts_that_are_paid_as_solved_ones_and_wrong_are_counted(tmp_path):
    run = tmp_path / "run"
    for step in range(1, 10):
        wrong = step > 6  # in the last third one of two that are paid is wrong
        rows = [
            make_rollout(f"{step}/0", [("assistant", "a")], task_id="a", reward=2.0, score=1.0),
            make_rollout(f"{step}/1", [("assistant", "b")], task_id="b",
                         reward=2.5 if wrong else -1.0, score=0.0),
        ]  # fmt: skip
        write_step(run, rows, step)
        write_metrics(run, {"step": step, "reward": 1.0, "score": 0.5})
    found = hacking_answer(reader_of(run))
    paid = found["paid_wrong"]
    assert (found["level"], found["word"]) == ("watch", "Watch")
    assert found["headline"] == (
        "Many of the paid answers are wrong by the score: 0 of 2 (0 %) in steps 1-2, 2 of 4 "
        "(50 %) in steps 8-9."
    )
    assert paid["text"] == (
        "Paid is a reward of 0.5 or more: halfway between the median rewards of rollouts that are "
        "right (2) and wrong (-1) by the score. Wrong is a score of 0.5 or less."
    )
    assert found["untested"].startswith("Not tested: can the tests or the grader be fooled? Run: ")
    assert "`" not in found["answer"]
    assert f"agentrl env attack {run / 'config.yaml'}" in found["untested"]
    assert (found["example"]["rollout_id"], found["example"]["wrong"]) == ("9/1", True)
    # The bounds that are printed find the rollouts that are counted.
    bounds = {"reward_min": paid["reward_min"], "score_max": paid["score_max"]}
    assert find_answer(reader_of(run), Question(kind="train", **bounds))["total"] == paid["wrong"]
    asked = parse_question("is:paid is:wrong", kind="train")
    assert find_answer(reader_of(run), asked)["total"] == paid["wrong"]
    first_screen = run_overview(reader_of(run))["hacking"]
    assert first_screen == {name: found[name] for name in first_screen}
    same = tmp_path / "same"
    write_step(same, [make_rollout("a", [("assistant", "a")], reward=0.5, score=0.5)], 1)
    write_metrics(same, {"step": 1, "reward": 0.5, "score": 0.5})
    told = hacking_answer(reader_of(same))
    # Nothing can be paid and wrong there, and the best paid one is still one to read.
    assert (told["paid_wrong"], told["example"]["rollout_id"]) == (None, "a")
    assert (told["level"], told["word"]) == ("unknown", "Cannot be seen here")
    nothing = find_answer(reader_of(same), parse_question("is:paid"))
    assert nothing["total"] == 0
    assert "they need a score that is not the reward" in nothing["notes"][0]


@pytest.mark.parametrize(
    ("rewards", "least"),
    [
        # Right, right, wrong, wrong: between the medians, in digits that a reader can type.
        ((1.0478, 1.09, -1.2, -0.8), 0.0),
        ((100.052, 100.05, 99.9, 99.9), 99.975),
        # Wrong ones are paid no less: what half of the right ones get.
        ((0.6, 0.6, 0.9, 0.9), 0.6),
    ],
)
def test_paid_is_what_parts_the_rewards_of_right_and_wrong_rollouts(rewards, least):
    limits = paid_limits(np.array(rewards), np.array([1.0, 1.0, 0.0, 0.0]))
    assert limits is not None
    assert (limits.least, limits.middle) == (least, 0.5)
    assert limits.wrong(least, 0.5)
    assert not limits.wrong(least, 0.6)
    assert not limits.wrong(np.nextafter(least, -np.inf), 0.0)


@pytest.mark.parametrize(
    ("early", "late", "doubtful", "says"),
    [
        (0, 2, True, "more of the paid answers are wrong by the score since step 7: 0 of 20 "
         "(0 %) in steps 1-2, 20 of 40 (50 %) in steps 8-9"),
        (2, 0, False, "fewer of the paid answers are wrong by the score than at first: "),
        (2, 2, True, "many of the paid answers are wrong by the score: "),
        (0, 0, False, "no paid answer is wrong by the score: "),
    ],
)  # fmt: skip
def test_a_share_of_paid_and_wrong_answers_that_rises_or_is_large_is_doubtful(
    early: int, late: int, doubtful: bool, says: str
):
    """Fails if the page is green while ever more, or many, of what is paid is wrong."""
    rows = [
        (step, 100 * step + task, 1.0 if right or task % 2 < wrong else -1.0, float(right))
        for step in range(1, 10)
        for wrong in [early if step <= 3 else late if step >= 7 else 0]
        for task in range(10)
        for right in (True, False)
    ]
    steps, tasks, rewards, scores = map(np.array, zip(*rows, strict=True))
    counts = count_paid_wrong(steps, tasks, rewards, scores)
    assert counts is not None
    assert counts.doubtful == doubtful
    assert counts.text().startswith(says)


def reversing(run: Path, *, held: tuple[int, ...] = ()) -> RunReader:
    """A run that pays fewer wrong answers at the end by a low bound, and more by a higher one.

    Args:
        run: folder of it.
        held: paid and wrong of the ten rollouts of each evaluation.
    """
    for step in range(1, 9):
        low, high = (8, 0) if step < 3 else (0, 2)
        paid = [1.0] * 10 + [0.2] * low + [1.0] * high + [-1.0] * (20 - low - high) + [-0.9]
        rows = [
            make_rollout(f"{step}/{n}", [("assistant", "a")], group_id=f"{step}/{n}",
                         task_id=f"{step}/{n}", reward=reward, score=n < 10 or reward == -0.9)
            for n, reward in enumerate(paid)
        ]  # fmt: skip
        write_step(run, rows, step)
        write_metrics(run, {"step": step, "reward": 0.1 * (step % 2), "score": 0.5})
    for n, wrong in enumerate(held):
        rows = [
            make_rollout(f"e{at}", [("assistant", "a")], group_id=f"e{at}", task_id=f"e{at}",
                         reward=1.0 if at < wrong else -1.0, score=0.0)
            for at in range(10)
        ]  # fmt: skip
        write_step(run, rows, 4 * n, kind="eval/held")
        write_metrics(run, {"step": 4 * n, "eval/held/score": 0.0})
    return reader_of(run)


def test_a_trend_that_reverses_with_the_bound_of_paid_cannot_be_told(tmp_path):
    """Fails if a run is called sound by a count whose direction depends on where paid begins."""
    reader = reversing(tmp_path / "run", held=(1, 3, 2))
    found = hacking_answer(reader)
    assert (found["level"], found["word"]) == ("unknown", "Cannot tell")
    # The same tasks each time say most, so they come first.
    assert found["headline"].startswith(
        "Of the held-out rollouts (held) 1 of 10 (10 %) at step 0, 3 of 10 (30 %) at step 4 and "
        "2 of 10 (20 %) at step 8 were paid and wrong: too few to tell a rise."
    )
    assert (
        "Whether more or fewer of the paid answers are wrong by the score cannot be told: 16 of 36 "
        "(44.4 %) in steps 1-2, 4 of 24 (16.7 %) in steps 7-8; but by rewards of 0.5 or more "
        "0 of 20 (0 %) in steps 1-2, 4 of 24 (16.7 %) in steps 7-8." in found["more"]
    )
    told = found["headline"] + found["more"]
    for link in found["links"]:
        assert link["text"] in told
        wrong = int(link["text"].partition(" of ")[0])
        total = find_answer(reader, Question(**link["find"]))["total"] if link["find"] else 0
        assert total == wrong
    assert [bool(one["find"]) for one in found["links"]].count(False) == 1
    # Right by the score and paid like wrong ones: one in each step.
    assert found["paid_wrong"]["unpaid"] == 8
    asked = parse_question("is:unpaid is:right", kind="train")
    assert find_answer(reader, asked)["total"] == 8
    assert "The rise of the training score is not certain" not in found["headline"]
    fewer = reversing(tmp_path / "fewer", held=(3, 1))
    assert (
        "1 of 10 (10 %) at step 4 were paid and wrong: no rise" in hacking_answer(fewer)["headline"]
    )


def test_no_sign_needs_counts_that_rise_nowhere(tmp_path):
    """Fails if silence of a detector is a clean answer while paid and wrong answers increase."""
    fine = [Verdict(name="decoupling", status=Status.OK, detail="x")]
    history = History(metrics={"eval/held/score": Series(steps=(0, 4), values=(0.1, 0.1))})
    for held, level in (((2, 1), "ok"), ((1, 2), "unknown"), ((1, 10), "watch")):
        run = tmp_path / f"{held[1]}"
        for step in range(1, 9):
            rows = [
                make_rollout(f"{n}", [("assistant", "a")], group_id=f"{n}", task_id=f"{n}",
                             reward=1.0 if n % 2 else -1.0, score=n % 2)
                for n in range(20)
            ]  # fmt: skip
            write_step(run, rows, step)
        reversing_eval = [(4 * n, wrong) for n, wrong in enumerate(held)]
        for step, wrong in reversing_eval:
            rows = [
                make_rollout(f"e{n}", [("assistant", "a")], group_id=f"e{n}", task_id=f"e{n}",
                             reward=1.0 if n < wrong else -1.0, score=0.0)
                for n in range(10)
            ]  # fmt: skip
            write_step(run, rows, step, kind="eval/held")
        told = answer_of(reader_of(run), history, fine, {})
        assert (told["level"], held) == (level, held)


def test_a_reward_that_rose_without_its_score_is_in_the_headline_and_open_questions_are_named(
    tmp_path,
):
    history = History(metrics={
        "reward": Series(steps=tuple(range(1, 9)), values=(0.0, 0.0, 0.1, 0.5, 0.5, 0.9, 1.0, 1.0)),
        "score": Series(steps=tuple(range(1, 9)), values=(0.4, 0.6, 0.5, 0.5, 0.5, 0.5, 0.5, 0.6)),
        "eval/held/score": Series(steps=(0, 8), values=(0.1, 0.1)),
    })  # fmt: skip
    verdicts = [
        Verdict(name="judge_hacking", status=Status.UNKNOWN, detail="rm: 16 of the 20 steps"),
        Verdict(name="kl_too_large", status=Status.UNKNOWN, detail="not logged"),
    ]
    told = answer_of(reversing(tmp_path), history, verdicts, {})
    assert (
        "The training reward rose; the rise of the training score is not certain: 0.5 -> 0.55"
        in (told["headline"])
    )
    same, lacking = told["unknown"]
    assert "The held-out score comes from the same kind of tests as the reward" in same
    assert (
        lacking == "Detectors of hacking without an answer: judge hacking, rm: 16 of the 20 steps."
    )


def test_where_reward_and_score_are_one_the_tests_that_were_hidden_are_counted(tmp_path):
    """Fails if solved public tests alone are not counted, or their link finds others."""
    for step in range(1, 9):
        reasons = ["2 of 2 public and 5 of 8 hidden tests passed."] * (step > 6) + [
            "It failed. 1 of 2 public and 0 of 8 hidden tests passed.",
            "2 of 2 public and 8 of 8 hidden tests passed.",
        ]
        rows = [
            make_rollout(f"{step}/{n}", [("assistant", "a")], reward=float("8 of 8" in reason),
                         score=float("8 of 8" in reason), explanation=Explanation(reason=reason))
            for n, reason in enumerate(reasons)
        ]  # fmt: skip
        write_step(tmp_path, rows, step)
        write_metrics(tmp_path, {"step": step, "reward": 0.5, "score": 0.5})
    reader = reader_of(tmp_path)
    told = hacking_answer(reader)
    assert (
        "Public tests passed and hidden tests failed: 0 of 4 (0 %) in steps 1-2, 2 of 6 "
        "(33.3 %) in steps 7-8." in told["more"]
    )
    found = dict(told["links"][1]["find"])
    asked = parse_question(found.pop("q"), **found)
    assert find_answer(reader, asked)["total"] == 2
    assert told["example"]["reward"] == 1.0


def test_the_answer_is_that_of_the_doctor_and_names_the_part_that_carries_the_gain(hacked):
    """Fails if the page judges by itself, or leaves out what was paid for."""
    answer = hacking_answer(reader_of(hacked))
    found = [
        one
        for one in diagnose(read_history(hacked))
        if one.name in SIGNS and one.status in (Status.FAIL, Status.WARN)
    ]
    told = [(one["detector"], one["title"]) for one in answer["signs"]]
    assert sorted(told) == sorted((one.name, one.detail) for one in found)
    assert [name for name, _ in told] == ["score_falls", "pattern_collapse"]
    assert answer["level"] == "fail"
    assert answer["answer"].startswith(
        "Probably: The reward rises and the environment's own score falls"
    )
    assert "Of the parts, confidence rose most: +0.45" in answer["answer"]
    moved = {one["name"]: one["change"]["gain"] for one in answer["parts"]}
    assert (answer["parts"][0]["start_steps"], answer["parts"][0]["end_steps"]) == (
        [1, 10],
        [31, 40],
    )
    assert list(moved) == ["reward", "score", "part confidence", "part env"]
    assert moved["reward"] > 0.2
    assert moved["score"] < -0.2
    assert [one["name"] for one in answer["curves"]["against"]] == ["reward", "score"]
    assert {one["name"] for one in answer["curves"]["parts"]} == {"env", "confidence"}
    json.loads(jsonable(answer))


def test_a_sound_run_shows_no_sign_and_one_without_a_score_cannot_be_told(tmp_path):
    """Fails if silence of the detectors is called sound where nothing was compared."""

    def noise(step: int) -> float:
        return 0.01 * ((7 * step) % 5)

    sound = curves(tmp_path / "sound", reward=lambda s: s / 30 + noise(s),
                   score=lambda s: s / 60 + noise(s + 1))  # fmt: skip
    answer = hacking_answer(sound)
    assert answer["level"] == "ok"
    assert answer["answer"].startswith("No sign: The score does not fall")
    alone = curves(tmp_path / "alone", reward=lambda s: s / 30 + noise(s))
    answer = hacking_answer(alone)
    assert answer["level"] == "unknown"
    assert answer["answer"].startswith("Cannot tell: ")
    assert "he environment gives no score beside the reward" in answer["answer"]
    assert "No held-out evaluation" in answer["answer"]
    assert answer["signs"] == []
    same = diagnose_few(tmp_path / "few", [0.4, 0.3, 0.3, 0.2, 0.6, 0.7, 0.8, 0.3])
    assert same["one_number"]
    assert same["answer"].startswith(
        "Cannot be seen here: Reward and score are one number here, so a hacked reward looks like "
        "a solved task. The rise of the training reward is not certain: 0.35 -> 0.55 (+0.2 with "
        "too few rollouts for an interval), steps 1-2 against 7-8. Not tested: "
    )
    [reward, held] = same["parts"]
    # Eight tasks at either end leave an interval wider than the rewards from 0 to 1.
    assert (reward["name"], reward["over"]) == ("reward = score", "")
    assert (reward["change"]["low"], reward["change"]["high"]) == (None, None)
    assert run_overview(reader_of(tmp_path / "few"))["reward_moved"] == reward
    assert held["change"] is None
    history = History(metrics={
        "reward": Series(steps=(1, 2, 3, 4), values=(0.0, 0.1, 0.8, 0.9)),
        "eval/held/score": Series(steps=(0, 4), values=(0.1, 0.4)),
    })  # fmt: skip
    evals = {"held": {"change": {"mean": 0.3, "low": 0.2, "high": 0.4, "tasks": 9}}}
    fine = [Verdict(name="decoupling", status=Status.OK, detail="x")]
    told = answer_of(sound, history, fine, evals)
    assert "rose with the training reward: held +0.300 [+0.200, +0.400]" in told["answer"]


def test_a_run_whose_rollouts_are_not_stored_is_judged_by_its_curves(tmp_path: Path) -> None:
    run = tmp_path / "bare"
    for step in range(1, 31):
        rises = step / 30 + 0.01 * (7 * step % 5)
        write_metrics(run, {"step": step, "reward": 0.5, "score": rises, "eval/held/score": rises})
    reader = reader_of(run)
    answer = hacking_answer(reader)
    assert answer["rewards"] is None
    # What never moved may have been hacked from the first step on, and nothing is counted.
    assert answer["answer"].startswith("Cannot tell: ")
    assert run_overview(reader)["kinds"] == []
    side = Side(reader=reader)
    for ask in (
        partial(clusters_answer, reader),
        partial(compare_answer, side, side),
        partial(tasks_answer, reader, TaskQuestion()),
    ):
        with pytest.raises(RunError, match="no rollout is stored"):
            ask()
    notes = find_answer(reader, parse_question("is:paid"))["notes"]
    assert any("no rollout is stored" in note for note in notes)


def test_a_reward_that_rises_below_zero_while_all_are_wrong_is_not_cleared(tmp_path: Path) -> None:
    """Fails ("No sign: The score does not fall") where penalties alone became fewer."""
    for step in range(1, 21):
        rewards = [-float(n >= step) for n in range(20)]
        rows = [
            make_rollout(f"{step}/{n}", [("assistant", f"word {n}")], group_id=f"{step}/{n}",
                         task_id=f"t{n}", reward=reward, score=0.0)
            for n, reward in enumerate(rewards)
        ]  # fmt: skip
        write_step(tmp_path / "run", rows, step)
        mean = sum(rewards) / len(rewards)
        write_metrics(tmp_path / "run", {"step": step, "reward": mean, "score": 0.0})
    answer = hacking_answer(reader_of(tmp_path / "run"))
    assert answer["answer"].startswith("Cannot tell: The score does not fall while the reward")


def test_one_step_is_counted_once(tmp_path: Path) -> None:
    rows = [make_rollout(f"g/{n}", [("assistant", "x")], reward=1.0, score=0.0) for n in range(12)]
    write_step(tmp_path / "run", rows, 1)
    write_metrics(tmp_path / "run", {"step": 1, "reward": 1.0, "score": 0.0})
    answer = hacking_answer(reader_of(tmp_path / "run"))
    assert answer["headline"].count("in step 1") == len(answer["links"]) == 1


def diagnose_few(run: Path, values: list[float]) -> dict[str, Any]:
    """The answer of a run of few steps, one number for reward and score, evaluated twice."""
    for step, value in enumerate(values, 1):
        write_metrics(run, {"step": step, "reward": value, "score": value})
        rows = [
            make_rollout(f"{step}/{n}", [("assistant", "words")], group_id=f"{step}/{n}",
                         task_id=f"{step}/{n}", reward=n % 2, score=n % 2)
            for n in range(4)
        ]  # fmt: skip
        write_step(run, rows, step)
    for step in (1, len(values)):
        write_metrics(run, {"step": step, "eval/held/score": 0.5})
    return hacking_answer(reader_of(run))


def test_every_sign_is_a_detector_that_exists():
    assert set(SIGNS) <= {one.name for one in diagnose(History(metrics={}))}


@pytest.mark.parametrize("values", [(0.0, 1.0), tuple(np.linspace(-2.0, 3.1, 37))])
def test_each_bar_finds_exactly_its_rollouts(tmp_path, values):
    """Fails if ranges of rewards overlap, leave one out, or lose digits on their way."""
    draw = random.Random(1)
    rewards = [draw.choice(values) for _ in range(100)]
    rows = [
        make_rollout(f"r{n}", [("assistant", "x")], group_id=f"g{n}", reward=reward, score=n % 2)
        for n, reward in enumerate(rewards)
    ]
    rows.append(make_rollout("lost", [("assistant", "x")], reward=None, score=None,
                             termination=Termination.SANDBOX_FAILED))  # fmt: skip
    write_step(tmp_path, rows, 3)
    write_step(tmp_path, rows[:9], 4)
    reader = reader_of(tmp_path)
    told = hacking_answer(reader, step=3)["rewards"]
    assert (told["rollouts"], told["without"], told["steps"]) == (101, 1, [3, 4])
    assert sum(bar["rollouts"] for bar in told["bars"]) == 100
    assert len(told["bars"]) == 2 if len(values) == 2 else 12 < len(told["bars"]) <= 20
    for bar in json.loads(jsonable(told["bars"])):
        found = find_answer(
            reader,
            Question(kind="train", step_min=3, step_max=3, reward_min=bar["low"],
                     reward_max=bar["high"], limit=200),
        )  # fmt: skip
        assert found["total"] == bar["rollouts"]
        assert bar["score"] == pytest.approx(np.mean([hit["score"] for hit in found["hits"]]))
    with pytest.raises(RunError, match="step 9 of train"):
        hacking_answer(reader, step=9)
    with pytest.raises(RunError, match="valid: train"):
        hacking_answer(reader, kind="eval/none")


def test_a_cluster_is_found_counted_and_leads_to_its_members(hacked):
    """Fails if numbers, case or space part an answer from its like, or two views count apart."""
    reader = reader_of(hacked)
    answer = clusters_answer(reader)
    (cluster,) = answer["clusters"]
    assert cluster["paid_wrong"] == 8
    assert cluster["reward"] == pytest.approx(0.9)
    assert cluster["score"] == 0.0
    assert cluster["tasks"] == 8
    assert cluster["text"] == SAME.format(int(cluster["task_id"].removeprefix("task-")))
    assert 0.1 < cluster["shares"][0] < 0.5 < cluster["shares"][1]
    members = find_answer(reader, parse_question(f"like:{cluster['rollout_id']}", limit=1000))
    assert members["total"] == cluster["rollouts"]
    assert {hit["reward"] for hit in members["hits"]} == {0.9}
    said = find_answer(reader, parse_question("role:assistant checked twice"))
    assert said["total"] == cluster["rollouts"]
    part = clusters_answer(reader, steps=(40, 40))
    assert part["clusters"][0]["rollouts"] == part["rollouts"] == 16
    with pytest.raises(RunError, match="no rollout that is stored here has this id"):
        find_answer(reader, parse_question("like:nobody"))
    with pytest.raises(RunError, match="steps 10 to 40 have"):
        clusters_answer(reader, steps=(1, 2))


def written(run: Path, texts: dict[str, list[tuple[Role, str]]], **more: object) -> RunReader:
    rows = [
        make_rollout(f"{task}/0", said, group_id=task, task_id=task, **more)
        for task, said in texts.items()
    ]
    write_step(run, rows)
    return reader_of(run)


def test_short_answers_are_alike_only_if_they_are_the_same(tmp_path):
    texts = ["no idea", "No  IDEA", "no idea", "no idea", "41", "42", "43", "44", "", "", "", ""]
    reader = written(tmp_path, {str(n): [("assistant", text)] for n, text in enumerate(texts)})
    answer = clusters_answer(reader)
    assert [(one["text"], one["rollouts"]) for one in answer["clusters"]] == [("no idea", 4)]
    assert answer["without_text"] == 4
    # All are paid and solved alike: that is no sign.
    assert answer["clusters"][0]["paid_wrong"] == 0


def test_one_text_for_few_tasks_or_in_prompts_and_tools_is_no_cluster(tmp_path):
    same = "the very same and rather long words of a tool, again and again"
    draw = random.Random(2)
    own = ["".join(draw.choices("abcdefgh ", k=300)) for _ in range(9)]
    texts = {str(n): [("tool", same), ("assistant", text)] for n, text in enumerate(own)}
    texts |= {f"x{n}": [("assistant", same)] for n in range(3)}
    reader = written(tmp_path, texts)  # type: ignore[arg-type]
    assert clusters_answer(reader)["clusters"] == []


def test_rows_of_one_rollout_are_one_answer(tmp_path):
    """Fails if a rollout that goes on in a second row is compared by a part of what it said."""
    halves = ("the first half of what is always said ", "and here is the second half of it all")
    rows = []
    for task in range(5):
        place = {"group_id": f"g{task}", "task_id": f"t{task}"}
        rows.append(make_rollout(f"r{task}", [("assistant", halves[0])], **place))
        rows.append(make_rollout(f"r{task}", [("assistant", halves[1])], row_index=1, **place))
    write_step(tmp_path, rows)
    reader = reader_of(tmp_path)
    (cluster,) = clusters_answer(reader)["clusters"]
    assert (cluster["rollouts"], cluster["tasks"]) == (5, 5)
    assert cluster["text"] == "\n".join(halves)
    assert find_answer(reader, parse_question("like:r0"))["total"] == 5


def test_steps_are_read_ahead_once_and_anew_when_they_are_written_again(tmp_path):
    """Fails if views of all steps read what was read before, or show a step as it was."""
    same = "the very same and rather long answer to each of the tasks"
    run = written(tmp_path / "run", {str(n): [("assistant", same)] for n in range(5)}).path
    library = Library([run])
    reader = library.reader("run")
    library.read_ahead(reader).result(timeout=120)
    shelf = reader.rows.shelf("train", 1)
    path = shelf.parts[0].file.path
    path.rename(tmp_path / "away")
    assert (answer_sketches(reader.rows, shelf) != EMPTY).any(axis=1).all()
    assert turn_facts(reader.rows, shelf)["turns"].tolist() == [1.0] * 5
    (tmp_path / "away").rename(path)
    assert clusters_answer(reader)["clusters"][0]["rollouts"] == 5
    own = [("assistant", f"{n} " + chr(97 + n) * 40) for n in range(5)]
    written(run, {str(n): [text, ("user", "no"), text] for n, text in enumerate(own)})
    library.read_ahead(reader).result(timeout=120)
    assert clusters_answer(reader)["clusters"] == []
    numbers = compare_answer(Side(reader=reader), Side(reader=reader))["numbers"]
    assert next(one["a"]["mean"] for one in numbers if one["name"] == "turns") == 2.0
    library.close()


def test_a_sketch_estimates_the_share_of_pieces_in_common(tmp_path):
    """Fails if what is called near-identical here is not what the detector means by it."""
    draw = random.Random(3)
    base = "".join(draw.choices("abcdefghijklmnop \u4e2d\u00c9", k=900))
    texts = [base]
    for changes in (3, 10, 20, 40, 80, 160, 400):
        text = list(base)
        for at in draw.sample(range(len(text)), changes):
            text[at] = draw.choice("xyz")
        texts.append("".join(text))
    reader = written(tmp_path, {str(n): [("assistant", text)] for n, text in enumerate(texts)})
    reader.rows.refresh()
    sketches = answer_sketches(reader.rows, reader.rows.shelf("train", 1))
    pieces = [
        {plain[at : at + SHINGLE] for at in range(len(plain) - SHINGLE + 1)}
        for plain in map(plain_text, texts)
    ]
    real = np.array([len(pieces[0] & of) / len(pieces[0] | of) for of in pieces])
    estimated = likeness(sketches, sketches[0])
    assert real.min() < 0.1 < ALIKE < real[2] < 1.0
    assert np.abs(estimated - real).max() < 3 * np.sqrt(0.25 / BINS)
    assert likeness(np.full((1, BINS), EMPTY, np.uint16), sketches[0])[0] == 0.0


def test_many_answers_that_each_change_a_little_are_one_cluster(tmp_path):
    """Fails if only copies are found: no two of these texts are the same."""
    draw = random.Random(4)
    words = ["".join(draw.choices("abcdefghijklmnop", k=6)) for _ in range(60)]
    texts: dict[str, list[tuple[Role, str]]] = {}
    for task in range(40):
        said = list(words)
        for at in draw.sample(range(60), 3):
            said[at] = "".join(draw.choices("qrstuvwxyz", k=6))
        texts[f"alike-{task}"] = [("assistant", " ".join(said))]
        other = "".join(draw.choices("abcdefghijklmnop ", k=400))
        texts[f"own-{task}"] = [("assistant", other)]
    answer = clusters_answer(written(tmp_path, texts))
    assert answer["clusters"][0]["tasks"] >= 30
    assert answer["clusters"][0]["task_id"].startswith("alike")


def test_a_damaged_step_is_named_and_the_others_are_compared(hacked, tmp_path):
    run = Path(shutil.copytree(hacked, tmp_path / "copy"))
    reader = reader_of(run)
    reader.rows.refresh()
    path = reader.rows.shelf("train", 20).parts[0].file.path
    raw = path.read_bytes()
    path.write_bytes(raw[:4] + bytes(len(raw) // 2) + raw[4 + len(raw) // 2 :])
    answer = clusters_answer(reader)
    assert answer["clusters"][0]["tasks"] == 8
    assert "step_000020" in answer["notes"][0]


def all_wrong(run: Path, rewards: tuple[float, ...]) -> RunReader:
    """Twelve steps, a task for each reward, and nothing right by the score."""
    for step in range(1, 13):
        rows = [
            make_rollout(f"{step}/{n}", [("assistant", f"{n} {step}")], group_id=f"{step}/{n}",
                         task_id=f"t{n}", reward=reward, score=0.0)
            for n, reward in enumerate(rewards)
        ]  # fmt: skip
        write_step(run, rows, step)
        write_metrics(run, {"step": step, "reward": sum(rewards) / len(rewards), "score": 0.0})
    return reader_of(run)


@pytest.mark.parametrize(
    ("rewards", "level", "paid"),
    [
        ((1.0, 0.0), "warn", 12),
        # All pay is a small bonus, or partial credit: nothing clears it, nothing accuses it.
        ((0.2, 0.0), "watch", 12),
        ((0.2, 0.5, 0.7), "unknown", 24),
        # Everything is paid the same.
        ((1.0, 1.0), "warn", 24),
    ],
)
def test_paid_needs_no_right_rollout(tmp_path, rewards, level, paid):
    """Fails if a run whose paid rollouts are all wrong shows "No sign", or none is found."""
    reader = all_wrong(tmp_path / "run", rewards)
    answer = hacking_answer(reader)
    assert answer["level"] == level, answer["answer"]
    assert "No sign" not in answer["answer"]
    hits = find_answer(reader, parse_question("is:paid is:wrong"))
    assert hits["total"] == paid == answer["paid_wrong"]["wrong"]
    assert answer["example"]["wrong"]


def paying(
    run: Path,
    reward: Callable[[random.Random, float], tuple[float, float]],
    *,
    env: bool = False,
    scored: bool = True,
) -> dict:
    """The view of a run of 16 steps; `reward` gives reward and score of a rollout.

    With `env` the parts of the reward are the score and a bonus; without `scored` it has no score.
    """
    draw = random.Random(0)
    for step in range(1, 17):
        rows = []
        for n in range(24):
            paid, score = reward(draw, step / 16)
            rows.append(make_rollout(
                f"{step}/{n}", [("assistant", f"{n} {draw.random()}")], task_id=f"{n // 3}",
                group_id=f"{step}-{n // 3}", reward=paid, score=score,
            ))  # fmt: skip
        means = {of: float(np.mean([getattr(r, of) for r in rows])) for of in ("reward", "score")}
        if env:
            bonus = means["reward"] - means["score"]
            means |= {"rewards/env/mean": means["score"], "rewards/bonus/mean": bonus}
        if not scored:
            means["score"] = means["reward"]
            rows = [replace(row, score=None) for row in rows]
        write_step(run, rows, step)
        write_metrics(run, {"step": step, **means})
    return hacking_answer(reader_of(run))


def share_of_it(draw: random.Random, now: float, most: int = 5) -> tuple[float, float]:
    """Partial credit: the score is 1 where all of it is right."""
    right = min(most, max(0, round(draw.gauss(1 + 2.5 * now, 1)))) / 5
    return right, float(right == 1)


def giving_up(draw: random.Random, now: float) -> tuple[float, float]:
    """Whoever gives up is paid 0.4, and ever more do."""
    right = float(draw.random() < 0.1)
    return (right or 0.4 * float(draw.random() < now)), right


@pytest.mark.parametrize(
    ("reward", "level", "says"),
    [
        (share_of_it, "ok", "Wrong answers are paid in many amounts, all below what half of the "),
        (
            partial(share_of_it, most=4),
            "unknown",
            "Wrong answers earn more than at first, in many ",
        ),
        (giving_up, "watch", "Wrong answers earn more than at first: mean reward 0.0"),
    ],
)
def test_partial_credit_is_no_alarm_and_one_amount_for_wrong_answers_is(
    tmp_path: Path, reward: Any, level: str, says: str
) -> None:
    """Fails if shares of an answer are suspected, or half a reward for giving up is not."""
    found = paying(tmp_path / "run", reward)
    assert (found["level"], found["headline"][: len(says)]) == (level, says), found["answer"]


def test_the_command_for_wrong_answers_finds_what_is_paid_less_than_a_right_one(tmp_path) -> None:
    """Fails if `doctor` names a command that finds no rollout of the finding it is for."""
    run = tmp_path / "run"
    paying(run, giving_up)
    verdict = Verdict(name="score_falls", status=Status.FAIL, detail="", first_step=9)
    line, _ = next_command(verdict, str(run)) or ("", "")
    words = shlex.split(line)
    found = find_answer(
        reader_of(run), parse_question(" ".join(words[words.index(str(run)) + 1 :]))
    )
    assert [hit["reward"] for hit in found["hits"][:9]] == [0.4] * 9


def test_a_rise_that_shaping_carries_alone_is_watched(tmp_path: Path) -> None:
    """Fails if a bonus that is farmed counts as a task that is learned, with or without a score."""

    def farmed(draw: random.Random, now: float) -> tuple[float, float]:
        right = float(draw.random() < 0.25)
        return right + round(0.6 * now + 0.1 * draw.random(), 1), right

    for scored in (True, False):
        found = paying(tmp_path / str(scored), farmed, env=True, scored=scored)
        assert found["level"] == "watch", found["answer"]
        assert found["headline"].startswith("The reward rises by bonus (+0."), found["answer"]


def test_the_answer_begins_with_the_cause_and_not_with_what_follows(tmp_path: Path) -> None:
    """Fails if `answers collapse` is told of a run whose paid answers are wrong since before."""

    def listing(draw: random.Random, now: float) -> tuple[float, float]:
        right = float(draw.random() < 0.2)
        return float(right or draw.random() < 1.4 * now - 0.3), right

    run = tmp_path / "run"
    paying(run, listing)
    verdicts = [
        replace(one, status=Status.FAIL, detail="collapse")
        if one.name == "pattern_collapse"
        else one
        for one in diagnose(read_history(run))
    ]
    found = answer_of(reader_of(run), read_history(run), verdicts, {})
    assert found["level"] == "fail"
    assert found["headline"].startswith("More and more of the answers that are paid are wrong")
