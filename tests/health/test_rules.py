"""Rules as they are written, and the streaks they count."""

import math
import random
from pathlib import Path

import pytest

from agentrl.errors import ConfigError
from agentrl.health.journal import Event, HealthJournal
from agentrl.health.rules import (
    Rule,
    RuleAction,
    parse_rule,
    parse_rules,
    silence_of,
    streak_of,
)


def test_a_rule_is_read() -> None:
    rule = parse_rule("  kl >2 for 20 steps->stop ")
    assert rule == Rule(metric="kl", op=">", bound=2.0, steps=20, action=RuleAction.STOP)
    assert rule.text == "kl > 2 for 20 steps -> stop"
    assert parse_rule("eval/held out/score <= -1e-3 -> warn") == Rule(
        metric="eval/held out/score", op="<=", bound=-0.001, steps=1, action=RuleAction.WARN
    )


def test_what_a_rule_says_can_be_read_again() -> None:
    draw = random.Random(0)
    for _ in range(200):
        rule = Rule(
            metric=draw.choice(["kl", "entropy", "eval/a b/score", "env/solved", "my/own.metric"]),
            op=draw.choice(["<", "<=", ">", ">="]),
            bound=float(f"{draw.uniform(-9, 9) * 10 ** draw.randint(-6, 6):g}"),
            steps=draw.randint(1, 99),
            action=draw.choice(list(RuleAction)),
        )
        assert parse_rule(rule.text) == rule


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("kl > 2", "has no '-> ACTION'; expected METRIC OP NUMBER for N steps -> ACTION"),
        ("-> stop", "compares nothing"),
        ("> 2 -> stop", "names no metric"),
        ("kl => 2 -> stop", "operator '=>' is none of >=, <=, >, <"),
        ("kl == 2 -> stop", "operator '==' is none of"),
        ("kl > -> stop", "after the operator stands ''"),
        ("kl > two -> stop", "'two' is no finite number"),
        ("kl > nan -> stop", "'nan' is no finite number"),
        ("kl > 2 for ten steps -> stop", "'ten' is no number of steps"),
        ("kl > 2 for 0 steps -> stop", "'0' is no number of steps"),
        ("kl > 2 for 1.5 steps -> stop", "'1.5' is no number of steps"),
        (f"kl > 2 for {'9' * 5000} steps -> stop", "is no number of steps"),
        ("kl > 2 during 5 steps -> stop", "expected NUMBER, or NUMBER for N steps"),
        ("kl > 2 for 5 -> stop", "expected NUMBER, or NUMBER for N steps"),
        ("kl > 2 -> rolback", "action 'rolback' is none of warn, pause, rollback, stop; did you"),
        ("kl > 2 -> stop now", "action 'stop now' is none of"),
        ("grad_norm > 9 -> stop", "'grad_norm'; did you mean 'train/grad_norm'"),
        ("entrpy < 0.1 -> stop", "did you mean 'entropy'"),
        ("eval/test/score < 0.1 -> stop", "a NAME of eval.datasets: held_out"),
    ],
)
def test_what_is_wrong_is_said(text: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_rules(["kl > 2 -> stop", text], datasets=["held_out"])
    assert str(caught.value).startswith("health.rules[1]: ")
    assert expected in str(caught.value)


def test_a_metric_of_somebodys_own_is_allowed() -> None:
    assert parse_rule("my_loss/share_of_x > 2 -> warn").metric == "my_loss/share_of_x"


def test_a_rule_that_stands_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"health.rules\[1\].* says the same as health.rules\[0"):
        parse_rules(["kl > 2 -> stop", "kl>2.0 for 1 step -> stop"])


def test_streaks() -> None:
    rule = parse_rule("entropy < 0.05 for 2 steps -> rollback")
    values = {1: 1.0, 2: 0.04, 3: 0.03, 7: 0.02, 8: 0.9, 9: 0.01}
    assert streak_of(rule, values, until=1).steps == ()
    assert not streak_of(rule, values, until=2).due
    # Steps 4 to 6 have no value: they neither break the streak nor count.
    streak = streak_of(rule, values, until=7)
    assert (streak.steps, streak.due, streak.last_good) == ((2, 3, 7), True, 1)
    assert streak_of(rule, values, until=8).steps == ()
    assert streak_of(rule, values, until=100).steps == (9,)
    assert streak_of(rule, {}, until=100).last_good is None


