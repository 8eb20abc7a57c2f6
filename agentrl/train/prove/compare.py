"""Two outcomes side by side: whether they are the same, and where they part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from agentrl.finding import Finding, Status
from agentrl.train.prove.evaluate import UpdateOutcome

TOLERANCE = 1e-9
"""Largest relative difference of two gradients that are called the same, in float64."""
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
    """A failed check that needs no number to say so."""
    return ProofFinding(name=name, status=Status.FAIL, detail=detail)


def compared(name: str, whole: UpdateOutcome, other: UpdateOutcome) -> ProofFinding:
    """Compare two gradients, and name the tokens that make the difference."""
    error = _relative_error(other.gradient, whole.gradient)
    if not error <= TOLERANCE:
        detail = _where(whole, other)
        return ProofFinding(name=name, status=Status.FAIL, error=error, detail=detail)
    metrics = _metrics_that_differ(whole.metrics, other.metrics)
    note = f"metrics differ: {', '.join(metrics[:MOST_NAMED])}" if metrics else ""
    return ProofFinding(name=name, status=Status.OK, error=error, detail=note)


def _relative_error(ours: Mapping[str, Tensor], reference: Mapping[str, Tensor]) -> float:
    """|ours - reference| / |reference| over all parameters together."""
    difference = sum(float((ours[n] - reference[n]).square().sum()) for n in reference)
    size = sum(float(reference[n].square().sum()) for n in reference)
    return (difference / size) ** 0.5


def _where(whole: UpdateOutcome, other: UpdateOutcome) -> str:
    """Which tokens make the difference."""
    lost = whole.slopes.keys() ^ other.slopes.keys()
    keys = sorted(whole.slopes.keys() & other.slopes.keys())
    largest = max((abs(slope) for slope in whole.slopes.values()), default=0.0)
    off = [k for k in keys if not abs(other.slopes[k] - whole.slopes[k]) <= TOLERANCE * largest]
    off.sort(key=lambda key: -abs(other.slopes[key] - whole.slopes[key]))
    if lost and any({**whole.slopes, **other.slopes}[key] for key in lost):
        named = ", ".join(map(str, sorted(lost)[:MOST_NAMED]))
        return f"{len(lost)} tokens are looked at in one of the two only: {named}"
    if not off:
        return "every token has the same slope: the difference is in the forward pass"
    named = ", ".join(
        f"{key} ({other.slopes[key]:.4g} instead of {whole.slopes[key]:.4g})"
        for key in off[:MOST_NAMED]
    )
    return f"{len(off)} of {len(keys)} tokens, {other.micro_batches} micro-batches: {named}"


def _metrics_that_differ(whole: Mapping[str, float], other: Mapping[str, float]) -> list[str]:
    return [
        name
        for name in sorted(whole.keys() | other.keys())
        if name not in whole
        or name not in other
        or not abs(whole[name] - other[name]) <= TOLERANCE * max(1.0, abs(whole[name]))
    ]
