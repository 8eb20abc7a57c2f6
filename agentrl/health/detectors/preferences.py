"""Detectors over the curves of fits on preference pairs: DPO and reward models."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean

from agentrl.health.detector import detector
from agentrl.health.findings import (
    fine,
    found,
    held_out,
    moved,
    rise_of,
    score_errors,
    too_few,
    unknown,
)
from agentrl.health.levers import fit, policy
from agentrl.health.measures.curves import (
    Change,
    change,
    difference,
    number,
    percent,
    smoothed,
    t_quantile,
    trend,
)
from agentrl.health.records import Evidence, History, Series, Verdict
from agentrl.health.thresholds import OURS, Limits, bound
from agentrl.types.finding import Status

_LEAST_STEPS = 20
_RIGHT = 0.95
"""Accuracy from which nothing is left to learn but margins."""
_NO_PAIRS = "no preference pairs are trained on"


@detector(
    bound("share", 0.2, "fall of the chosen answer's log-probability, as a share of it", OURS),
    bound("nats", 1.0, "least fall of it, in nats an answer", OURS),
)
def likelihood_falls(history: History, limits: Limits) -> Verdict:
    """Both answers of a pair become less likely: the margin grows by unlearning, and the weight
    goes to text that nobody asked for. Rollouts that get better excuse it."""
    name = "likelihood_falls"
    curves = list(_both(history))
    if not curves:
        return unknown(name, f"{_NO_PAIRS}, or log-probabilities are not logged")
    fines: list[str] = []
    for metric, chosen, rejected in curves:
        down, other = _since_best(chosen, rejected)
        least = max(
            limits["likelihood_falls/nats"], limits["likelihood_falls/share"] * abs(down.start)
        )
        if not (down.down and other.down) or -down.gain < least:
            fines.append(f"{metric} {down.text()}")
            continue
        if _rolls_out_better(history):
            fines.append(f"{metric} {down.text()}, and rollouts of held-out tasks get better")
            continue
        return found(
            name,
            Status.WARN,
            "chosen and rejected answers both become less likely",
            moved(metric, chosen, down),
            moved(metric.replace("chosen", "rejected"), rejected, other),
            levers=fit.keep_chosen_likely(history.config),
        )
    if not fines:
        return unknown(name, "log-probabilities are logged for fewer than 10 steps")
    return fine(name, "; ".join(fines))


def _both(history: History) -> Iterator[tuple[str, Series, Series]]:
    """Log-probabilities of both answers: of training, and of evaluations, which are less noisy."""
    for metric, chosen in history.metrics.items():
        least = 4 if metric.startswith("eval/") else 10
        rejected = history.metrics.get(metric.replace("chosen", "rejected"))
        if not metric.endswith("pref/logp_chosen") or rejected is None:
            continue
        if len(chosen.values) >= least and rejected.steps == chosen.steps:
            yield metric, chosen, rejected


def _since_best(chosen: Series, rejected: Series) -> tuple[Change, Change]:
    """Movement of both from the best level of the chosen answer to the end.

    What a fit learns first is the form of both answers, and they may rise before they fall. Windows
    are wide, since the best of many is the luckiest.
    """
    width = max(2, min(20, len(chosen.values) // 4))
    calm = smoothed(chosen, width)
    best = min(calm.values.index(max(calm.values)), len(chosen.values) - 2 * width)
    parts = [(s.values[best : best + width], s.values[-width:]) for s in (chosen, rejected)]
    down, other = (difference(before, after) for before, after in parts)
    return down, other


def _rolls_out_better(history: History) -> bool:
    """True if the score of rollouts of held-out tasks rises for certain.

    What a fit calls a score without rollouts is minus its loss, and has no interval.
    """
    names = [name for name in held_out(history) if score_errors(history, name) is not None]
    rises = [rise_of(history, name) for name in names]
    return any(rise is not None and rise.up for rise in rises)


@dataclass(frozen=True, slots=True, kw_only=True)
class _HeldPairs:
    metric: str
    """Of its accuracy, as logged."""
    accuracy: Series
    """Share of the pairs in the right order."""
    rise: Change
    """Movement of it since the first evaluation."""
    loss: Change | None
    """Movement of the loss, without an interval; None where it is not logged."""


@detector(
    bound("share", 0.25, "of the training accuracy's rise the held-out one must follow", OURS),
    bound("least", 0.02, "rise of the accuracy that a growing margin must bring", OURS),
    bound("loss", 0.05, "rise of the held-out loss above its start, as a share of it", OURS),
)
def margin_alone(history: History, limits: Limits) -> Verdict:
    """The margin between the answers of a pair grows, and the order of held-out pairs gets no
    better: scores become more sure and not more right."""
    name = "margin_alone"
    kind = next((k for k in ("pref", "rm") if f"{k}/margin" in history.metrics), None)
    if kind is None:
        return unknown(name, _NO_PAIRS)
    margin, training = history.metrics[f"{kind}/margin"], history.metrics.get(f"{kind}/accuracy")
    if training is None or min(len(margin.values), len(training.values)) < _LEAST_STEPS:
        return unknown(name, f"margin and accuracy are logged for fewer than {_LEAST_STEPS} steps")
    gain = change(margin, len(margin.values) // 4)
    assert gain is not None
    if not gain.up:
        return fine(name, f"the margin does not grow: {gain.text()}")
    grew = moved(f"{kind}/margin", margin, gain)
    own, early = change(training, len(training.values) // 4), change(training)
    assert own is not None
    assert early is not None
    # A model that is right about more and more training pairs must be so about others, too.
    pace = max(limits["margin_alone/least"], limits["margin_alone/share"] * early.gain)
    held = list(_held_pairs(history, kind))
    for pairs in held:
        verdict = _no_better(history, pairs, pace, grew, limits)
        if verdict is not None:
            return verdict
    if held:
        return fine(name, "; ".join(f"{pairs.metric} {pairs.rise.text()}" for pairs in held))
    if own.high >= limits["margin_alone/least"] or own.end >= _RIGHT:
        return fine(name, f"{kind}/accuracy of the training pairs; no held-out pairs to look at")
    return found(
        name,
        Status.WARN,
        "the margin grows and the accuracy of the training pairs does not",
        grew,
        moved(f"{kind}/accuracy", training, own),
        levers=[*fit.less_sure(history.config), *policy.see_held_out(history.config)],
    )


def _no_better(
    history: History, pairs: _HeldPairs, pace: float, grew: Evidence, limits: Limits
) -> Verdict | None:
    """The verdict over the pairs of one evaluation; None where they get better."""
    solved = pairs.accuracy.values[-1] >= _RIGHT
    worse = pairs.loss is not None and (
        pairs.loss.gain > limits["margin_alone/loss"] * abs(pairs.loss.start)
    )
    if not worse and (solved or pairs.rise.high >= pace):
        return None
    evidence = [grew, moved(pairs.metric, pairs.accuracy, pairs.rise)]
    if worse and pairs.loss is not None:
        evidence.append(
            Evidence(
                text=f"held-out loss {number(pairs.loss.start)} before, {number(pairs.loss.end)} "
                "at the end",
                metric=pairs.metric,
                first_step=pairs.accuracy.steps[0],
                last_step=pairs.accuracy.steps[-1],
            )
        )
    flat = "falls" if pairs.rise.down else "does not rise"
    title = f"the margin grows and {pairs.metric} {flat}"
    if pairs.rise.high >= pace:
        title = "the margin outgrows what the held-out pairs bear out: their loss rises"
    return found(
        "margin_alone",
        Status.FAIL if pairs.rise.down else Status.WARN,
        title,
        *evidence,
        levers=[*fit.less_sure(history.config), *policy.see_held_out(history.config)],
    )


def _held_pairs(history: History, kind: str) -> Iterator[_HeldPairs]:
    """Accuracies of evaluations whose movement has an interval."""
    tail = f"/{kind}/accuracy"
    for metric, accuracy in history.metrics.items():
        if not (metric.startswith("eval/") and metric.endswith(tail)):
            continue
        place = metric.removesuffix(tail)
        counted = history.metrics.get(f"{place}/fit/examples")
        rise = _rise(accuracy, counted.values[-1] if counted is not None else None)
        if rise is None:
            continue
        loss = history.metrics.get(f"{place}/{'dpo' if kind == 'pref' else 'rm'}/loss")
        yield _HeldPairs(
            metric=metric,
            accuracy=accuracy,
            rise=rise,
            loss=None if loss is None or len(loss.values) < 2 else _ends(loss, 0.0),
        )


def _rise(accuracy: Series, pairs: float | None) -> Change | None:
    """From the first evaluation to the last quarter of them.

    The pairs are the same each time, so evaluations are no independent draws, and their mean is as
    uncertain as one of them. A policy that equals its reference has ties alone, which chance has no
    part in.
    """
    if pairs is None or pairs < 2:
        return trend(accuracy) if len(accuracy.values) >= 4 else None
    if len(accuracy.values) < 2:
        return None
    found = _ends(accuracy, 0.0)
    shares = [found.end] if found.start == 0.5 else [found.start, found.end]
    error = math.sqrt(sum(max(p * (1 - p), 1 / pairs) / pairs for p in shares))
    return _ends(accuracy, 1.96 * error)


def _ends(series: Series, half: float) -> Change:
    """From the first value to the mean of the last quarter, give or take `half`."""
    start, end = series.values[0], fmean(series.values[-max(1, len(series.values) // 4) :])
    return Change(start=start, end=end, low=end - start - half, high=end - start + half)


@detector(
    bound("corr", 0.7, "correlation of the margin of a pair with its difference of lengths", OURS),
)
def length_preference(history: History, limits: Limits) -> Verdict:
    """The margin of a pair is mostly a matter of which answer is longer: half of its variance or
    more goes along with the difference of lengths."""
    name, metric = "length_preference", "pref/length_corr"
    series = history.metrics.get(metric)
    if series is None or len(series.values) < 10:
        return too_few(name, metric, series, 10)
    last = series.values[-max(5, len(series.values) // 4) :]
    mean = fmean(last)
    spread = sum((value - mean) ** 2 for value in last) / (len(last) - 1)
    half = t_quantile(len(last) - 1) * math.sqrt(spread / len(last))
    if abs(mean) - half <= limits["length_preference/corr"]:
        return fine(name, f"{metric} {number(mean)}")
    return found(
        name,
        Status.WARN,
        f"what is preferred is the {'longer' if mean > 0 else 'shorter'} answer",
        Evidence(
            text=f"{metric} {number(mean)} over the last {len(last)} steps: lengths go along with "
            f"{percent(mean * mean)} of the variance of the margin",
            metric=metric,
            first_step=series.steps[-len(last)],
            last_step=series.steps[-1],
        ),
        levers=fit.balanced_lengths(history.config),
    )
