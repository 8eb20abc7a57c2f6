"""Compare the sampler's log-probabilities with the trainer's, token by token, from a run's files.

    gap = log-probability of the trainer before the step - log-probability of the sampler

of every trained token, joined from the trajectories and from `tokens/`. `mismatch_causes` says what
the pattern looks like.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agentrl.cli.mismatch.causes import find_causes
from agentrl.cli.mismatch.records import Cause
from agentrl.cli.mismatch.token_table import GapTable, Whole, read_gaps
from agentrl.cli.replay.recorded_run import RecordedRun, pick_step
from agentrl.errors import RunError

METRIC = "sampling/sampling_logp_difference/mean"
"""Mean absolute gap of a step, as it is logged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """The tokens that have something in common."""

    label: str
    """Name of the slice."""
    tokens: int
    """Number of its tokens."""
    mean_size: float
    """Their mean absolute gap, in nats."""
    mean: float
    """Their mean gap: below 0 the trainer thinks less of the tokens."""
    largest: float
    """The largest absolute gap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """The gap along one property of tokens."""

    name: str
    """The property."""
    slices: tuple[Slice, ...]
    """Slices that have tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorstToken:
    """One token with a large gap."""

    rollout_id: str
    """Whose."""
    row_index: int
    """Row of it."""
    response_position: int
    """Position in the response of the row."""
    turn: int
    """Assistant turn, from 1."""
    in_turn: int
    """Which sampled token of the turn, from 1."""
    token_id: int
    """Id of the token."""
    sampler: float
    """Log-probability at the sampler."""
    trainer: float
    """Log-probability at the trainer."""
    lag: int
    """Age of the weights that sampled it, in steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MismatchReport:
    """The differences of one step, by pattern, and their likely causes."""

    step: int
    """Which."""
    why_step: str
    """Reason for this step."""
    whole: Slice
    """All trained tokens."""
    p99: float
    """99 % of the tokens have no larger gap."""
    breakdowns: tuple[Breakdown, ...]
    """The gap along what tokens differ in."""
    causes: tuple[Cause, ...]
    """Most likely first; empty if sampler and trainer agree."""
    worst: tuple[WorstToken, ...]
    """The largest gaps."""


def mismatch(run: RecordedRun, step: int | None = None, *, worst: int = 10) -> MismatchReport:
    """Look into the gap of a step.

    Args:
        run: which run.
        step: which step; None takes the one with the largest mean gap of those with tokens.
        worst: how many single tokens to list.

    Raises:
        RunError: the step is not stored, or nothing is known of its tokens.
    """
    number, why = _choose(run, step)
    table = read_gaps(run, number)
    order = np.argsort(-table.size, kind="stable")[:worst]
    return MismatchReport(
        step=number,
        why_step=why,
        whole=_slice("all trained tokens", table, np.ones(len(table), dtype=bool)),
        p99=float(np.quantile(table.size, 0.99)),
        breakdowns=breakdowns(table),
        causes=find_causes(table, run.plan, curve=run.curve(METRIC)),
        worst=tuple(_worst(table, int(index)) for index in order),
    )


def _choose(run: RecordedRun, step: int | None) -> tuple[int, str]:
    if step is not None:
        return pick_step(run, step), "as asked"
    known = sorted(set(run.tokens.steps()) & set(run.store.steps("train")))
    if not known:
        keeps = "" if run.plan.trainer.log.tokens else "; log.tokens is false, set it to true"
        raise RunError(
            f"{run.path} keeps no tokens of a trained step, and without them a gap cannot be "
            f"traced{keeps}"
        )
    gaps = run.curve(METRIC)
    worst = max(known, key=lambda at: gaps.get(at, 0.0))
    return worst, f"the largest mean gap of {len(known)} steps"


def breakdowns(table: GapTable) -> tuple[Breakdown, ...]:
    """The gap along everything that tokens differ in; what has one slice only is left out."""
    share = np.exp(np.minimum(0.0, table.sampler))
    edges = np.quantile(table.position, (0.25, 0.5, 0.75))
    found = (
        _along("turn", table, [(f"turn {n}", table.turn == n) for n in _values(table.turn)]),
        _along("token of its turn", table, _spans(table.in_turn)),
        _along("age of the weights", table, [_age(table, n) for n in _values(table.lag)]),
        _along(
            "row of its rollout", table, [(f"row {n}", table.row == n) for n in _values(table.row)]
        ),
        _along(
            "sampler's probability",
            table,
            [
                ("above 0.9", share > 0.9),
                ("0.5 to 0.9", (share > 0.5) & (share <= 0.9)),
                ("0.1 to 0.5", (share > 0.1) & (share <= 0.5)),
                ("below 0.1", share <= 0.1),
            ],
        ),
        _along(
            "place in the context",
            table,
            [(f"quarter {n + 1}", np.searchsorted(edges, table.position) == n) for n in range(4)],
        ),
    )
    return tuple(item for item in found if len(item.slices) > 1)


def _values(column: Whole) -> Sequence[int]:
    """At most eight, so that a table stays one."""
    return [int(value) for value in np.unique(column)[:8]]


def _age(table: GapTable, lag: int) -> tuple[str, NDArray[np.bool_]]:
    return ("the step's own" if lag == 0 else f"{lag} steps old"), table.lag == lag


def _spans(in_turn: Whole) -> list[tuple[str, NDArray[np.bool_]]]:
    return [
        ("first", in_turn == 1),
        ("second", in_turn == 2),
        ("3 to 8", (in_turn >= 3) & (in_turn <= 8)),
        ("later", in_turn > 8),
    ]


def _along(name: str, table: GapTable, parts: Sequence[tuple[str, NDArray[np.bool_]]]) -> Breakdown:
    slices = tuple(_slice(label, table, chosen) for label, chosen in parts if chosen.any())
    return Breakdown(name=name, slices=slices)


def _slice(label: str, table: GapTable, chosen: NDArray[np.bool_]) -> Slice:
    size = table.size[chosen]
    return Slice(
        label=label,
        tokens=len(size),
        mean_size=float(size.mean()),
        mean=float(table.gap[chosen].mean()),
        largest=float(size.max()),
    )


def _worst(table: GapTable, index: int) -> WorstToken:
    return WorstToken(
        rollout_id=table.rollout_ids[int(table.rollout[index])],
        row_index=int(table.row[index]),
        response_position=int(table.response[index]),
        turn=int(table.turn[index]),
        in_turn=int(table.in_turn[index]),
        token_id=int(table.token[index]),
        sampler=float(table.sampler[index]),
        trainer=float(table.trainer[index]),
        lag=int(table.lag[index]),
    )
