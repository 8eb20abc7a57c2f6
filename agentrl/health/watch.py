"""Detectors beside a run that goes on: its history in memory, and what changed since last time.

No file and no clock: the caller brings metrics and rollouts, and decides when to look.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentrl.health.diagnose import diagnose
from agentrl.health.history import series_of
from agentrl.health.records import History, RolloutFacts, Verdict
from agentrl.health.rollouts import sampled_steps
from agentrl.types.finding import Status

_QUIET = (Status.OK, Status.UNKNOWN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """Verdicts of all detectors at one moment."""

    verdicts: tuple[Verdict, ...]
    """Verdicts of all detectors."""
    changed: tuple[Verdict, ...]
    """Verdicts to report: a finding that is new, worse, milder or gone."""


class RunWatch:
    """The history of one run. Not for two threads at once."""

    def __init__(self, config: Mapping[str, Any], *, said: Mapping[str, str] | None = None) -> None:
        """Begin with an empty history.

        Args:
            config: dotted key to value, as in `History.config`.
            said: detector to the status that was said last, by an earlier process.
        """
        self._config = dict(config)
        self._said = dict(said or {})
        self._values: dict[str, dict[int, float]] = {}
        self._rollouts: dict[tuple[str, int], Sequence[RolloutFacts]] = {}

    def see(self, step: int, values: Mapping[str, float]) -> None:
        """Metrics of a step; a later value of the same step wins."""
        for name, value in values.items():
            self._values.setdefault(name, {})[step] = value

    def has(self, kind: str, step: int) -> bool:
        """True if rollouts of this step have been seen, or newer ones of their kind."""
        return any(known >= step for name, known in self._rollouts if name == kind)

    def keep(self, kind: str, step: int, facts: Sequence[RolloutFacts]) -> None:
        """Rollouts of a step; the first and the latest steps stay, and some between."""
        self._rollouts[kind, step] = facts
        steps = sorted(known for name, known in self._rollouts if name == kind)
        for gone in set(steps) - set(sampled_steps(steps)):
            del self._rollouts[kind, gone]

    def look(self) -> Look:
        """Judge the history so far by every detector."""
        curves, not_finite = series_of(self._values)
        by_step = sorted(self._rollouts, key=lambda key: (key[1], key[0] != "train", key[0]))
        history = History(
            metrics=curves,
            rollouts=[fact for key in by_step for fact in self._rollouts[key]],
            config=self._config,
            not_finite=not_finite,
        )
        verdicts = tuple(diagnose(history))
        changed = tuple(verdict for verdict in verdicts if self._is_news(verdict))
        self._said.update((verdict.name, verdict.status) for verdict in verdicts)
        return Look(verdicts=verdicts, changed=changed)

    def _is_news(self, verdict: Verdict) -> bool:
        before = self._said.get(verdict.name, Status.UNKNOWN)
        if before in _QUIET and verdict.status in _QUIET:
            return False
        return before != verdict.status
