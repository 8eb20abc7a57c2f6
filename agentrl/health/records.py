"""Input and output records of detectors. Pure data: no file, no clock, no model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from agentrl.types.finding import Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One metric over the steps that have it; steps ascend, values are finite."""

    steps: tuple[int, ...]
    """Optimizer steps; 0 is before training."""
    values: tuple[float, ...]
    """One for each step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutFacts:
    """Facts of one stored rollout that detectors read."""

    step: int
    """Step it was trained in, or after which it was evaluated."""
    kind: str
    """`train` or `eval/NAME`."""
    task_id: str
    """`Task.id`."""
    group_id: str
    """Id of the group of its siblings."""
    rollout_id: str
    """Id of the rollout."""
    reward: float | None
    """None when it cannot be trusted."""
    score: float | None
    """The environment's 0-1 verdict."""
    advantage: float | None
    """None when it was in no batch."""
    termination: str
    """A `Termination` value."""
    action_tokens: int
    """Tokens the policy sampled."""
    duration_s: float
    """Wall time in seconds."""
    turns: int
    """Assistant turns."""
    tool_calls: int
    """Calls that were run or refused."""
    tool_errors: int
    """Calls whose status is not `ok`."""
    text: str
    """Text that the policy wrote, turns joined by newlines."""
    parts: Mapping[str, float] = field(default_factory=dict[str, float])
    """Named parts of the reward."""
    limit: str = ""
    """Key of `rollout` whose limit truncated it, as `max_turn_tokens`; empty if none did."""
    copied: float | None = None
    """`copied_share` of the text and the prompt."""
    errors: tuple[str, ...] = ()
    """One line of each error, a few at most: of calls that failed, and of what it was lost to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """All a detector looks at."""

    metrics: Mapping[str, Series]
    """Series by name, as logged."""
    rollouts: Sequence[RolloutFacts] = ()
    """A sample of the stored rollouts, by step; enough of the first and the latest steps."""
    config: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Dotted key to value, algorithm resolved; empty where the run's config cannot be read."""
    not_finite: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    """Steps at which a metric was NaN or infinite; those values are not in `metrics`."""
    notes: tuple[str, ...] = ()
    """Parts of the run that could not be read, in words."""


LARGEST = 1e100
"""Numbers beyond it are taken as infinite: their squares and sums could not be computed with."""


class Dating(StrEnum):
    """The part of a piece of evidence that dates since when something is wrong."""

    NOTICED = "noticed"
    """By the change point of its metric before its first step, at which a bound was passed."""
    MOVEMENT = "movement"
    """By the change point of its metric, which it shows from its start to its end."""
    EXACT = "exact"
    """By its first step."""
    NONE = "none"
    """It does not, as a reward that rises while the score falls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One number, or a stretch of a curve, that led to a verdict."""

    text: str
    """Description in words, numbers included."""
    metric: str = ""
    """The curve it was seen on; empty when it is from rollouts."""
    first_step: int | None = None
    """First step of the stretch."""
    last_step: int | None = None
    """Last step of the stretch."""
    rollout_ids: tuple[str, ...] = ()
    """Rollouts that show it."""
    dating: Dating = Dating.NOTICED
    """How it dates the start; the first piece that does decides for the verdict."""
    sound_step: int | None = None
    """The last step looked at that was still sound, where only some steps are looked at: it began
    after this one and no later than `first_step`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lever:
    """A change of the config that helps."""

    key: str
    """Dotted config key."""
    value: Any
    """Value to set, derived from the present value where there is one."""
    why: str
    """Reason in one sentence, with its source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict(Finding):
    """A detector's judgement of a run: `name` is the detector, `detail` its one-line title."""

    first_step: int | None = None
    """First step of the trouble; None where nothing was found."""
    last_step: int | None = None
    """Last step of the trouble."""
    evidence: tuple[Evidence, ...] = ()
    """Numbers and curves that led to it."""
    levers: tuple[Lever, ...] = ()
    """Changes of the config that help, best first."""
    explained_by: frozenset[str] = frozenset()
    """Detectors of which this is a consequence, as its own evidence shows, if they speak of the
    same time."""

    def as_dict(self) -> dict[str, Any]:
        """The verdict as `agentrl doctor --json` prints it and the page of a run reads it."""
        fields = asdict(self)
        del fields["fix"], fields["explained_by"]
        for piece in fields["evidence"]:
            del piece["dating"], piece["sound_step"]
        name, status, detail = (fields.pop(key) for key in ("name", "status", "detail"))
        return {"detector": name, "status": str(status), "title": detail, **fields}
