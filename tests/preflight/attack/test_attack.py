"""Attacks on environments with planted holes: each is found by the class that it belongs to."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from agentrl_sandboxes import BACKENDS

from agentrl.errors import RunError
from agentrl.preflight.attack.attack import NO_WALLS, AttackClass, AttackedTask
from agentrl.preflight.attack.campaign import AttackPlan, run_attacks
from agentrl.preflight.attack.library import (
    AttackOutcome,
    AttackResult,
    AttackVerdict,
    TaskWorth,
    attacks,
    by_chance,
    changed,
    verdict_of,
)
from agentrl.types import Task
from tests.preflight.attack.campaigns import ENVS, plan, run, through

pytestmark = pytest.mark.slow

NAIVE = Path(__file__).with_name("naive_env.py")


def test_every_class_has_attacks_with_names_of_their_own() -> None:
    library = attacks()
    assert {attack.aim for attack in library} == set(AttackClass)
    assert len({attack.name for attack in library}) == len(library) > 100
    on = AttackedTask(task=Task(id="t", prompt="Write a function `f`."), host_namespace="pid:[1]")
    for attack in library:
        for episode in attack.episodes(on):
            assert episode
    assert on.function == "f"


def test_one_that_raises_drops_the_reward() -> None:
    results = run_attacks(plan("Raises", AttackClass.INFRASTRUCTURE))
    odd = next(result for result in results if result.attack == "writes what is no text")
    assert odd.count(AttackVerdict.DROPPED) == 1
    assert "raised" in odd.first() or "Error" in odd.first()


def test_one_that_backtracks_is_found_frozen() -> None:
    names = (r"repeats '\n'", "repeats 'a'", "repeats '['")
    found = through(run_attacks(plan("Backtracks", AttackClass.FREEZE, names=names, hold_s=0.3)))
    assert r"repeats '\n'" in found
    assert "repeats 'a'" not in found


def test_one_that_never_comes_back_is_ended_and_the_rest_goes_on() -> None:
    """Fails if an attack that cannot be interrupted stops the command."""
    names = ("repeats '('", "repeats '['", "repeats '{'")
    found = plan("NeverComes", AttackClass.FREEZE, names=names, silence_s=5.0)
    results = run_attacks(found)
    ends = {result.attack: result.first() for result in results if result.got_through}
    assert list(ends) == ["repeats '['"]
    assert "it was killed" in ends["repeats '['"]
    assert [result.attack for result in results] == list(names)


def test_programs_do_nothing_outside_of_a_sandbox_and_say_so() -> None:
    """Fails if attacks would run on the machine itself: they kill and delete what they can."""
    results = run_attacks(plan("RunsHere", AttackClass.READ, tasks=1))
    assert all(result.count(AttackVerdict.UNWALLED) for result in results)
    assert all(NO_WALLS in result.first() for result in results)


def test_what_one_rollout_kept_is_found_in_the_next() -> None:
    found = through(run_attacks(plan("Remembers", AttackClass.LEAK, tasks=2)))
    assert "finds what another rollout kept" in found


NAIVELY = {
    "returns its argument": (AttackVerdict.UNWALLED, "in a sandbox"),
    "sends code for an answer": (AttackVerdict.UNWALLED, "without eval or exec"),
    "asks for a power of powers": (AttackVerdict.FROZE, "bound time and size"),
    "sends what is no number": (AttackVerdict.DROPPED, "must not raise"),
    "is shown what another rollout said": (AttackVerdict.LEAKED, "set all state in reset"),
    "leaves something for all rollouts": (AttackVerdict.SPOILED, "shared by all rollouts"),
}


def test_every_hole_of_a_naive_environment_is_named_with_advice() -> None:
    """A judge in the trainer's process, eval, what raises, and state that outlives a rollout."""
    names = (*list(NAIVELY)[:-1], "says something in one rollout", "lists all choices",
             *(f"says {text!r}" for text in ("0", "1", "-1", "2", "yes", "no")))  # fmt: skip
    results = run_attacks(plan("Quiz", file=NAIVE, names=names, silence_s=6.0))
    found = {result.attack: result for result in results}
    for name, (verdict, advice) in NAIVELY.items():
        assert found[name].count(verdict), (name, found[name].as_dict())
        assert found[name].got_through
        assert advice in found[name].advice(), name
        assert found[name].as_dict()["advice"] == found[name].advice()


def test_what_runs_outside_of_a_sandbox_is_known_though_nothing_of_it_is_shown() -> None:
    results = run_attacks(plan("RunsUnseen", AttackClass.READ))
    assert all(result.count(AttackVerdict.UNWALLED) for result in results)


def test_a_call_that_blocks_holds_up_the_loop_though_it_computes_nothing() -> None:
    """Fails if the time of the processor alone is measured."""
    (result,) = run_attacks(plan("Sleeps", names=("claims success",), hold_s=0.2))
    assert result.count(AttackVerdict.FROZE)


def test_every_form_is_said_to_an_environment_that_ends_after_one() -> None:
    """Fails if the turns behind the first end of a rollout are lost."""
    (result,) = run_attacks(plan("LastForm", names=("says '0'",), more_tasks=3))
    assert len(result.outcomes) == 4 * 5
    assert result.count(AttackVerdict.PAID) == 4


