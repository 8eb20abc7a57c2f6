"""The stored rollouts of a run as the `agentrl traj` commands choose them."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from agentrl.config.load import is_fit_run
from agentrl.errors import RunError, choices

if TYPE_CHECKING:
    from agentrl.data import TrajectoryStore

_NAMED = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One stored rollout, without its tokens."""

    kind: str
    """`train` or `eval/NAME`."""
    step: int
    """Step of the file."""
    task_id: str
    """`Task.id`."""
    rollout_id: str
    """The rollout."""
    reward: float | None
    """Reward of its last row; None when it cannot be trusted."""
    score: float | None
    """Score of its last row; None when it cannot be trusted."""
    termination: str
    """Reason for its end."""


def open_store(run: Path) -> TrajectoryStore:
    """The trajectories of a run directory.

    Raises:
        RunError: it is not a run directory, or holds no trajectories yet.
    """
    from agentrl.data import TrajectoryStore
    from agentrl.data.run.paths import RunPaths

    check_run(run)
    store = TrajectoryStore(RunPaths(run).trajectories)
    if not store.kinds():
        if is_fit_run(run):
            raise RunError(
                f"run {run} is one of `agentrl fit`, which trains on data that exists and samples "
                f"no trajectories; see its curves with: agentrl inspect {run}"
            )
        raise RunError(
            f"run {run} has no trajectories yet; they appear when its first step or evaluation "
            "has been sampled"
        )
    return store


def summaries(
    store: TrajectoryStore, kind: str | None = None, step: int | None = None
) -> list[Summary]:
    """Every stored rollout once, in stored order."""
    from agentrl.data.store.columns import unescape

    columns = [field.name for field in dataclasses.fields(Summary)]
    found: dict[tuple[str, int, str], Summary] = {}
    for row in store.table(columns, kind, step=step).to_pylist():
        text: dict[str, Any] = {k: unescape(v) if isinstance(v, str) else v for k, v in row.items()}
        found[text["kind"], text["step"], text["rollout_id"]] = Summary(**text)
    return list(found.values())


def check_kind(store: TrajectoryStore, kind: str) -> None:
    """Refuse a kind that is not stored.

    Raises:
        RunError: names those that are.
    """
    from agentrl.inspect.read.safe_terminal import visible

    kinds = store.kinds()
    if kind not in kinds:
        # Names of datasets are free text, and a message is printed as it is.
        raise RunError(f"--kind: {choices(kind, [visible(name).plain for name in kinds])}")


def step_number(step: str, steps: Sequence[int] | set[int]) -> int:
    """The step that `first`, `last` or a number means.

    Raises:
        RunError: no such step.
    """
    have = sorted(steps)
    if step in ("first", "last"):
        return have[0 if step == "first" else -1]
    if not step.isdecimal():
        raise RunError(f"--step {step!r}: expected a number, 'first' or 'last'")
    if int(step) not in have:
        raise RunError(
            f"--step {step}: not stored; there are {len(have)} steps from {have[0]} to {have[-1]}"
        )
    return int(step)


def unknown(option: str, wanted: str, known: Sequence[str]) -> str:
    """The words for an id that is not stored: near misses, or some of those that are."""
    names = list(dict.fromkeys(known))
    near = get_close_matches(wanted, names, n=3)
    hint = f"did you mean {', '.join(map(repr, near))}?" if near else f"there are {names[:5]}"
    more = f" and {len(names) - 5} more" if not near and len(names) > 5 else ""
    return f"{option} {wanted!r} is not stored here; {hint}{more}"


def console() -> Console:
    """The console of the commands; a character it cannot show does not end them."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    return Console()


def check_run(run: Path) -> None:
    """Refuse what is no run directory.

    Raises:
        RunError: says what is there instead.
    """
    from agentrl.data.run.read import is_run

    if not run.is_dir():
        parent = run.parent
        siblings = [p.name for p in parent.iterdir() if is_run(p)] if parent.is_dir() else []
        near = get_close_matches(run.name, siblings) or sorted(siblings)[:_NAMED]
        there = f": in {parent}, {choices(run.name, near)}" if near else ""
        raise RunError(f"run directory {run} does not exist{there}")
    if not is_run(run):
        raise RunError(
            f"{run} is not a run directory: it has neither trajectories/ nor config.yaml, but "
            f"{sorted(p.name for p in run.iterdir())[:8]}"
        )
