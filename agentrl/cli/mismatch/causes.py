"""Likely causes of a gap between sampler and trainer, by pure functions of its tokens.

Each rule looks for one pattern, from the plainest to the one that is left: age of the weights,
weights that never arrive, another distribution at the sampler, other tokens after a boundary, a
growing distance along the context, a few bad rollouts, and at last rounding. The bounds are ours,
tried on planted gaps (`tests/cli/mismatch`) and on a real run in bfloat16, whose mean gap of 0.01
to 0.02 nats is rounding alone.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from agentrl.cli.mismatch.patterns import (
    FEW,
    NOTABLE,
    along_context,
    boundary,
    few_rollouts,
    later_rows,
    mean_of,
)
from agentrl.cli.mismatch.records import Cause
from agentrl.cli.mismatch.token_table import GapTable
from agentrl.config.algorithm import AlgorithmSection
from agentrl.config.fleet import ScheduleSection, SyncSection
from agentrl.config.plan import Plan
from agentrl.config.schema import ModelSection, RolloutSection
from agentrl.health.measures.curves import percent
from agentrl.health.records import Lever

QUIET = 0.005
"""Mean absolute gap in nats below which sampler and trainer agree."""
Chosen = NDArray[np.bool_]


def find_causes(table: GapTable, run: Plan, *, curve: Mapping[int, float]) -> tuple[Cause, ...]:
    """Every pattern that is there, most telling first; empty if sampler and trainer agree.

    Args:
        table: of one step.
        run: its settings.
        curve: mean gap by step, as logged.
    """
    size = table.size
    if size.mean() < QUIET and size.max() < NOTABLE:
        return ()
    schedule, rollout, engines = run.schedule, run.rollouts.rollout, run.engines
    weigh = _correction(run.trainer.algorithm, rollout)
    rules = (
        _stale(table, schedule.schedule, weigh),
        _top_p(table, rollout, weigh),
        _temperature(table, rollout),
        boundary(table, run.rollouts.chat),
        later_rows(table),
        few_rollouts(table, engines.serving),
        along_context(table, schedule.train),
    )
    found = tuple(cause for cause in rules if cause is not None)
    if found:
        return found
    if size.mean() < NOTABLE:
        return (_rounding(table, engines.model, weigh),)
    return (_weights(table, engines.sync, curve, weigh) or _unknown(table),)


def _share(size: NDArray[np.float64], chosen: Chosen) -> float:
    """How much of the whole gap the chosen tokens hold."""
    return float(size[chosen].sum() / size.sum())


def _correction(algorithm: AlgorithmSection, rollout: RolloutSection) -> tuple[Lever, ...]:
    """Weights for a gap that cannot be closed."""
    if algorithm.is_correction_type != "none":
        return ()
    kind = "seq-mask-tis" if rollout.max_assistant_turns > 1 else "tis"
    why = "Weighs what sampler and trainer disagree on."
    found = [Lever(key="algorithm.is_correction_type", value=kind, why=why)]
    if algorithm.old_log_probs == "rollout":
        why = "The correction needs the trainer's own log-probabilities."
        found.insert(0, Lever(key="algorithm.old_log_probs", value="recompute", why=why))
    return tuple(found)


def _stale(table: GapTable, schedule: ScheduleSection, weigh: tuple[Lever, ...]) -> Cause | None:
    """Tokens of older weights are farther away than those of the step's own."""
    size, old = table.size, table.lag > 0
    if old.sum() < FEW or mean_of(size[old]) < max(0.02, 2 * mean_of(size[~old])):
        return None
    oldest = int(table.lag.max())
    levers: list[Lever] = []
    if schedule.staleness_threshold > 0:
        half = round(schedule.staleness_threshold / 2, 3)
        why = "Fewer rollouts of older weights."
        levers.append(Lever(key="schedule.staleness_threshold", value=half, why=why))
    if oldest > 1:
        why = "Drops what is older, or masks it as {mask: N}."
        levers.append(Lever(key="schedule.max_version_lag", value=oldest // 2, why=why))
    fresh = f"{mean_of(size[~old]):.3g} for the step's own" if (~old).any() else "and all are old"
    return Cause(
        name="stale_weights",
        title="older weights sampled these tokens",
        evidence=(
            f"{percent(float(old.mean()))} of the tokens are 1 to {oldest} steps old and hold "
            f"{percent(_share(size, old))} of the gap",
            f"their mean gap is {mean_of(size[old]):.3g} nats, {fresh}",
        ),
        levers=(*levers, *weigh),
    )


def _top_p(table: GapTable, rollout: RolloutSection, weigh: tuple[Lever, ...]) -> Cause | None:
    """A sampler that declares its nucleus sampling: it is never less sure than the trainer."""
    top_p, gap = rollout.top_p, table.gap
    if top_p >= 1.0:
        return None
    below = float((gap <= 1e-3).mean())
    inside = float((gap >= np.log(top_p) - 0.05).mean())
    if below < 0.97 or inside < 0.97 or gap.mean() > -QUIET / 2:
        return None
    return Cause(
        name="top_p",
        title="the sampler's probabilities are those of its nucleus",
        evidence=(
            f"rollout.top_p is {top_p:g}; {percent(below)} of the tokens are less likely to the "
            "trainer",
            f"{percent(inside)} of the gaps lie between log({top_p:g}) = {np.log(top_p):.3g} and 0",
        ),
        levers=(
            Lever(key="rollout.top_p", value=1.0, why="Samples from what is trained."),
            *weigh,
        ),
    )


def _temperature(table: GapTable, rollout: RolloutSection) -> Cause | None:
    """Tokens less likely than usual gain and the others lose: another temperature.

    With p at temperature 1, log p at temperature T is log p - (T - 1) (log p + entropy) to first
    order in T - 1. So the gap is proportional to log p + entropy, and the factor is what the
    sampler's temperature exceeds the trainer's by, as a share of the latter.
    """
    fresh = table.lag == 0
    surprise = (table.trainer + table.entropy)[fresh]
    gap = table.gap[fresh]
    if len(gap) < 4 * FEW or not surprise.any() or not gap.any():
        return None
    slope = float(surprise @ gap / (surprise @ surprise))
    explained = 1.0 - float(np.abs(gap - slope * surprise).mean() / np.abs(gap).mean())
    together = float(np.corrcoef(surprise, gap)[0, 1]) if gap.std() > 0 else 0.0
    if abs(slope) < 0.03 or explained < 0.3 or abs(together) < 0.7:
        return None
    asked = rollout.temperature
    return Cause(
        name="temperature",
        title="the sampler divides by another temperature than the trainer",
        evidence=(
            f"gap = {slope:+.3g} x (log-probability + entropy), correlation {together:.2f}, "
            f"explains {percent(explained)} of it",
            f"rollout.temperature is {asked:g}; the sampler's looks like {asked * (1 + slope):.2g}",
        ),
        advice="look whether the servers are told a temperature of their own (serving.args, a "
        "generation_config.json of the model), and whether they report log-probabilities after "
        "temperature: vLLM needs --logprobs-mode processed_logprobs",
    )


def _weights(
    table: GapTable, sync: SyncSection, curve: Mapping[int, float], weigh: tuple[Lever, ...]
) -> Cause | None:
    """All fresh tokens are off in all rollouts: the engines hold other weights."""
    fresh = table.lag == 0
    size = table.size[fresh]
    if len(size) < FEW or mean_of(size) < NOTABLE or np.median(size) < NOTABLE / 2:
        return None
    evidence = [
        f"mean gap {mean_of(size):.3g} nats, and half of the tokens have more than "
        f"{np.median(size):.3g}, although the weights are said to be the step's own"
    ]
    steps = sorted(curve)
    grows = len(steps) >= 4 and curve[steps[-1]] > 3 * max(1e-6, curve[steps[0]])
    if grows:
        evidence.append(
            f"it grew from {curve[steps[0]]:.3g} at step {steps[0]} to {curve[steps[-1]]:.3g} at "
            f"step {steps[-1]}: the engines may never get new weights"
        )
    levers = []
    if sync.dense_every > 1:
        why = "Sends all weights with every sync, in case changes add up to something else."
        levers.append(Lever(key="sync.dense_every", value=1, why=why))
    return Cause(
        name="other_weights",
        title="the engines sample from other weights than are trained",
        evidence=tuple(evidence),
        levers=(*levers, *weigh),
        advice="look at sync/replicas and sync/quarantined, and whether the servers run the same "
        "model, quantisation and adapters",
    )


def _rounding(table: GapTable, model: ModelSection, weigh: tuple[Lever, ...]) -> Cause:
    """Small and everywhere: the same weights, computed in another order or precision."""
    size, gap = table.size, table.gap
    sure = np.exp(np.minimum(0.0, table.sampler)) > 0.9
    evidence = [
        f"mean gap {size.mean():.3g} nats, {gap.mean():+.2g} with its sign: it goes both ways",
    ]
    if sure.any() and (~sure).any():
        evidence.append(
            f"{mean_of(size[~sure]):.3g} where the sampler is unsure and {mean_of(size[sure]):.3g} "
            "where it is not, as rounding of logits does"
        )
    levers: list[Lever] = []
    if model.dtype != "float32":
        if model.head_dtype == "model":
            why = f"Logits are not rounded to {model.dtype} any more, by engines and trainer."
            levers.append(Lever(key="model.head_dtype", value="float32", why=why))
        why = f"Rounds less than {model.dtype}, at twice the memory and more time."
        levers.append(Lever(key="model.dtype", value="float32", why=why))
    return Cause(
        name="rounding",
        title="rounding: the same weights computed in another order or precision",
        evidence=tuple(evidence),
        levers=(*levers, *weigh),
        advice="nothing, while the effective sample size (rollout_corr/ess) stays near 1",
    )


def _unknown(table: GapTable) -> Cause:
    return Cause(
        name="unknown",
        title="a gap without a pattern that is known here",
        evidence=(f"mean gap {table.size.mean():.3g} nats, see where it is in the tables",),
        advice="look at the worst tokens with agentrl traj show --tokens",
    )