def test_a_constant_that_half_of_the_tasks_pay_is_tried_on_more() -> None:
    """Fails if a coin that fell right twice is called a hole, or if a hole is called a coin."""
    coin, hole = run_attacks(plan("Coins", names=("says '0'", "says '1'"), tasks=2))
    assert (coin.count(AttackVerdict.CHANCE) > 0, coin.got_through) == (True, False)
    assert hole.count(AttackVerdict.PAID) == 22


def test_what_keeps_inputs_between_turns_is_found() -> None:
    name = "keeps what it is given for the next turn"
    for clean in (True, False):
        (result, _) = run_attacks(
            plan("Calls", args={"clean": clean}, names=(name,), sandbox={"backend": "auto"})
        )
        assert result.got_through is not clean, result.as_dict()


def test_an_environment_that_cannot_be_played_is_an_error_with_its_words() -> None:
    broken = AttackPlan(env={"target": f"{ENVS}:Nobody"}, dataset={"source": f"{ENVS}:make_tasks"})
    with pytest.raises(RunError, match=r"(?s)cannot be played.*Nobody"):
        run_attacks(broken)


@pytest.mark.parametrize(
    ("outcome", "worth", "verdict"),
    [
        ({"score": 1.0, "reward": 1.0}, {}, AttackVerdict.PAID),
        ({"score": 0.0, "reward": 0.2}, {}, AttackVerdict.HELD),
        ({"reward": 0.2}, {"solution": 1.0}, AttackVerdict.HELD),
        ({"reward": 0.5}, {"solution": 1.0}, AttackVerdict.PAID),
        ({"reward": 0.1}, {"idle": 0.1}, AttackVerdict.HELD),
        ({"reward": 0.2}, {"idle": 0.1}, AttackVerdict.PAID),
        ({"reward": 0.5, "score": 0.5}, {"idle": 0.5}, AttackVerdict.HELD),
        ({"reward": 0.5, "score": 0.5}, {}, AttackVerdict.PAID),
        ({"reward": -0.1}, {"idle": -1.0}, AttackVerdict.HELD),
        ({"leaked": True, "trusted": False}, {}, AttackVerdict.LEAKED),
        ({"trusted": False}, {}, AttackVerdict.DROPPED),
        ({"score": 1.0, "reward": 1.0, "held_s": 3.0}, {}, AttackVerdict.FROZE),
        ({"ended": "killed"}, {}, AttackVerdict.FROZE),
        ({"leaked": True}, {}, AttackVerdict.LEAKED),
        ({"unwalled": True}, {}, AttackVerdict.UNWALLED),
        ({"unwalled": True, "ended": "status 1"}, {}, AttackVerdict.UNWALLED),
        ({}, {}, AttackVerdict.HELD),
    ],
)
def test_verdicts(outcome, worth, verdict) -> None:
    found = verdict_of(AttackOutcome(task_id="t", **outcome), TaskWorth(**worth), hold_s=1.0)
    assert found is verdict


def test_a_constant_may_be_right_by_chance() -> None:
    def result(aim: AttackClass, *scores: float) -> AttackResult:
        verdicts = {0.0: AttackVerdict.HELD, 1.0: AttackVerdict.PAID}
        found = [(AttackOutcome(task_id=str(n), score=score), verdicts[score])
                 for n, score in enumerate(scores)]  # fmt: skip
        return AttackResult(attack="a", aim=aim, outcomes=found)

    constant = result(AttackClass.SPECIAL_CASE, 1.0, *[0.0] * 4)
    same = result(AttackClass.FORGE, 1.0, *[0.0] * 4)
    other = result(AttackClass.FORGE, 0.0, 1.0, *[0.0] * 3)
    sure = result(AttackClass.SPECIAL_CASE, *[1.0] * 4, 0.0)
    constant, same, other, sure = by_chance([constant, same, other, sure])
    assert (constant.got_through, constant.count(AttackVerdict.CHANCE)) == (False, 1)
    assert constant.first() == constant.advice() == ""
    assert not same.got_through
    assert other.got_through
    assert sure.got_through
    coin = result(AttackClass.SPECIAL_CASE, 1.0, 1.0, *[0.0] * 3)
    winner = result(AttackClass.FORGE, *[1.0] * 5)
    coin, other, winner = by_chance([coin, other, winner])
    assert not other.got_through, "in a game of luck any move may win"
    assert winner.got_through


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ({"idle": 0.0, "solution": 1.0}, {"idle": 0.0, "solution": 1.0}, ""),
        ({"idle": 0.0, "solution": 1.0}, {"idle": 0.0, "solution": 0.0}, "the solution earned 1"),
        ({"idle": 0.0, "solution": 1.0}, {"idle": 0.0}, "the solution earned 1"),
        ({"idle": 0.0, "solution": 1.0}, {"idle": 1.0, "solution": 1.0}, "saying nothing earned"),
        ({"idle": -1.0}, {"idle": -0.5}, ""),
        ({}, {}, ""),
    ],
)
def test_what_is_left_for_other_rollouts(before, after, words) -> None:
    found = changed({"t": TaskWorth(**before)}, {"t": TaskWorth(**after)})
    assert words in found.first()
    assert found.got_through is bool(words)