def test_no_number_breaks_every_bound() -> None:
    for op in ("<", ">"):
        rule = parse_rule(f"kl {op} 2 -> stop")
        for value in (math.nan, math.inf, -math.inf):
            assert streak_of(rule, {1: value}, until=1).due


def test_which_weights_are_known_to_be_good() -> None:
    # Step 4 measures the weights after step 3; a score at step 4 those after step 4.
    values = {4: 1.0, 5: 0.0}
    assert streak_of(parse_rule("entropy < 0.5 -> rollback"), values, until=5).good_weights == 3
    score = parse_rule("eval/held/score < 0.5 -> rollback")
    assert streak_of(score, values, until=5).good_weights == 4
    assert streak_of(score, {5: 0.0}, until=5).good_weights is None


def test_a_journal_survives_torn_lines_and_strangers(tmp_path: Path) -> None:
    path = tmp_path / "health.jsonl"
    journal = HealthJournal(path)
    assert journal.read() == []
    assert journal.write(Event(step=3, what="decision", text="a", rule="kl > 2 -> stop"))
    with path.open("ab") as file:
        file.write(b'{"what": "verdict", "text": 7, "step": 1}\n[1]\nnull\n\xff\n{"what": "ver')
    # A torn line must not swallow the next.
    assert journal.write(Event(step=4, what="verdict", text="\x1b[31m<b>", first_step=2))
    events = journal.read()
    assert [(event.step, event.text) for event in events] == [(3, "a"), (4, "\x1b[31m<b>")]
    assert events[0].time > 0


def test_a_journal_that_cannot_be_written_warns_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    journal = HealthJournal(tmp_path / "missing" / "health.jsonl")
    for step in range(3):
        assert not journal.write(Event(step=step, what="verdict", text="x"))
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("values", "trained", "names", "since"),
    [
        ({}, 2, [], None),
        ({}, 3, [], 1),
        # A step that skips it, as one every second step, is no silence; four of them are.
        ({1: 1.0, 2: 1.0}, 5, [], None),
        ({1: 1.0, 2: 1.0}, 6, [], 3),
        ({1: 1.0, 6: 1.0}, 13, [], None),
        ({1: 1.0, 6: 1.0}, 15, [], 7),
    ],
)
def test_a_metric_that_never_came_or_is_gone_is_missed(values, trained, names, since):
    rule = parse_rule("entropy < 0.05 for 10 steps -> stop")
    found = silence_of(rule, values, trained=list(range(1, trained + 1)), names=names)
    assert (found and found.first_step) == since


def test_a_score_is_missed_at_the_first_evaluation_that_lacks_it():
    rule = parse_rule("eval/held_out/pass@4 < 0.5 -> stop")
    steps = list(range(1, 11))
    assert silence_of(rule, {}, trained=steps, names=["reward", "eval/easy/score"]) is None
    found = silence_of(rule, {}, trained=steps, names=["eval/held_out/score"])
    assert found is not None
    assert "has seen no eval/held_out/pass@4 so far" in found.text
    # Every fifth step: eleven steps are more than twice the four between.
    seen = {5: 1.0, 10: 1.0}
    rule = parse_rule("eval/held_out/score < 0.5 -> stop")
    assert silence_of(rule, seen, trained=list(range(1, 19)), names=[]) is None
    assert silence_of(rule, seen, trained=list(range(1, 20)), names=[]) is not None


def test_the_names_that_a_run_logs_say_what_was_meant():
    rule = parse_rule("mine/rewrad < 1 -> warn")
    found = silence_of(rule, {}, trained=[1, 2, 3], names=["mine/reward", "kl"])
    assert found is not None
    assert found.text.endswith("; did you mean 'mine/reward'?")


@pytest.mark.parametrize(
    ("metric", "meant"),
    [("actor/entropy", "entropy"), ("train/entropy", "entropy"), ("eval/held_out/scor", "score")],
)
def test_names_of_others_and_of_other_families_are_refused_at_the_start(metric, meant):
    with pytest.raises(ConfigError, match=f"did you mean '{meant}'"):
        parse_rule(f"{metric} < 1 -> stop", datasets=["held_out"])
