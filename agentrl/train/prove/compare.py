"""Two outcomes side by side: whether they are the same, and where they part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from agentrl.train.prove.evaluate import UpdateOutcome
from agentrl.train.prove.precision import apart, narrower, tolerance_of
from agentrl.types.finding import Finding, Status

MOST_NAMED = 3
"""Tokens or metrics named in a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofFinding(Finding):
    """The result of one comparison: `name` is what was done to the work, or to its input.

    A failure fails the proof; a warning is a difference that is only reported.
    """

    error: float | None = None
    """Relative difference of the gradients; None where bits are compared."""


def failed(name: str, detail: str) -> ProofFinding:
    """A failed check that needs no number to show it."""
    return ProofFinding(name=name, status=Status.FAIL, detail=detail)


def compared(
    name: str, whole: UpdateOutcome, other: UpdateOutcome, *, against: str = ""
) -> ProofFinding:
    """Compare two gradients, and name the tokens that make the difference.

    Args:
        name: of the check.
        whole: of the update in one micro-batch.
        other: of the same update, divided.
        against: says how, where the name does not.
    """
    error = _relative_error(other.gradient, whole.gradient)
    tolerance = _tolerance(whole, other)
    if not error <= tolerance:
        detail = f"{against}: {_where(whole, other)}" if against else _where(whole, other)
        return ProofFinding(name=name, status=Status.FAIL, error=error, detail=detail)
    metrics = _metrics_that_differ(whole, other)
    note = f"metrics differ: {', '.join(metrics[:MOST_NAMED])}" if metrics else ""
    return ProofFinding(name=name, status=Status.OK, error=error, detail=note)


def same_bits(
    name: str, clean: UpdateOutcome, dirty: UpdateOutcome, *, reached: str = "tokens"
) -> ProofFinding:
    """Compare two outcomes bit by bit, and name what reached the second one.

    Args:
        name: of the check.
        clean: of the update as it is.
        dirty: of the same update with other numbers where the loss does not look.
        reached: noun for what has a slope.
    """
    changed = [key for key in clean.slopes if clean.slopes[key] != dirty.slopes.get(key)]
    if changed:
        named = ", ".join(map(str, changed[:MOST_NAMED]))
        return failed(name, f"reaches the gradient of {len(changed)} {reached}: {named}")
    same = all(torch.equal(clean.gradient[key], dirty.gradient[key]) for key in clean.gradient)
    if not same or clean.loss != dirty.loss:
        return failed(name, f"the loss is {dirty.loss} instead of {clean.loss}")
    metrics = [key for key in clean.metrics if clean.metrics[key] != dirty.metrics.get(key)]
    if metrics or len(clean.metrics) != len(dirty.metrics):
        return failed(name, f"reaches metrics: {', '.join(metrics[:MOST_NAMED])}")
    return ProofFinding(name=name, status=Status.OK)


def not_finite(whole: UpdateOutcome) -> str:
    """Name where a gradient or a loss is not finite; empty if both are."""
    bad = [name for name, grad in whole.gradient.items() if not torch.isfinite(grad).all()]
    if bad:
        slopes = [str(key) for key, slope in whole.slopes.items() if not np.isfinite(slope)]
        where = ", ".join(slopes[:MOST_NAMED]) or "no token alone"
        return f"the gradient of {bad[0]} is not finite; tokens: {where}"
    if not np.isfinite(whole.loss):
        return f"the gradient is finite, but the loss is {whole.loss}"
    return ""


def _tolerance(whole: UpdateOutcome, other: UpdateOutcome) -> float:
    return tolerance_of(narrower(whole.dtype, other.dtype))


def _relative_error(ours: Mapping[str, Tensor], reference: Mapping[str, Tensor]) -> float:
    """|ours - reference| / |reference| over all parameters together."""
    difference = sum(float((ours[n] - reference[n]).square().sum()) for n in reference)
    size = sum(float(reference[n].square().sum()) for n in reference)
    if size == 0.0:
        return 0.0 if difference == 0.0 else float("inf")
    return (difference / size) ** 0.5


def _where(whole: UpdateOutcome, other: UpdateOutcome) -> str:
    """Which tokens make the difference."""
    lost = whole.slopes.keys() ^ other.slopes.keys()
    keys = sorted(whole.slopes.keys() & other.slopes.keys())
    largest = max((abs(slope) for slope in whole.slopes.values()), default=0.0)
    least = _tolerance(whole, other) * largest
    off = [k for k in keys if not abs(other.slopes[k] - whole.slopes[k]) <= least]
    off.sort(key=lambda key: -abs(other.slopes[key] - whole.slopes[key]))
    if lost and any({**whole.slopes, **other.slopes}[key] for key in lost):
        named = ", ".join(map(str, sorted(lost)[:MOST_NAMED]))
        return f"{len(lost)} tokens are looked at in one of the two only: {named}"
    if not off:
        return "every token has the same slope: the difference is in the forward pass"
    named = []
    for key in off[:MOST_NAMED]:
        found, wanted = apart(other.slopes[key], whole.slopes[key])
        named.append(f"{key} ({found} instead of {wanted})")
    return f"{len(off)} of {len(keys)} tokens, {other.micro_batches} micro-batches: " + ", ".join(
        named
    )


def _metrics_that_differ(whole: UpdateOutcome, other: UpdateOutcome) -> list[str]:
    ours, theirs, tolerance = whole.metrics, other.metrics, _tolerance(whole, other)
    return [
        name
        for name in sorted(ours.keys() | theirs.keys())
        if name not in ours
        or name not in theirs
        or not abs(ours[name] - theirs[name]) <= tolerance * max(1.0, abs(ours[name]))
    ]
