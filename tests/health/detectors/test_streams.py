"""The measure of the detectors: labelled streams, made up and recorded from real runs."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from agentrl.config import RunConfig, leaves
from agentrl.config.fit import FitConfig
from agentrl.config.load import FIT_FILE
from agentrl.errors import ConfigError
from agentrl.health import (
    DASHBOARD,
    THRESHOLDS,
    History,
    RolloutFacts,
    Series,
    Status,
    diagnose,
)
from agentrl.health.diagnose import limits

sys.path.append(str(Path(__file__).parents[3] / "benchmarks" / "health"))

from detectors import Judged, all_judged, passes
from faults.planted import ILL
from faults.streams import until
from faults.synthetic import drawn


@pytest.fixture(scope="module")
def judged() -> list[Judged]:
    return all_judged(tenths=False)


def test_nine_faults_of_ten_are_named_and_one_healthy_run_of_twenty_accused_at_most(judged) -> None:
    assert len(judged) >= 40
    assert sum(item.source == "recorded" for item in judged) >= 15
    assert passes(judged), [item.stream.name for item in judged if not item.right]


def test_every_detector_finds_something_among_the_streams(judged) -> None:
    names = {verdict.name for verdict in diagnose(History(metrics={}))}
    assert names == {name for item in judged for name in item.spoke}


def test_findings_carry_evidence_and_levers_that_the_config_knows(judged) -> None:
    of_runs, of_fits = ({key.name for key in leaves(root)} for root in (RunConfig, FitConfig))
    for item in judged:
        keys = of_fits if is_fit(item.stream.history) else of_runs
        history = item.stream.history
        last = max(series.steps[-1] for series in history.metrics.values())
        ids = {fact.rollout_id for fact in history.rollouts}
        for verdict in diagnose(history):
            if verdict.status in (Status.OK, Status.UNKNOWN):
                assert verdict.detail
                assert not verdict.evidence
                assert not verdict.levers
                continue
            where = f"{item.stream.name}: {verdict.name}"
            assert verdict.evidence, where
            assert verdict.levers, where
            assert verdict.last_step is not None, where
            assert verdict.last_step <= last, where
            assert verdict.first_step is None or 0 <= verdict.first_step <= verdict.last_step, where
            assert all(e.text for e in verdict.evidence), where
            assert {r for e in verdict.evidence for r in e.rollout_ids} <= ids, where
            assert {_NAMED_PART.sub(r"\1NAME.", x.key) for x in verdict.levers} <= keys, where


_NAMED_PART = re.compile(r"(reward\.(?:functions|models)\.)[^.]+\.")
"""A section that the run has named."""


def is_fit(history: History) -> bool:
    return "objective.kind" in history.config


@pytest.mark.parametrize(
    "objective",
    [
        {"kind": "dpo"},
        {"kind": "dpo", "loss": "simpo", "nll_coef": 0.5},
        {"kind": "dpo", "loss": "robust", "length_normalized": True, "label_smoothing": 0.2},
        {"kind": "dpo", "loss": "kto"},
        {"kind": "rm"},
        {"kind": "rm", "loss": "purm", "center_coef": 0.1},
    ],
)
def test_levers_of_fits_give_a_file_that_loads(judged, objective) -> None:
    """Fails for a key that the loss does not read, or one that is set already."""
    data = {"data": {"source": "x.jsonl", "epochs": 3}, "objective": objective}
    config = FIT_FILE.parse(data)
    flat = {"objective.kind": config.objective.kind, "data.epochs": 3} | {
        f"objective.{key}": value for key, value in config.objective.model_dump().items()
    }
    spoke = 0
    for item in judged:
        if not is_fit(item.stream.history):
            continue
        history = History(metrics=item.stream.history.metrics, config=flat)
        for verdict in diagnose(history):
            values = {lever.key: lever.value for lever in verdict.levers}
            for key, value in values.items():
                assert flat.get(key) != value, f"{verdict.name}: {key} is {value} already"
            if verdict.name != "likelihood_falls" or config.objective.kind == "dpo":
                FIT_FILE.parse(data, [f"{key}={value}" for key, value in values.items()])
                spoke += bool(values)
    assert spoke > 3


def test_thresholds_can_be_replaced_by_name() -> None:
    stream = next(s for s in drawn(ILL) if s.name == "kl too large at once")
    found = {v.name: v for v in diagnose(stream.history)}
    assert found["kl_too_large"].status is Status.FAIL
    calm = {v.name: v for v in diagnose(stream.history, {"kl_too_large/bound": 100.0})}
    assert calm["kl_too_large"].status is Status.OK
    own = History(
        metrics=stream.history.metrics, config={"health.thresholds.kl_too_large/bound": 100.0}
    )
    assert {v.name: v for v in diagnose(own)}["kl_too_large"].status is Status.OK
    with pytest.raises(ConfigError, match="did you mean 'kl_too_large/bound'"):
        limits({"kl_too_large/bounds": 3.0})
    with pytest.raises(ConfigError, match="finite number"):
        limits({"kl_too_large/bound": float("nan")})
    # Nobody's run dies of a threshold that another version knew.
    assert diagnose(History(metrics={}, config={"health.thresholds.gone": 1.0}))


def test_thresholds_and_bands_say_where_they_are_from() -> None:
    from agentrl.metrics import find_metric

    assert len({item.name for item in THRESHOLDS}) == len(THRESHOLDS)
    assert all(item.source and item.what for item in THRESHOLDS)
    for band in DASHBOARD:
        assert band.source
        assert find_metric(band.metric.replace("*", "NAME")), band.metric


def test_a_finding_is_not_made_before_its_time(judged) -> None:
    """The first tenth of a fault that shows itself late holds nothing to find."""
    late = {"kl runs away", "value loss grows", "reward falls", "entropy climbs"}
    for item in judged:
        if item.stream.name in late:
            history = item.stream.history
            last = max(series.steps[-1] for series in history.metrics.values())
            early = diagnose(until(history, 0.3 * last))
            spoke = {v.name for v in early if v.status in (Status.WARN, Status.FAIL)}
            assert not spoke & item.stream.expected, item.stream.name


def test_recovered_harm_is_a_warning_and_says_since_when() -> None:
    steps = tuple(range(1, 41))
    gap = tuple(2.0 if 5 <= step <= 14 else 0.01 for step in steps)
    name = "sampling/sampling_logp_difference/mean"
    verdicts = diagnose(History(metrics={name: Series(steps=steps, values=gap)}))
    found = next(v for v in verdicts if v.name == "sampler_learner_gap")
    assert found.status is Status.WARN
    assert "over since step 14" in found.detail
    assert (found.first_step, found.last_step) == (5, 14)


def test_a_gap_of_other_weights_is_named_from_the_first_step() -> None:
    """Fails if a run whose engine holds other weights is called ok until some steps have passed."""
    name = "sampling/sampling_logp_difference/mean"
    for gaps in ((0.97,), (0.97, 2.58), (0.97, 2.58, 2.27)):
        series = Series(steps=tuple(range(1, len(gaps) + 1)), values=gaps)
        (found,) = (
            v for v in diagnose(History(metrics={name: series})) if v.name == "sampler_learner_gap"
        )
        assert (found.status, found.first_step) == (Status.FAIL, 1)
    small = History(metrics={name: Series(steps=(1, 2, 3), values=(0.02, 0.03, 0.02))})
    (found,) = (v for v in diagnose(small) if v.name == "sampler_learner_gap")
    assert found.status is Status.OK


@pytest.mark.parametrize(
    ("detector", "metric", "value"),
    [
        ("sampler_learner_gap", "sampling/sampling_logp_difference/mean", 0.3),
        ("empty_gradient", "frac_reward_zero_std", 0.99),
        ("clip_fraction", "clip_ratio/region_mean", 0.99),
        ("truncation", "completions/clipped_ratio", 0.99),
    ],
)
def test_a_rule_that_wants_more_steps_than_there_are_is_not_judged(
    detector: str, metric: str, value: float
) -> None:
    """Fails if what a long run is accused of is ok in a run that is too short for the rule."""

    def judged_after(count: int) -> Status:
        series = Series(steps=tuple(range(1, count + 1)), values=(value,) * count)
        verdicts = diagnose(History(metrics={metric: series}))
        return next(verdict.status for verdict in verdicts if verdict.name == detector)

    assert judged_after(80) in (Status.WARN, Status.FAIL)
    assert judged_after(2) is Status.UNKNOWN


def groups_of(task: str, *, trained: int, dropped: int, duration_s: float) -> list[RolloutFacts]:
    """Rollouts of one task, a group a step."""
    endings = ["stale"] * dropped + ["env_done"] * trained
    return [
        RolloutFacts(
            step=step,
            kind="train",
            task_id=task,
            group_id=f"{task}-{step}",
            rollout_id=f"{task}-{step}-{n}",
            reward=1.0,
            score=1.0,
            advantage=0.5,
            termination=ending,
            action_tokens=9,
            duration_s=duration_s,
            turns=1,
            tool_calls=0,
            tool_errors=0,
            text="yes",
        )
        for step, ending in enumerate(endings, 1)
        for n in range(2)
    ]


def test_tasks_that_age_keeps_from_being_trained_are_named() -> None:
    """Fails if a run that rolls slow tasks out and trains the others alone is called healthy."""
    quick = [
        fact
        for n in range(6)
        for fact in groups_of(f"quick-{n}", trained=5, dropped=0, duration_s=1.0)
    ]
    slow = groups_of("slow-1", trained=1, dropped=4, duration_s=9.0)
    slow += groups_of("slow-0", trained=0, dropped=5, duration_s=9.0)
    config = {"schedule.max_version_lag": 1}
    verdicts = diagnose(History(metrics={}, rollouts=[*quick, *slow], config=config))
    found = next(v for v in verdicts if v.name == "starvation")
    assert (found.status, found.first_step) == (Status.FAIL, 1)
    assert "2 of 8 tasks" in found.detail
    assert "slow-0 (5 groups rolled out, 0 trained), slow-1 (5 groups" in found.evidence[0].text
    assert "7.2 times as long" in found.evidence[1].text
    assert ("schedule.max_version_lag", None) in [(x.key, x.value) for x in found.levers]
    verdicts = diagnose(History(metrics={}, rollouts=quick, config=config))
    assert next(v for v in verdicts if v.name == "starvation").status is Status.OK


def test_short_answers_that_are_all_right_are_no_pattern() -> None:
    """Fails if tasks that want the same words are taken for a collapse."""

    def facts(step: int, score: float) -> list[RolloutFacts]:
        text = (
            "yes, the two words are the same" if step > 3 else f"I wonder {step * 37} {score} times"
        )
        return [
            RolloutFacts(
                step=step, kind="train", task_id=f"{step}-{n}", group_id=f"{step}-{n}",
                rollout_id=f"{step}-{n}", reward=score, score=score, advantage=0.0,
                termination="env_done", action_tokens=8, duration_s=1.0, turns=1, tool_calls=0,
                tool_errors=0, text=text,
            )
            for n in range(8)
        ]  # fmt: skip

    for score, status in ((1.0, Status.OK), (0.2, Status.FAIL)):
        rollouts = [fact for step in range(1, 7) for fact in facts(step, score)]
        verdicts = diagnose(History(metrics={}, rollouts=rollouts))
        assert next(v for v in verdicts if v.name == "pattern_collapse").status is status


def test_a_value_loss_that_falls_is_healthy_and_one_that_grows_is_not() -> None:
    steps = tuple(range(1, 31))
    for rate, status in ((-0.1, Status.OK), (0.1, Status.WARN)):
        loss = tuple(0.1 * 2.718 ** (rate * step) for step in steps)
        verdicts = diagnose(History(metrics={"critic/vf_loss": Series(steps=steps, values=loss)}))
        found = next(v for v in verdicts if v.name == "value_divergence")
        assert (found.status is Status.OK) == (status is Status.OK), found.detail


def test_a_critic_far_worse_than_none_is_named_within_a_few_steps() -> None:
    """Fails if a run that a rule stops early is left without a diagnosis."""
    loss = Series(steps=(1, 2, 3, 4, 5, 6), values=(0.03, 20.0, 80.0, 60.0, 90.0, 70.0))
    verdicts = diagnose(History(metrics={"critic/vf_loss": loss}))
    found = next(v for v in verdicts if v.name == "value_divergence")
    assert "always saying 0 costs 0.03" in found.detail
