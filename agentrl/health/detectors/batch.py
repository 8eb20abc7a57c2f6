"""Detectors over the material of an update: spread of rewards, sampler against trainer."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from agentrl.estimators import ESTIMATORS
from agentrl.health.detector import detector
from agentrl.health.findings import (
    ends,
    fine,
    found,
    moved,
    over,
    seen,
    shown,
    solved,
    unknown,
)
from agentrl.health.level import lasting, steps_text, sustained
from agentrl.health.levers import policy, sampler, system
from agentrl.health.measures.curves import Stretch, change, number, percent
from agentrl.health.records import Evidence, History, RolloutFacts, Series, Verdict
from agentrl.health.thresholds import OURS, USUAL, Limits, bound
from agentrl.types.finding import Status

_IDLE_WINDOW = 10
"""Steps that show whether a solved run is without a gradient."""


@detector(
    bound("warn", 0.7, "share of rollouts in groups with zero advantage", OURS),
    bound("bound", 0.95, "share of rollouts in groups with zero advantage (`near 1.0`)", USUAL),
    bound("steps", 5, "steps of the window (`batch after batch`)", OURS),
    bound("idle", 50, "steps that a solved run may go on without a gradient", OURS),
    bound(
        "idle_share",
        0.9,
        "share of rollouts with zero advantage: no gradient to speak of",
        OURS,
    ),
)
def empty_gradient(history: History, limits: Limits) -> Verdict:
    """Groups whose rollouts all earn the same, batch after batch: nothing to learn from."""
    name, metric = "empty_gradient", "frac_reward_zero_std"
    series = history.metrics.get(metric)
    if series is None or history.config.get("rollout.n_samples_per_prompt") == 1:
        return unknown(name, f"{metric} is not logged, or groups have one rollout each")
    if not _compares_siblings(history):
        return unknown(name, "this advantage does not come from comparing siblings")
    steps = limits["empty_gradient/steps"]
    bound, warn = limits["empty_gradient/bound"], limits["empty_gradient/warn"]
    empty = sustained(history, metric, lambda v: v >= bound, steps, mean=True)
    some = empty or sustained(history, metric, lambda v: v >= warn, 2 * steps, mean=True)
    if empty is None and some is not None and some.first_step == series.steps[0]:
        # Hard tasks begin so, and the first steps do not show whether they stay.
        some = some if some.length >= 4 * steps else None
    if some is None:
        return fine(
            name, f"{percent(series.values[-1])} of the rollouts are in groups with zero advantage"
        )
    if solved(history):
        return _nothing_left(history, limits)
    evidence = [seen(metric, some, f"up to {percent(some.worst)} for {steps_text(some)}")]
    level = history.metrics.get("score") or history.metrics.get("reward")
    direction = ""
    mean: float | None = None
    if level is not None:
        mean = fmean(level.values[-int(steps) :])
        direction = ": too easy" if mean > 0.9 else ": too hard" if mean < 0.1 else ""
        evidence.append(
            Evidence(
                text=f"the mean score is {number(mean)}{direction}", first_step=some.first_step
            )
        )
    _, last = ends(history)
    if mean is not None and mean < 0.1 and _well_paid(history, last):
        # Neither more siblings nor other tasks help: the reward says the same of all of them.
        direction, mean = ": all are paid alike, and wrong by the score", None
        evidence[-1] = Evidence(
            text=evidence[-1].text.partition(":")[0], first_step=some.first_step
        )
    if last:
        evidence.append(shown(last[:4], "rollouts of one such group"))
    return found(
        name,
        Status.FAIL if empty else Status.WARN,
        f"{percent(fmean(series.values[-int(steps) :]))} of the rollouts are in groups that all "
        "earn the same" + direction,
        *evidence,
        levers=policy.stronger_kl(history.config)
        if "paid alike" in direction
        else system.difficulty(history.config, level=mean),
    )


def _well_paid(history: History, last: Sequence[RolloutFacts]) -> bool:
    """True if the latest rollouts get most of what the run has ever paid."""
    rewards = [fact.reward for fact in history.rollouts if fact.reward is not None]
    late = [fact.reward for fact in last if fact.reward is not None]
    if not late or max(rewards) <= min(rewards):
        return False
    return fmean(late) >= min(rewards) + 0.75 * (max(rewards) - min(rewards))


def _compares_siblings(history: History) -> bool:
    """What the estimator declares; of one that only the run could load, what the run counted."""
    name = history.config.get("algorithm.advantage_estimator")
    spec = ESTIMATORS.get(name)
    if spec is not None:
        return spec.compares_siblings
    return ":" not in str(name) or "batch/groups_singleton" in history.metrics


def _nothing_left(history: History, limits: Limits) -> Verdict:
    """Held-out tasks are solved: that is success, unless the run goes on without a gradient."""
    name, metric = "empty_gradient", "frac_reward_zero_std"
    idle, bound = limits["empty_gradient/idle"], limits["empty_gradient/idle_share"]
    spent = sustained(history, metric, lambda v: v >= bound, _IDLE_WINDOW, mean=True)
    if spent is None or spent.length < idle:
        return fine(name, "most groups are solved, and so are the held-out tasks")
    return found(
        name,
        Status.WARN,
        "the tasks are solved, and the run goes on without a gradient: end it, or add harder tasks",
        seen(metric, spent, f"above {percent(bound)} for {steps_text(spent)}"),
        levers=system.difficulty(history.config),
    )


@detector(
    bound("warn", 0.1, "mean difference of log-probabilities in nats a token", OURS),
    bound("bound", 1.0, "mean difference of log-probabilities in nats a token", USUAL),
    bound("gross", 0.5, "mean difference in nats a token that no step may end with", OURS),
    bound("ess", 0.5, "effective share of tokens left by the importance ratios", OURS),
    bound("ratio_min", 0.001, "smallest importance ratio of a step", OURS),
    bound("ratio_max", 1000.0, "largest importance ratio of a step", OURS),
    bound("steps", 5, "steps that count as sustained", OURS),
    bound("alone", 20, "steps of such ratios that count though the mean gap is small", OURS),
)
def sampler_learner_gap(history: History, limits: Limits) -> Verdict:
    """Sampler and trainer disagree on the probability of what was sampled."""
    name, metric = "sampler_learner_gap", "sampling/sampling_logp_difference/mean"
    series = history.metrics.get(metric)
    if series is None:
        return unknown(name, f"{metric} is not logged")
    steps = int(limits["sampler_learner_gap/steps"])
    bound, warn = limits["sampler_learner_gap/bound"], limits["sampler_learner_gap/warn"]
    wide, now = lasting(history, metric, lambda v: v > bound, 3)
    # Another kernel or number type makes a tenth of that: one step shows other weights.
    gross = sustained(history, metric, lambda v: v > limits["sampler_learner_gap/gross"], 1)
    if gross is not None and not now:
        wide, now, bound = gross, True, limits["sampler_learner_gap/gross"]
    some = wide
    if some is None:
        some, now = lasting(history, metric, lambda v: v > warn, steps)
    evidence = []
    if some is not None:
        evidence.append(
            seen(
                metric,
                some,
                f"log-probabilities differ by up to {number(some.worst)} nats a token, "
                f"above {number(bound if wide else warn)} for {steps_text(some)}",
            )
        )
    ratios, lost = _ratios(history, limits, steps)
    evidence += ratios
    apart = sustained(history, metric, lambda v: v > warn / 2, steps) is not None
    if some is None and not lost and not apart:
        alone, _ = _ratios(history, limits, int(limits["sampler_learner_gap/alone"]))
        if alone:
            return found(
                name,
                Status.WARN,
                f"sampler and trainer are far apart on single tokens: {alone[0].text}; the mean "
                f"gap is {number(series.values[-1])} nats a token",
                *alone,
                levers=sampler.closer_sampler(history.config),
            )
    if not evidence or (some is None and not lost and not apart):
        return fine(name, f"log-probabilities differ by {number(series.values[-1])} nats a token")
    old = _lag(history)
    unsent = not old and _grows(series)
    gap = some.worst if some else series.values[-1]
    return found(
        name,
        Status.FAIL if (wide is not None and now) or lost else Status.WARN,
        ("the sampler does not follow the trained weights: " if unsent else "")
        + f"sampler and trainer are up to {number(gap)} nats a token apart"
        + (f", rollouts {number(old)} versions old" if old else "")
        + (over(some, now) if some else ""),
        *evidence,
        *_lag_evidence(history, old),
        levers=sampler.send_weights(history.config)
        if unsent
        else sampler.closer_sampler(history.config),
    )


def _grows(series: Series) -> bool:
    """True if a gap is several times what it was at the start."""
    move = change(series)
    return move is not None and move.up and move.end > 4 * max(move.start, 1e-6)


def _ratios(history: History, limits: Limits, steps: int) -> tuple[list[Evidence], bool]:
    """What the importance ratios show, and whether most of the batch is lost to them."""
    found: list[Evidence] = []
    low = limits["sampler_learner_gap/ess"]
    ess = sustained(history, "rollout_corr/ess", lambda v: v < low, steps)
    if ess is not None:
        found.append(
            seen(
                "rollout_corr/ess",
                ess,
                f"effective share of tokens below {percent(low)} for {steps_text(ess)}",
            )
        )
    least, most = (_ratio_metric(history, end) for end in ("min", "max"))
    tests: tuple[tuple[str, str, Stretch | None], ...] = (
        (least, "smallest", sustained(history, least,
                   lambda v: v < limits["sampler_learner_gap/ratio_min"], steps)),
        (most, "largest", sustained(history, most,
                   lambda v: v > limits["sampler_learner_gap/ratio_max"], steps)),
    )  # fmt: skip
    for metric, which, stretch in tests:
        if stretch is not None:
            text = f"{which} importance ratio {number(stretch.worst)} for {steps_text(stretch)}"
            found.append(seen(metric, stretch, text))
    return found, ess is not None


def _ratio_metric(history: History, end: str) -> str:
    """The raw ratio; the one that the loss uses where no other is logged."""
    raw = f"rollout_corr/ratio_{end}"
    return raw if raw in history.metrics else f"sampling/importance_sampling_ratio/{end}"


def _lag(history: History) -> float:
    lag = history.metrics.get("staleness/lag_mean")
    return fmean(lag.values[-5:]) if lag else 0.0


def _lag_evidence(history: History, old: float) -> list[Evidence]:
    lag = history.metrics.get("staleness/lag_mean")
    moves = change(lag) if lag else None
    if not old or lag is None:
        return []
    text = f"tokens are {number(old)} versions older than the weights they train"
    if moves is None:
        return [Evidence(text=text, metric="staleness/lag_mean", last_step=lag.steps[-1])]
    return [moved("staleness/lag_mean", lag, moves, text)]
