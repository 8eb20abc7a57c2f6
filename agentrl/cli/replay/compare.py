"""Two versions of the same numbers: do they agree, how far are they apart, and where first."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from agentrl.data.store.token_columns import ENTROPY_STEP, LOG_PROB_STEP, SIGNIFICANT_BITS
from agentrl.metrics.names import is_of_machine
from agentrl.types import TrainedTokens

_EXACT = 1e-12
"""Tolerance for results of the same doubles in the same order."""
_ROUNDED = 2.0 ** (1 - SIGNIFICANT_BITS)
"""Of numbers that keep so many bits; two on both sides of a half are one apart."""
TOKEN_FIELDS: Mapping[str, float] = {
    "trained": 0.0,
    "advantages": 1e-6,
    "old_log_probs": LOG_PROB_STEP,
    "ref_log_probs": 2 * LOG_PROB_STEP,
    "log_probs": 2 * LOG_PROB_STEP,
    "entropy": ENTROPY_STEP,
    "correction": _ROUNDED,
    "clip": 0.0,
    "loss": _ROUNDED,
}
"""Columns of trained tokens in the order in which they are computed, with what the store rounds to:
relative for numbers beyond 1, and for `correction` and `loss` always."""
_RELATIVE = ("correction", "loss")


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One number that is not what it was."""

    where: str
    """Metric, rollout, or rollout, row and position."""
    recorded: float | None
    """Value in the run; None where it has no such number."""
    recomputed: float | None
    """Now; None where there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """The result of comparing one kind of number."""

    what: str
    """The kind."""
    compared: int = 0
    """Numbers that both sides have, and those that one lacks."""
    differing: int = 0
    """Numbers that differ by more than what storing them rounds off."""
    largest: float = 0.0
    """Largest absolute difference of all that were compared."""
    first: Difference | None = None
    """The first that differs, in the order in which the numbers are computed."""
    skipped: str = ""
    """Reason why nothing was compared; empty if something was."""


def compare_numbers(
    what: str,
    pairs: Iterable[tuple[str, float | None, float | None]],
    *,
    tolerance: float = _EXACT,
    relative: bool = False,
) -> Agreement:
    """Compare numbers that have names.

    Args:
        what: the kind of number.
        pairs: name, recorded and recomputed; None where a side has no such number.
        tolerance: what may be between two that agree: a share of the larger one, or of 1 if that
            is more.
        relative: whether it is a share of the larger one however small that is.
    """
    compared = differing = 0
    largest = 0.0
    first: Difference | None = None
    for where, recorded, recomputed in pairs:
        compared += 1
        apart, same = _apart(recorded, recomputed, tolerance=tolerance, relative=relative)
        largest = max(largest, apart)
        if not same:
            differing += 1
            first = first or Difference(where=where, recorded=recorded, recomputed=recomputed)
    if not compared:
        return Agreement(what=what, skipped="the run recorded none")
    return Agreement(
        what=what, compared=compared, differing=differing, largest=largest, first=first
    )


def compare_tokens(
    recorded: Sequence[TrainedTokens],
    recomputed: Sequence[TrainedTokens],
    *,
    tolerance: float = 0.0,
    fields: Sequence[str] = tuple(TOKEN_FIELDS),
) -> list[Agreement]:
    """Compare trained tokens, one agreement for each field, and one for which rows there are.

    Args:
        recorded: of the run.
        recomputed: of now; they may come in any order.
        tolerance: added to what storing rounds off.
        fields: of `TrainedTokens`.
    """
    old = {_key(row): row for row in recorded}
    new = {_key(row): row for row in recomputed}
    found = [compare_numbers("rows that were trained", _presence(old, new))]
    both = [(key, old[key], new[key]) for key in sorted(old) if key in new]
    for name in fields:
        if name == "ref_log_probs" and not any(row.ref_log_probs for _, row, _ in both):
            continue
        found.append(
            compare_numbers(
                f"tokens: {name}",
                _positions(name, both),
                tolerance=TOKEN_FIELDS[name] + tolerance,
                relative=name in _RELATIVE,
            )
        )
    return found


def compare_metrics(
    what: str,
    recorded: Mapping[str, float],
    recomputed: Mapping[str, float],
    *,
    tolerance: float = _EXACT,
) -> Agreement:
    """Compare the metrics that were recomputed; one that the run did not log then is passed over,
    since metrics are added from version to version, and so is what a clock made."""
    pairs = (
        (name, recorded.get(name), value)
        for name, value in recomputed.items()
        if not is_of_machine(name)
    )
    return compare_numbers(
        what, (pair for pair in pairs if pair[1] is not None), tolerance=tolerance
    )


def _apart(
    recorded: float | None, recomputed: float | None, *, tolerance: float, relative: bool
) -> tuple[float, bool]:
    """How far two numbers are apart, and whether they agree."""
    if recorded is None or recomputed is None:
        return 0.0, recorded is recomputed
    if recorded == recomputed or (math.isnan(recorded) and math.isnan(recomputed)):
        return 0.0, True
    apart = abs(recorded - recomputed)
    if not math.isfinite(apart):
        return math.inf, False
    scale = max(abs(recorded), abs(recomputed))
    # Numbers next to nothing are relative to nothing.
    allowed = tolerance * (scale if relative else max(1.0, scale)) + 1e-12
    return apart, apart <= allowed


def _key(row: TrainedTokens) -> tuple[str, str, int]:
    return row.group_id, row.rollout_id, row.row_index


def _name(key: tuple[str, str, int]) -> str:
    return f"rollout {key[1]} row {key[2]}"


def _presence(
    old: Mapping[tuple[str, str, int], TrainedTokens],
    new: Mapping[tuple[str, str, int], TrainedTokens],
) -> Iterator[tuple[str, float | None, float | None]]:
    """Which rows there are: their lengths."""
    for key in sorted(old.keys() | new.keys()):
        sides = (float(len(rows[key].trained)) if key in rows else None for rows in (old, new))
        recorded, recomputed = sides
        yield f"{_name(key)}: response positions", recorded, recomputed


def _positions(
    name: str, both: Sequence[tuple[tuple[str, str, int], TrainedTokens, TrainedTokens]]
) -> Iterator[tuple[str, float | None, float | None]]:
    for key, old, new in both:
        ours: Sequence[float] = getattr(old, name) or ()
        theirs: Sequence[float] = getattr(new, name) or ()
        trained = [a or b for a, b in zip(old.trained, new.trained, strict=False)]
        for position, (a, b) in enumerate(zip(ours, theirs, strict=False)):
            if trained[position]:
                yield f"{_name(key)} position {position}", float(a), float(b)
