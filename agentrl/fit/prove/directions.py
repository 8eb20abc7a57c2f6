"""The direction of a fit: down the loss, towards the chosen answer, by known amounts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import torch

from agentrl.batch.examples import CHOSEN, REJECTED, Example
from agentrl.batch.update_terms import CENTERED
from agentrl.config.fit import DpoObjective, FitObjective, RewardObjective
from agentrl.fit.losses.pair_registry import find_pair_loss
from agentrl.fit.prove.bench import FitBench
from agentrl.fit.prove.examples import TablePasses
from agentrl.train.prove.compare import MOST_NAMED, ProofFinding, failed
from agentrl.train.prove.evaluate import UpdateOutcome
from agentrl.train.prove.precision import apart, tolerance_of
from agentrl.train.prove.tokens import TokenKey
from agentrl.types.finding import Status

_STEP = 1e-5
"""Length of a step in float64; the loss of a table of numbers is smooth at that scale."""


def descent_check(name: str, bench: FitBench, whole: UpdateOutcome) -> ProofFinding:
    """Compare the loss on both sides of the weights, along the gradient, with its length.

    A step of length d against the gradient g lowers the loss by d |g|, up to d^3.
    """
    params = bench.passes.named_parameters()
    size = math.sqrt(sum(float(grad.square().sum()) for grad in whole.gradient.values()))
    step = _STEP if whole.dtype is torch.float64 else 1e-2
    update, found = bench.update(), list[float]()
    constants = bench.constants(update)
    for sign in (-1.0, 1.0):
        with torch.no_grad():
            before = {key: param.clone() for key, param in params.items()}
            for key, param in params.items():
                param += sign * step / size * whole.gradient[key]
            found.append(bench.value(update, constants))
            for key, param in params.items():
                param.copy_(before[key])
    slope = (found[1] - found[0]) / (2.0 * step)
    least = (1e-4 if whole.dtype is torch.float64 else 0.1) * size
    if abs(slope - size) <= least:
        return ProofFinding(name=name, status=Status.OK)
    detail = (
        f"against the gradient the loss falls by {slope:.4g} a step of length 1 and not by "
        f"|gradient| = {size:.4g}"
    )
    if not abs(slope + size) > least:
        return failed(name, f"{detail}: the gradient is that of minus the loss")
    if math.isnan(slope):
        return failed(name, detail)
    detail += ": something that depends on the model is kept out of the gradient (detach())"
    return ProofFinding(name=name, status=Status.WARN, detail=detail)


def direction_check(name: str, table: FitBench, dtype: torch.dtype) -> ProofFinding:
    """See that a step makes what was learned likelier, or the chosen answer better.

    Labels count as certain. Where a pair loss has a reference, the policy equals it, so that no
    pair is one that the loss has pushed far enough.
    """
    equal = _at_the_reference(table)
    slopes = _row_slopes(equal.outcome(equal.update()).slopes)
    largest = max(map(abs, slopes.values()), default=0.0)
    least, wrong, right = tolerance_of(dtype) * largest, list[str](), 0
    for example in equal.examples:
        towards = slopes[f"{example.id}/{CHOSEN}"]
        if example.desirable is False:
            towards = -towards
        if len(example.answers) > 1:
            towards -= slopes[f"{example.id}/{REJECTED}"]
        if towards < -least:
            right += 1
        elif towards > least:
            wrong.append(f"{example.id} (slope {towards:.4g})")
    what = "better than the rejected one"
    if len(table.examples[0].answers) == 1:
        what = "likelier"
    if wrong and (not right or _compares(table)):
        return failed(
            name,
            f"a step makes the chosen answer of {len(wrong)} of {len(equal.examples)} examples "
            f"worse instead of {what}; a loss to be minimised falls as h grows, as "
            f"-logsigmoid(beta h) does; {', '.join(wrong[:MOST_NAMED])}",
        )
    if not right:
        detail = "no answer becomes better or worse, so there is no direction to judge"
        return ProofFinding(name=name, status=Status.WARN, detail=detail)
    detail = f"some chosen answers become worse: {', '.join(wrong[:MOST_NAMED])}" if wrong else ""
    return ProofFinding(name=name, status=Status.WARN if wrong else Status.OK, detail=detail)


def value_check(name: str, table: FitBench, dtype: torch.dtype) -> ProofFinding:
    """Compare slopes with those that the formulas have where they are simple.

    That is the weight for `sft`, and for pairs the point where the policy is its reference, or all
    scores are 0.
    """
    at = _at_the_reference(table, certain=False)
    wanted = _known_slopes(at)
    if wanted is None:
        detail = "no value is known for this loss"
        return ProofFinding(name=name, status=Status.OK, detail=detail)
    outcome = at.outcome(at.update())
    largest = max(map(abs, wanted.values()))
    off = [
        key
        for key, slope in outcome.slopes.items()
        if abs(slope - wanted[f"{key.rollout_id}"]) > tolerance_of(dtype) * largest
    ]
    if not off:
        return ProofFinding(name=name, status=Status.OK)
    found, known = apart(outcome.slopes[off[0]], wanted[off[0].rollout_id])
    return failed(
        name,
        f"{len(off)} slopes are not those of the formula; {off[0]}: {found}, "
        f"by the formula {known}",
    )


def _compares(table: FitBench) -> bool:
    """Return true if a pair loss has a reference, at which every pair has to become better."""
    if table.objective.kind != "dpo":
        return True
    if table.objective.unpaired:
        return True
    spec = find_pair_loss(table.objective.loss, base=table.base)
    return spec.needs_reference and table.objective.reference != "none"


def _at_the_reference(table: FitBench, *, certain: bool = True) -> FitBench:
    """The same examples where the reference is the policy, and all scores are 0."""
    passes = table.passes
    assert isinstance(passes, TablePasses)
    fresh = passes.copy()
    with torch.no_grad():
        fresh.scores_MO.zero_()
    examples = [
        replace(example, label_probability=None) if certain else example
        for example in table.examples
    ]
    return replace(table, passes=fresh, examples=examples, reference=fresh.sums())


def _row_slopes(slopes: Mapping[TokenKey, float]) -> dict[str, float]:
    """Sum over the tokens of each answer."""
    found: dict[str, float] = {}
    for key, slope in slopes.items():
        found[key.rollout_id] = found.get(key.rollout_id, 0.0) + slope
    return found


def _known_slopes(at: FitBench) -> dict[str, float] | None:
    """Slope of each number of an answer, by `EXAMPLE/ANSWER`; None where none is known."""
    objective, found = at.objective, dict[str, float]()
    if objective.kind == "sft":
        for micro in at.update().micro_batches:
            for index, row in enumerate(micro.rows):
                weight = micro.weights_R[micro.mask_R & (micro.row_R == index)][0]
                found[f"{row.rollout_id}/{row.row_index}"] = -float(weight)
        return found
    if objective.kind == "dpo" and objective.unpaired:
        # At r = z0 = 0 the loss of an answer changes by -/+ weight beta / 4 with r.
        for example in at.examples:
            good, bad = -objective.desirable_weight, objective.undesirable_weight
            said, other = (good, bad) if example.desirable else (bad, good)
            right = 1.0 if example.label_probability is None else example.label_probability
            slope = (right * said + (1.0 - right) * other) * objective.beta / 4.0
            found[f"{example.id}/{CHOSEN}"] = example.weight / len(at.examples) * slope
        return found
    # The mean that centering squares is 0 where all scores are.
    found |= {f"{example.id}/{CENTERED}": 0.0 for example in at.centered}
    for example in at.examples:
        pair = _pair_slopes(objective, example)
        if pair is None:
            return None
        weight = example.weight / len(at.examples)
        for index, slope in zip((CHOSEN, REJECTED), pair, strict=True):
            found[f"{example.id}/{index}"] = weight * slope
    return found


def _pair_slopes(objective: FitObjective, example: Example) -> tuple[float, float] | None:
    """Slopes of the loss of a pair by a number of the chosen and of the rejected answer.

    At h = 0 the loss of a pair changes with h by

        sigmoid   -(1 - 2 e) beta / 2          robust   -beta / (2 (1 - 2 e))
        ipo       -1 / beta                    hinge    -beta

    and at scores of 0 that of Bradley-Terry by sigmoid(-m) - p with the difference of scores.
    """
    if isinstance(objective, RewardObjective):
        if objective.loss != "bt":
            return None
        margin = objective.margin_scale * (example.margin or 0.0)
        label = 1.0 if example.label_probability is None else example.label_probability
        slope = 1.0 / (1.0 + math.exp(margin)) - label
        return slope, -slope
    if not isinstance(objective, DpoObjective) or objective.reference == "none":
        return None
    beta, wrong = objective.beta, objective.label_smoothing
    known = {
        "sigmoid": -(1.0 - 2.0 * wrong) * beta / 2.0,
        "robust": -beta / (2.0 * (1.0 - 2.0 * wrong)),
        "ipo": -1.0 / beta,
        "hinge": -beta,
    }.get(objective.loss)
    if known is None:
        return None
    chosen, rejected = (answer.trained for answer in example.answers)
    lengths = (chosen, rejected) if objective.length_normalized else (1, 1)
    return known / lengths[0] - objective.nll_coef / chosen, -known / lengths[1]
