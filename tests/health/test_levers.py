"""A lever fits what was found: nobody is told to change what has no part in it."""

from __future__ import annotations

import pytest

from agentrl.health import History, diagnose, read_history
from agentrl.health.levers import fit
from tests.health.detectors.test_shapes import curve
from tests.health.detectors.test_unscored_pay import facts


def _levers(make_run, kind: str) -> set[str]:
    run = make_run(
        {"rollout/started": [16.0] * 8, f"rollout/termination/{kind}": [3.0] * 8},
    )
    found = next(v for v in diagnose(read_history(run)) if v.name == "infrastructure")
    return {lever.key for lever in found.levers}


def test_lost_sandboxes_ask_for_memory_only_if_they_ran_out_of_it(make_run) -> None:
    assert _levers(make_run, "sandbox_failed") == {"rollout.retries"}


def test_environments_that_crash_may_need_time(make_run) -> None:
    assert _levers(make_run, "env_crashed") == {"rollout.retries", "rollout.env_timeout_s"}


@pytest.mark.parametrize(("present", "advised"), [(0.0, 0.001), (0.02, 0.04)])
def test_a_policy_without_entropy_may_be_paid_for_it(
    make_run, present: float, advised: float
) -> None:
    """Fails if the bonus is not advised, or the weight that the run has is passed over."""
    run = make_run(
        {"entropy": [1.0] * 5 + [0.01] * 15}, changes=[f"algorithm.entropy_coef={present}"]
    )
    found = next(v for v in diagnose(read_history(run)) if v.name == "entropy_collapse")
    values = {lever.key: lever.value for lever in found.levers}
    assert values["algorithm.entropy_coef"] == advised


@pytest.mark.parametrize(("engine", "sent"), [("embedded", False), ("vllm", True)])
def test_another_way_of_the_weights_is_for_engines_that_receive_any(
    make_run, engine: str, sent: bool
) -> None:
    """Fails if the embedded engine, which refuses it, is to get its weights from disk."""
    gap = {"sampling/sampling_logp_difference/mean": [0.001] * 10 + [0.5] * 20}
    run = make_run(gap, changes=[f"serving.engine={engine}"])
    found = next(v for v in diagnose(read_history(run)) if v.name == "sampler_learner_gap")
    assert found.levers
    assert ("sync.backend" in {lever.key for lever in found.levers}) == sent


def test_a_held_out_score_needs_tasks_as_well_as_a_date(make_run) -> None:
    """Fails if evaluations are to come every 50 steps where no tasks are named for them."""
    run = make_run({"reward": [0.1] * 10 + [0.9] * 20, "score": [0.6] * 10 + [0.1] * 20})
    found = next(v for v in diagnose(read_history(run)) if v.name == "score_falls")
    levers = {lever.key: lever.value for lever in found.levers}
    keys = list(levers)
    assert keys.index("eval.datasets.NAME.source") < keys.index("eval.every_steps")
    # A file has no splits: its tasks are the training tasks whatever split is named.
    assert levers["eval.datasets.NAME.source"] == "a file of tasks that are not trained on"
    assert "eval.datasets.NAME.split" not in levers


def test_a_server_that_died_leads_to_its_log(make_run) -> None:
    """Fails if the environment is blamed for it."""
    run = make_run({"rollout/started": [16.0] * 8, "rollout/termination/engine_failed": [9.0] * 8})
    found = next(v for v in diagnose(read_history(run)) if v.name == "infrastructure")
    assert any("logs/" in item.text for item in found.evidence)
    assert {lever.key for lever in found.levers} == {"rollout.retries"}


@pytest.mark.parametrize(("cut_off", "penalties"), [(0.0, False), (0.4, True)])
def test_loops_that_end_before_the_limit_get_no_penalty_near_it(
    cut_off: float, penalties: bool
) -> None:
    """Fails if farmed calls are to be ended by penalties that only truncated rollouts pay."""
    loops = "look again and again " * 40
    rollouts = [
        fact
        for step in range(1, 13)
        for fact in facts(step, {"a": 1.0, "b": 1.0}, loops if step > 6 else "words")
    ]
    metrics = {"reward": curve([0.5] * 12), "completions/clipped_ratio": curve([cut_off] * 12)}
    verdicts = diagnose(History(metrics=metrics, rollouts=rollouts))
    found = next(verdict for verdict in verdicts if verdict.name == "repetition")
    keys = {lever.key for lever in found.levers}
    assert ("reward.stop_properly_penalty_coef" in keys) == penalties
    assert "algorithm.kl_coef" in keys


@pytest.mark.parametrize(
    ("changes", "advised"),
    [
        ({}, True),
        ({"schedule.staleness_threshold": 1.0}, False),
        ({"schedule.oversample": 1.5}, False),
        ({"reward.models.rm.path": ["a", "b"]}, False),
        ({"train.steps": 1}, False),
        ({"reward.refresh.every_steps": 5}, False),
    ],
)
def test_a_reward_model_is_refreshed_where_the_run_can(changes, advised: bool) -> None:
    """Fails if a refresh is named that the run's schedule, or its ensemble, refuses."""
    config = {"reward.models.rm.path": ["a"], "train.steps": 100} | changes
    levers = {x.key: x.value for x in fit.refreshed_model(config, "rm", judged=True)}
    assert bool(levers) == advised
    assert not levers or levers["reward.refresh.labeller"] == "verifier"
