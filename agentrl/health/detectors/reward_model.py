"""Detectors over the scores of reward models for a policy that is trained on them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean

from agentrl.health.detector import detector
from agentrl.health.findings import (
    fine,
    found,
    held_out,
    moved,
    score_rise_since,
    seen,
    unknown,
)
from agentrl.health.level import steps_text, sustained
from agentrl.health.levers import fit, policy
from agentrl.health.levers.policy import value_of
from agentrl.health.measures.curves import Change, change, number
from agentrl.health.measures.onset import onset
from agentrl.health.own_score import own_change, own_score
from agentrl.health.records import History, Series, Verdict
from agentrl.health.thresholds import OURS, USUAL, Limits, bound
from agentrl.types.finding import Status

_MODEL = re.compile(r"reward\.models\.([^.]+)\.path")
_LEAST_STEPS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class _RewardModelCurve:
    name: str
    """As in `reward.models.NAME`."""
    ensemble: bool
    """True where several models, members of one run, or heads of one model give the value."""
    whitened: bool
    """True where the value is in standard deviations of the data that the scale was fitted on."""
    weight: float
    """Factor of the value in the reward; not 0."""
    series: Series
    """Mean value of the rollouts of each step, before the weight."""

    @property
    def section(self) -> str:
        return f"reward.models.{self.name}"

    @property
    def metric(self) -> str:
        return f"rewards/{self.name}/mean"


@detector(
    bound("far", 5.0, "distance of the mean reward from 0, in standard deviations", USUAL),
    bound("far_steps", 5, "steps that count as so far away", OURS),
    bound("leaving", 2.0, "distance from 0 that must not grow any further", OURS),
)
def reward_model_drift(history: History, limits: Limits) -> Verdict:
    """A reward model's whitened scores leave the range that it was whitened on: the policy writes
    what the model has not seen. What the environment's own score confirms is no fault."""
    name = "reward_model_drift"
    models = [each for each in _models(history) if each.whitened]
    if not models:
        return unknown(name, "no reward model with a stored scale gives a part of the reward")
    fines: list[str] = []
    for model in models:
        verdict = _drift(history, model, limits)
        if verdict is not None:
            return verdict
        fines.append(f"{model.name} {number(model.series.values[-1])} standard deviations from 0")
    return fine(name, "; ".join(fines))


def _drift(history: History, model: _RewardModelCurve, limits: Limits) -> Verdict | None:
    far, leaving = limits["reward_model_drift/far"], limits["reward_model_drift/leaving"]
    series, steps = model.series, limits["reward_model_drift/far_steps"]
    away = sustained(history, model.metric, lambda v: abs(v) > far, steps)
    growing = _leaves(series, leaving)
    if away is None and growing is None:
        return None
    own = own_change(history)
    if own is not None and own.up:
        return None
    judged = own_score(history) == "score"
    refreshed = (
        [] if model.ensemble else fit.refreshed_model(history.config, model.name, judged=judged)
    )
    pulls = [
        *policy.stronger_kl(history.config),
        *refreshed,
        *policy.lighter_part(history.config, model.section, model.weight),
        *policy.see_held_out(history.config),
    ]
    title = f"the reward model {model.name} scores answers unlike those it was whitened on"
    if away is not None:
        text = f"mean beyond {number(far)} standard deviations for {steps_text(away)}"
        return found(
            "reward_model_drift",
            Status.FAIL,
            title,
            seen(model.metric, away, f"{text}, up to {number(away.worst)}"),
            levers=pulls,
        )
    assert growing is not None
    return found(
        "reward_model_drift",
        Status.WARN,
        title,
        moved(model.metric, series, growing, f"{model.metric} {growing.text()}, and still going"),
        levers=pulls,
    )


def _leaves(series: Series, leaving: float) -> Change | None:
    """The movement of a curve that ends far from 0 and still goes away from it."""
    if len(series.values) < _LEAST_STEPS:
        return None
    middle = len(series.values) // 2
    whole = change(series)
    late = change(Series(steps=series.steps[middle:], values=series.values[middle:]))
    level = fmean(series.values[-max(2, len(series.values) // 10) :])
    if whole is None or late is None or abs(level) <= leaving:
        return None
    outward = (whole.up and late.up) if level > 0 else (whole.down and late.down)
    return whole if outward else None


@detector(
    bound("rise", 0.5, "rise of the deviation between members, as a share of its start", OURS),
    remembered=True,
)
def members_disagree(history: History, limits: Limits) -> Verdict:
    """The reward of an ensemble rises, and so does the deviation between its members: the policy
    finds answers that some of them are wrong about."""
    name = "members_disagree"
    models = [each for each in _models(history) if each.ensemble]
    if not models:
        return unknown(name, "no ensemble of reward models gives a part of the reward")
    fines: list[str] = []
    short: list[str] = []
    for model in models:
        metric = f"rewards/{model.name}/std_between/mean"
        series = history.metrics.get(metric)
        spread = None if series is None else change(series)
        gain = change(model.series)
        if series is None or len(series.values) < _LEAST_STEPS or spread is None or gain is None:
            steps = len(model.series.values)
            short.append(f"{model.name}: {steps} of the {_LEAST_STEPS} steps it needs")
            continue
        least = limits["members_disagree/rise"] * max(spread.start, 1e-6)
        own = own_change(history)
        if own_score(history) == "score" and held_out(history):
            own = score_rise_since(history, onset(series, up=True) or series.steps[0])
        confirmed = own is not None and own.up
        if not (gain.up and spread.up and spread.gain >= least) or confirmed:
            follows = ", and the score of the environment follows" if confirmed else ""
            fines.append(f"{model.name}: deviation between members {spread.text()}{follows}")
            continue
        return found(
            name,
            Status.FAIL if own is not None and own.down else Status.WARN,
            f"the members of {model.name} agree less and less while their reward rises",
            moved(metric, series, spread),
            moved(model.metric, model.series, gain),
            levers=[
                *fit.wary_ensemble(history.config, model.name),
                *policy.stronger_kl(history.config),
                *policy.see_held_out(history.config),
            ],
        )
    if not fines:
        return unknown(name, "; ".join(short))
    return fine(name, "; ".join([*fines, *short]))


def _models(history: History) -> Iterator[_RewardModelCurve]:
    for key, paths in sorted(history.config.items()):
        match = _MODEL.fullmatch(key)
        if match is None:
            continue
        name = match[1]
        series = history.metrics.get(f"rewards/{name}/mean")
        weight = value_of(history.config, f"reward.models.{name}.weight", 1.0)
        if series is None or not isinstance(weight, (int, float)) or weight == 0:
            continue
        yield _RewardModelCurve(
            name=name,
            # One path may be the run of an ensemble, which its metric tells.
            ensemble=(not isinstance(paths, str) and len(paths) > 1)
            or f"rewards/{name}/std_between/mean" in history.metrics,
            whitened=value_of(history.config, f"reward.models.{name}.scale", "stored") == "stored",
            weight=float(weight),
            series=series,
        )
