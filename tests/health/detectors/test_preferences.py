"""Fits on pairs, and reward models in RL: each detector on the fault, and on what only looks so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from agentrl.config.fit import FitConfig
from agentrl.config.keys import leaves
from agentrl.health import History, Series, Verdict, diagnose, read_history
from agentrl.types.finding import Status
from tests.health.detectors.test_shapes import curve, held_out, wobble

STEPS = 60
DPO = {"objective.kind": "dpo", "objective.loss": "sigmoid", "objective.beta": 0.1}


def line(start: float, end: float, noise: float = 0.0) -> list[float]:
    rise = (end - start) / STEPS
    return [start + rise * step + w for step, w in enumerate(wobble(STEPS, noise))]


def said(detector: str, config: dict[str, Any], metrics: dict[str, Series]) -> Verdict:
    history = History(metrics=metrics, config=config)
    return next(v for v in diagnose(history) if v.name == detector)


def likelihoods(chosen: float, rejected: float, place: str = "") -> dict[str, Series]:
    return {
        f"{place}pref/logp_chosen": curve(line(-100, chosen, 10)),
        f"{place}pref/logp_rejected": curve(line(-105, rejected, 10)),
    }


@pytest.mark.parametrize(
    ("chosen", "rejected", "status"),
    [
        (-150, -200, Status.WARN),
        (-150, -105, Status.OK),  # only one of them falls
        (-98, -200, Status.OK),
        (-112, -140, Status.OK),  # a tenth, as any fit costs
        (-80, -60, Status.OK),
    ],
)
def test_both_answers_have_to_fall_and_by_a_fifth(chosen, rejected, status) -> None:
    found = said("likelihood_falls", DPO, likelihoods(chosen, rejected))
    assert found.status is status, found.detail
    if status is Status.WARN:
        assert [e.metric for e in found.evidence] == ["pref/logp_chosen", "pref/logp_rejected"]
        assert {"objective.nll_coef": 1.0, "objective.beta": 0.2}.items() <= {
            lever.key: lever.value for lever in found.levers
        }.items()


def test_a_fall_after_a_rise_is_one() -> None:
    """Fails if only the ends are compared: a fit learns the form of both answers first."""
    there = [-100 + 2 * min(s, 60 - s) + w for s, w in enumerate(wobble(STEPS, 4))]
    other = [value - 5 for value in there]
    metrics = {"pref/logp_chosen": curve(there), "pref/logp_rejected": curve(other)}
    assert said("likelihood_falls", DPO, metrics).status is Status.WARN
    up = {name: curve(series.values[:30]) for name, series in metrics.items()}
    assert said("likelihood_falls", DPO, up).status is Status.OK


def test_a_fall_that_only_held_out_pairs_show() -> None:
    """Fails if evaluations are not looked at, or one that is named like a training curve."""
    calm = likelihoods(-100, -105)
    held = likelihoods(-150, -200, "eval/held/")
    found = said("likelihood_falls", DPO, calm | held)
    assert found.status is Status.WARN
    assert found.evidence[0].metric == "eval/held/pref/logp_chosen"


def test_rollouts_that_get_better_excuse_it_and_a_loss_does_not() -> None:
    falls = likelihoods(-150, -200)
    better = held_out([0.2, 0.3, 0.4, 0.5, 0.6, 0.65, 0.7], 0.05)
    assert said("likelihood_falls", DPO, falls | better).status is Status.OK
    loss = {"eval/held/score": curve([-0.69, -0.6, -0.5, -0.4], 10)}
    assert said("likelihood_falls", DPO, falls | loss).status is Status.WARN


def held_pairs(kind: str, accuracy: list[float], loss: list[float], pairs: int = 400):
    return {
        f"eval/held/{kind}/accuracy": curve(accuracy, 10),
        f"eval/held/{'dpo' if kind == 'pref' else 'rm'}/loss": curve(loss, 10),
        "eval/held/fit/examples": curve([float(pairs)] * len(accuracy), 10),
    }


FALLING = [0.69, 0.66, 0.62, 0.6, 0.58, 0.57, 0.57]


@pytest.mark.parametrize("kind", ["pref", "rm"])
@pytest.mark.parametrize(
    ("accuracy", "loss", "status"),
    [
        ([0.5, 0.52, 0.51, 0.53, 0.52, 0.52, 0.52], FALLING, Status.WARN),
        ([0.5, 0.48, 0.45, 0.44, 0.43, 0.42, 0.41], FALLING, Status.FAIL),
        ([0.5, 0.6, 0.66, 0.7, 0.71, 0.72, 0.72], FALLING, Status.OK),
        ([0.5, 0.6, 0.66, 0.7, 0.7, 0.7, 0.7], [0.69, 0.6, 0.6, 0.7, 0.8, 0.9, 1.0], Status.WARN),
        ([0.97, 0.96, 0.97, 0.97, 0.98, 0.97, 0.97], FALLING, Status.OK),
    ],
)
def test_a_margin_without_accuracy(kind, accuracy, loss, status) -> None:
    training = {
        f"{kind}/margin": curve(line(0, 3, 0.2)),
        f"{kind}/accuracy": curve(line(0.5, 0.98, 0.05)),
    }
    config = DPO if kind == "pref" else {"objective.kind": "rm", "objective.loss": "bt"}
    found = said("margin_alone", config, training | held_pairs(kind, accuracy, loss))
    assert found.status is status, found.detail
    if status is not Status.OK:
        keys = {lever.key for lever in found.levers}
        smoothing = "objective.label_smoothing" if kind == "pref" else "objective.center_coef"
        assert {smoothing, "train.learning_rate", "eval.every_steps"} <= keys
    still = training | {f"{kind}/margin": curve(line(1, 1, 0.2))}
    found = said("margin_alone", config, still | held_pairs(kind, accuracy, loss))
    assert found.status is Status.OK, "a margin that stays is none of it"


def test_few_held_out_pairs_prove_nothing() -> None:
    """Fails if the noise of an accuracy over a handful of pairs is left out."""
    training = {"pref/margin": curve(line(0, 3, 0.2)), "pref/accuracy": curve(line(0.5, 0.9, 0.05))}
    for pairs, status in ((12, Status.OK), (400, Status.WARN)):
        held = held_pairs("pref", [0.5, 0.5, 0.58, 0.5], FALLING[:4], pairs)
        assert said("margin_alone", DPO, training | held).status is status


@pytest.mark.parametrize(
    ("level", "status"), [(0.9, Status.WARN), (-0.9, Status.WARN), (0.6, Status.OK)]
)
def test_a_margin_that_is_a_matter_of_length(level: float, status: Status) -> None:
    found = said("length_preference", DPO, {"pref/length_corr": curve(line(level, level, 0.05))})
    assert found.status is status, found.detail
    if status is Status.WARN:
        assert ("longer" if level > 0 else "shorter") in found.detail
        assert found.levers[0].key == "objective.length_normalized"
        done = said(
            "length_preference", DPO | {"objective.length_normalized": True},
            {"pref/length_corr": curve(line(level, level, 0.05))},
        )  # fmt: skip
        assert [lever.key for lever in done.levers] == ["data.source"], "what is set is left out"


def test_batches_of_a_few_pairs_correlate_by_chance() -> None:
    """Fails if single steps count: signs change from step to step."""
    noisy = [0.95 if step % 3 else -0.9 for step in range(STEPS)]
    assert said("length_preference", DPO, {"pref/length_corr": curve(noisy)}).status is Status.OK


MODEL = {"reward.models.rm.path": ["a"], "reward.models.rm.weight": 1.0}


def in_rl(mean: list[float], score: list[float] | None = None) -> dict[str, Series]:
    metrics = {"rewards/rm/mean": curve(mean), "reward": curve(mean)}
    return metrics | {"score": curve(score if score is not None else mean)}


@pytest.mark.parametrize(
    ("mean", "status"),
    [
        (line(0, 7, 0.1), Status.FAIL),
        (line(0, -7, 0.1), Status.FAIL),
        (line(0, 3.5, 0.1), Status.WARN),
        (line(0, 1.5, 0.1), Status.OK),
        ([3 * min(1.0, step / 10) + w for step, w in enumerate(wobble(STEPS, 0.1))], Status.OK),
        ([9.0 if step == 30 else 0.5 for step in range(STEPS)], Status.OK),
    ],
)
def test_scores_far_from_those_the_scale_is_of(mean: list[float], status: Status) -> None:
    found = said("reward_model_drift", MODEL, in_rl(mean))
    assert found.status is status, found.detail
    own = said("reward_model_drift", MODEL, in_rl(mean, line(0.2, 0.8, 0.03)))
    assert own.status is Status.OK, "the environment's own score says that it is better"
    raw = MODEL | {"reward.models.rm.scale": "none"}
    assert said("reward_model_drift", raw, in_rl(mean)).status is Status.UNKNOWN


@pytest.mark.parametrize(
    ("mean", "between", "score", "status"),
    [
        (line(0, 1.5, 0.1), line(0.3, 0.9, 0.03), None, Status.WARN),
        (line(0, 1.5, 0.1), line(0.3, 0.9, 0.03), line(0.5, 0.2, 0.02), Status.FAIL),
        (line(0, 1.5, 0.1), line(0.3, 0.9, 0.03), line(0.2, 0.6, 0.02), Status.OK),
        (line(0, 1.5, 0.1), line(0.3, 0.33, 0.03), None, Status.OK),
        (line(1, 0, 0.1), line(0.3, 0.9, 0.03), None, Status.OK),
    ],
)
def test_members_that_part_while_their_reward_rises(mean, between, score, status) -> None:
    metrics = in_rl(mean, score) | {"rewards/rm/std_between/mean": curve(between)}
    listed = MODEL | {"reward.models.rm.path": ["a", "b", "c"]}
    found = said("members_disagree", MODEL, metrics)
    assert said("members_disagree", listed, metrics) == found
    assert found.status is status, found.detail
    if status is not Status.OK:
        assert found.levers[0].key == "reward.models.rm.disagreement"
        assert found.levers[0].value == 1.0
    del metrics["rewards/rm/std_between/mean"]
    assert said("members_disagree", MODEL, metrics).status is Status.UNKNOWN


def test_a_fit_is_told_of_keys_that_a_fit_has(tmp_path: Path) -> None:
    """Fails if a lever of RL, as reward.clip, is given for a fit whose gradients spike."""
    run = tmp_path / "run"
    run.mkdir()
    norms = [1.0] * 30
    norms[20] = norms[24] = norms[28] = 80.0
    falls = likelihoods(-150, -200)
    lines = [
        {"step": n + 1, "time": 1.0, "train/grad_norm": norms[n],
         **{name: series.values[n] for name, series in falls.items()}}
        for n in range(30)
    ]  # fmt: skip
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    data = {"data": {"source": "x.jsonl"}, "objective": {"kind": "dpo"}}
    (run / "config.yaml").write_text(yaml.safe_dump(data))
    history = read_history(run)
    assert history.config["objective.beta"] == 0.1, "defaults are known"
    keys = {key.name for key in leaves(FitConfig)}
    spoke = {v.name: v for v in diagnose(history) if v.status in (Status.WARN, Status.FAIL)}
    assert "grad_norm" in spoke
    assert all({lever.key for lever in v.levers} <= keys for v in spoke.values())
    assert all(v.levers for v in spoke.values())
    (run / "config.yaml").write_text(yaml.safe_dump(data | {"objective": {"kind": "dpo", "x": 1}}))
    other = read_history(run)
    assert other.config["objective.kind"] == "dpo"
    assert any("not one of this version" in note for note in other.notes)