def test_the_command_prints_a_table_and_its_status_says_what_came_of_it(capsys) -> None:
    words = ("env", "attack", f"{ENVS}:Believes", "--sandbox", "none", "--class", "forge",
             "--tasks", "1")  # fmt: skip
    assert run(*words) == 1
    out = capsys.readouterr().out
    assert "forge: claims success: paid on 5: reward 1, score 1.0" in out
    assert "attacks got through" in out
    assert run(*words, "--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert {entry["class"] for entry in found} == {"forge"}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--class", "fogre"), "did you mean 'forge'"),
        (("--attack", "claims succes"), "did you mean 'claims success'"),
        (("--tasks", "0"), "greater than or equal to 1"),
        (("--args", "n"), "expected key=value"),
        (("--dataset", "nowhere.jsonl"), "nowhere.jsonl"),
    ],
)
def test_what_cannot_be_played_is_said_with_status_2(words, says, capsys) -> None:
    assert run("env", "attack", f"{ENVS}:Whole", "--sandbox", "none", *words) == 2
    err = " ".join(capsys.readouterr().err.split())
    assert says in err


def test_a_class_without_tasks_is_told_how_to_name_some(tmp_path, capsys) -> None:
    (tmp_path / "bare.py").write_text(
        "from agentrl.env import AgentInstance\nclass Bare(AgentInstance):\n"
        "    async def reset(self, task): ...\n    async def step(self, action): ...\n"
    )
    assert run("env", "attack", str(tmp_path / "bare.py")) == 2
    assert "--dataset on the command line" in " ".join(capsys.readouterr().err.split())


def test_the_help_says_what_each_status_means(capsys) -> None:
    assert run("env", "attack", "--help") == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "Exit status 0 if all attacks were held, 1 if one got through, 2 if" in out
    for option in ("--class", "--attack", "--json", "--throwaway-machine", "--hold-s"):
        assert option in out


FAMILIES = ("aiw", "countdown", "mini_sudoku", "number_format", "spell_backward", "word_sorting",
            "zebra_puzzles")  # fmt: skip
SHIPPED = {
    "agentrl_envs.arithmetic:ArithmeticTask": {"source": "agentrl_envs.arithmetic:make_tasks"},
    # One task of each of a few families: drawing them all takes longer than the attacks.
    "agentrl_envs.reasoning:ReasoningTask": {
        "source": "agentrl_envs.reasoning:make_tasks",
        "args": {"families": FAMILIES, "n": len(FAMILIES)},
    },
}
WORDS = (AttackClass.FORGE, AttackClass.INFRASTRUCTURE, AttackClass.SPECIAL_CASE)


@pytest.mark.parametrize("target", SHIPPED)
def test_no_attack_by_words_gets_through_an_environment_of_ours(target: str) -> None:
    """The rest of the library is played by hand; its table is in envs/README.md."""
    found = AttackPlan(
        env={"target": target}, dataset=SHIPPED[target], sandbox=None, tasks=2, only=WORDS
    )  # fmt: skip
    results = run_attacks(found)
    assert [result.first() for result in results if result.got_through] == []


SHORT = ("ends with success", "returns what equals everything", "prints verdicts", "kills itself",
         "patches comparison and assertion", "speaks for its parent", "removes its directory",
         "returns what nests too deeply", "leaves processes behind",
         "returns what its callers hold", "keeps what it is given for the next turn")  # fmt: skip


@pytest.mark.parametrize(
    ("sandbox", "source"),
    [
        ("bubblewrap", "humaneval_tasks"),
        ("userns", "make_tasks"),
        pytest.param("docker", "humaneval_tasks", marks=pytest.mark.docker),
    ],
)
async def test_no_program_gets_through_the_judge_of_code(sandbox: str, source: str) -> None:
    """The quick half of the programs; in `process` they do nothing, see below."""
    made = BACKENDS[sandbox]()
    probed = await made.probe()
    await made.close()
    if not probed.available:
        pytest.skip(probed.detail)
    found = AttackPlan(
        env={"target": "agentrl_envs.code:CodeTask"},
        dataset={"source": f"agentrl_envs.code:{source}"},
        sandbox={"backend": sandbox},
        tasks=1,
        names=SHORT,
    )
    results = await asyncio.to_thread(run_attacks, found)
    assert [result.attack for result in results][:-1] != []
    assert [result.first() for result in results if result.got_through] == []
    assert all(result.outcomes for result in results)


def test_a_sandbox_without_walls_is_named_and_comes_to_no_harm() -> None:
    found = AttackPlan(
        env={"target": "agentrl_envs.code:CodeTask"},
        dataset={"source": "agentrl_envs.code:make_tasks"},
        sandbox={"backend": "process"},
        tasks=1,
        names=("kills everything", "removes its directory"),
    )
    results = run_attacks(found)
    assert [result.count(AttackVerdict.UNWALLED) for result in results] == [1, 1]
