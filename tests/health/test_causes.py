"""Findings are ranked: causes first, consequences below them, one value for a config key."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest

from agentrl.health import (
    DETECTORS,
    History,
    Lever,
    RolloutFacts,
    Series,
    Verdict,
    causes,
    diagnose,
    merged_levers,
    next_command,
    read_history,
)
from agentrl.health.causes import _EXPLAINS
from agentrl.health.levers import sampler, system
from agentrl.health.measures.error_texts import error_line, error_words
from agentrl.health.records import Dating, Evidence
from agentrl.types.finding import Status


def verdict(name: str, step: int | None, status: Status = Status.FAIL, **levers: object) -> Verdict:
    return Verdict(
        name=name,
        status=status,
        detail=name,
        first_step=step,
        levers=tuple(Lever(key=key, value=value, why="w") for key, value in levers.items()),
    )


def ranked(*verdicts: Verdict) -> list[tuple[str, list[str]]]:
    return [(c.verdict.name, [v.name for v in c.follows]) for c in causes(verdicts)]


def test_what_a_dead_tool_leads_to_is_no_cause_of_its_own() -> None:
    """Fails if a fall of the reward gives advice beside the tool that explains it."""
    found = [
        verdict("reward_fall", 47, rate=2.5e-7),
        verdict("entropy_collapse", 60, Status.WARN, rate=3e-6),
        verdict("tool_errors", 46, rules="stop"),
        verdict("empty_gradient", 50),
        verdict("kl_too_small", None, Status.OK),
    ]
    assert ranked(*found) == [
        ("tool_errors", ["reward_fall", "empty_gradient", "entropy_collapse"])
    ]
    levers = merged_levers(causes(found))
    assert [(lever.key, name) for lever, name in levers] == [("rules", "tool_errors")]


def test_what_began_before_is_explained_by_nothing_that_came_later() -> None:
    assert ranked(verdict("reward_fall", 20), verdict("tool_errors", 60)) == [
        ("reward_fall", []),
        ("tool_errors", []),
    ]


@pytest.mark.parametrize(("early", "causes_first"), [(81, "kl_too_large"), (70, "decoupling")])
def test_a_date_that_is_not_exact_is_so_whichever_finding_is_asked(early, causes_first) -> None:
    """Fails if a held-out score, dated by evaluations that lie apart, explains a sudden jump of the
    divergence that came within the error of that date."""
    found = [verdict("decoupling", early), verdict("kl_too_large", 90)]
    assert [name for name, _ in ranked(*found)] == [causes_first]


def dated_by(found: Verdict, item: Evidence, *because: str) -> Verdict:
    return replace(found, evidence=(item,), explained_by=frozenset(because))


def test_a_movement_without_a_change_point_rules_no_cause_out() -> None:
    """Fails if the first step of a curve passes for the date of what moved somewhere in it."""
    moved = Evidence(text="m", first_step=1, last_step=150, dating=Dating.MOVEMENT)
    found = [dated_by(verdict("decoupling", 1), moved), verdict("empty_gradient", 63)]
    assert ranked(*found) == [("empty_gradient", ["decoupling"])]
    exact = replace(moved, dating=Dating.EXACT)
    found[0] = dated_by(found[0], exact)
    assert [name for name, _ in ranked(*found)] == ["decoupling", "empty_gradient"]


@pytest.mark.parametrize(("sound_step", "first"), [(40, "repetition"), (59, "length_hacking")])
def test_texts_began_to_loop_between_two_looks(sound_step: int, first: str) -> None:
    looked = Evidence(text="m", first_step=60, sound_step=sound_step, dating=Dating.EXACT)
    found = [verdict("length_hacking", 50), dated_by(verdict("repetition", 60), looked)]
    assert ranked(*found)[0][0] == first


def test_a_finding_knows_better_than_the_table_of_which_it_is_a_consequence() -> None:
    told = replace(verdict("reward_fall", 70), explained_by=frozenset({"empty_gradient"}))
    assert ranked(told, verdict("empty_gradient", 72)) == [("empty_gradient", ["reward_fall"])]
    late = verdict("empty_gradient", 120)
    assert ranked(told, late) == [("reward_fall", ["empty_gradient"])]


def test_a_mild_cause_of_a_failure_comes_before_a_later_failure() -> None:
    found = [verdict("empty_gradient", 50, Status.WARN), verdict("decoupling", 52)]
    later = verdict("infrastructure", 110)
    assert ranked(*found, later) == [("empty_gradient", ["decoupling"]), ("infrastructure", [])]
    assert ranked(found[0], later)[0][0] == "infrastructure"


def test_a_key_that_two_causes_pull_gets_the_value_of_the_first() -> None:
    found = [
        verdict("truncation", 30, Status.WARN, key=1, other=5),
        verdict("value_divergence", 40, key=2),
    ]
    levers = merged_levers(causes(found))
    assert [(lever.key, lever.value, name) for lever, name in levers] == [
        ("key", 2, "value_divergence"),
        ("other", 5, "truncation"),
    ]


@pytest.mark.parametrize("step", [0, 10])
def test_every_finding_is_listed_once_whatever_explains_what(step: int) -> None:
    """Fails if findings that explain each other in a circle are all left out."""
    names = list(DETECTORS)
    found = [verdict(name, step * place) for place, name in enumerate(names)]
    listed = [name for cause, rest in ranked(*found) for name in (cause, *rest)]
    assert sorted(listed) == sorted(names)


def test_the_table_names_detectors() -> None:
    known = set(DETECTORS)
    assert set(_EXPLAINS) <= known
    assert {name for effects in _EXPLAINS.values() for name in effects} <= known
    assert all(name not in effects or name in _EXPLAINS for name, effects in _EXPLAINS.items())


def test_next_commands_are_words_that_the_command_line_knows() -> None:
    """Fails if a run directory with a space, or a filter, breaks the line that is printed."""
    for name in DETECTORS:
        command = next_command(verdict(name, 12), "runs/a b")
        if command is not None:
            words = shlex.split(command[0])
            assert words[0] == "agentrl"
            assert any(word.startswith("runs/a b") for word in words)
            assert "{" not in command[0]


def curve(*values: float) -> Series:
    return Series(steps=tuple(range(1, len(values) + 1)), values=values)


def facts(step: int, *errors: str, termination: str = "env_done") -> RolloutFacts:
    return RolloutFacts(
        step=step,
        kind="train",
        task_id="t",
        group_id=f"g{step}",
        rollout_id=f"r{step}",
        reward=0.0,
        score=0.0,
        advantage=0.0,
        termination=termination,
        action_tokens=4,
        duration_s=1.0,
        turns=1,
        tool_calls=1,
        tool_errors=1,
        text="x",
        errors=errors,
    )


def test_a_reward_of_nothing_but_zeros_advises_no_filter_that_leaves_no_task() -> None:
    zeros = curve(*[0.0] * 40)
    verdicts = diagnose(
        History(
            metrics={"reward": zeros, "score": zeros, "frac_reward_zero_std": curve(*[1.0] * 40)}
        )
    )
    keys = {lever.key for lever, _ in merged_levers(causes(verdicts))}
    assert "dataset.difficulty.keep" not in keys
    assert "reward.dynamic_filtering.keep" not in keys
    assert "rollout.n_samples_per_prompt" in keys


def test_weights_that_do_not_arrive_are_not_hidden_by_importance_weights() -> None:
    gap = curve(*[0.01] * 20, *[0.01 + 0.1 * n for n in range(40)])
    verdicts = diagnose(History(metrics={"sampling/sampling_logp_difference/mean": gap}))
    (cause,) = causes(verdicts)
    assert cause.verdict.name == "sampler_learner_gap"
    assert "does not follow the trained weights" in cause.verdict.detail
    assert cause.verdict.first_step == pytest.approx(21, abs=2)
    keys = {lever.key for lever in cause.verdict.levers}
    assert "sync.backend" in keys
    assert not keys & {lever.key for lever in sampler.closer_sampler({})}


def test_memory_is_raised_only_where_errors_speak_of_memory() -> None:
    for text, raised in (("bwrap: no such device", False), ("killed: out of memory", True)):
        levers = system.sturdier({}, ["sandbox_failed"], [facts(1, text)])
        assert ("sandbox.limits.memory_mb" in {lever.key for lever in levers}) == raised


def test_an_outage_that_is_over_is_named_with_its_errors() -> None:
    lost = [0.0] * 30 + [20.0] * 10 + [0.0] * 40
    found = {
        verdict.name: verdict
        for verdict in diagnose(
            History(
                metrics={
                    "rollout/started": curve(*[64.0] * 80),
                    "rollout/termination/sandbox_failed": curve(*lost),
                },
                rollouts=[
                    facts(33, f"no route to host 10.0.0.{n}", termination="sandbox_failed")
                    for n in range(5)
                ],
            )
        )
    }["infrastructure"]
    assert (found.status, found.first_step, found.last_step) == (Status.WARN, 31, 40)
    assert "over since step 40" in found.detail
    assert any("5 x no route to host 10.0.0.0" in item.text for item in found.evidence)


def test_truncation_that_was_not_logged_before_is_no_error() -> None:
    """Fails if a curve that begins later than the reward ends the report."""
    late = Series(steps=tuple(range(21, 61)), values=(0.5,) * 40)
    fallen = curve(*[0.8] * 20, *[0.2 + 0.01 * (n % 3) for n in range(40)])
    verdicts = diagnose(History(metrics={"reward": fallen, "completions/clipped_ratio": late}))
    found = next(verdict for verdict in verdicts if verdict.name == "truncation")
    assert found.status is Status.OK


def test_a_score_without_a_reward_and_numbers_beyond_squares_end_no_report(make_run) -> None:
    """Fails if a run of which the reward was lost, or that blew up, cannot be judged."""
    assert diagnose(History(metrics={"score": curve(*[0.5] * 20)}))
    run = make_run({"score": [0.5] * 30, "critic/vf_loss": [0.1] * 29 + [1e300]})
    found = {verdict.name: verdict for verdict in diagnose(read_history(run))}
    assert found["not_finite"].status is Status.FAIL
    assert found["not_finite"].first_step == 30


def test_errors_are_grouped_by_what_they_have_in_common() -> None:
    trace = 'Traceback (most recent call last):\n  File "x"\nKeyError: "a"\n'
    assert error_line(trace) == 'KeyError: "a"'
    assert error_line("\n\n first \nsecond") == "first"
    found = [facts(1, "port 1 in use", "exit 3"), facts(2, "port 2 in use")]
    assert error_words(found) == ": 2 x port 1 in use; 1 x exit 3"
    assert error_words([]) == ""
