"""The contract of an audit: what a check is given, and the property that it certifies.

A check never raises for what an environment does: it says what it saw. What stops it (a sandbox
that fails, the end of its time) makes a property that "cannot tell".
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from agentrl.testing.env_check.episode import Setting
from agentrl.testing.env_check.script import Turn
from agentrl.types import Task


class PropertyName(StrEnum):
    """Properties of a certificate, in the order of its page."""

    DETERMINISTIC = "deterministic"
    """The same seed and actions give the same, in whatever process and order."""
    STABLE = "stable"
    """The same actions are paid the same each time."""
    SAFE_TO_RUN_MANY = "safe_to_run_many"
    """Many rollouts at once cost what they should, and leave nothing behind."""
    NO_LEAKS = "no_leaks"
    """No model reads an answer, a hidden test or what is another rollout's."""
    WALLS_HOLD = "walls_hold"
    """The attacks of the library earn nothing and stop nothing."""
    GRADED_FAIRLY = "graded_fairly"
    """The own solution is paid, and what is none is not."""
    NOT_GUESSABLE = "not_guessable"
    """Answers without the question earn little."""
    HACKED = "hacked"
    """A small policy that is paid only to cheat finds no way to."""
    LEARNABLE = "learnable"
    """A small policy gets better, and not where the rewards are shuffled."""
    DIFFICULTY = "difficulty"
    """The tasks tell policies apart."""
    COST = "cost"
    """Processor, memory and tokens of a rollout."""


class PropertyVerdict(StrEnum):
    """Outcome for one property."""

    HOLDS = "holds"
    """Looked at, and nothing speaks against it."""
    FAILS = "fails"
    """There is evidence against it."""
    CANNOT_TELL = "cannot tell"
    """Looked at, and not enough was seen to judge."""
    NOT_CHECKED = "not checked"
    """Not looked at: not asked for, or no time was left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEvidence:
    """One thing that was done, what was seen, and how to see it again."""

    task: str
    """`Task.id`; empty where it is about no single task."""
    seed: int
    """`EnvContext.seed`."""
    actions: tuple[str, ...]
    """Turns in order, as a line of `agentrl env play` each; shortened where they are huge."""
    seen: str
    """What came of it, in a sentence."""
    replay: str
    """A shell command that shows it again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedProperty:
    """One property of the certificate."""

    name: PropertyName
    """Which one."""
    verdict: PropertyVerdict
    """Whether it holds."""
    sentence: str
    """One plain sentence: what was seen, in words and numbers."""
    numbers: Mapping[str, float] = field(default_factory=dict[str, float])
    """What was measured; a unit stands at the end of a name, as in `cpu_s`."""
    evidence: tuple[AuditEvidence, ...] = ()
    """What supports the verdict; at least one for one that fails."""
    seconds: float = 0.0
    """Wall time that the check took."""
    fix: str = ""
    """What to do about it; empty where it holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditBudget:
    """Time that a check has."""

    ends: float
    """`time.monotonic()` at which it should have come to its verdict."""
    quick: bool = False
    """Whether the whole audit is to take at most a minute."""

    @property
    def left_s(self) -> float:
        """Seconds left, at least 0."""
        return max(0.0, self.ends - time.monotonic())


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSubject:
    """The environment under audit, opened.

    `Episode.begin(subject.setting, stack, task)` and `Episode.played` of `env_check.episode` play
    it; its findings go to `setting.add`.
    """

    setting: Setting
    """Fresh instances (`make_env`), tools, sandboxes, seed and limits of every episode."""
    tasks: Sequence[Task]
    """Its tasks, at least one, as many as the audit loaded."""
    solutions: Mapping[int, Sequence[Turn]]
    """Turns of its own solution by index of the task; without those that have none."""
    labelled: bool
    """Whether the tasks are its own; False where a built-in sample stands in."""
    paid: bool
    """Whether the environment itself pays; False where reward functions of a run file do."""
    target: Mapping[str, Any]
    """Sections `env`, `dataset` and `sandbox` as plain data, for other processes."""
    base: Path
    """Folder that relative paths start from."""
    play: str
    """The shell command that plays it, without `--task` and turns."""


AuditCheck = Callable[[AuditSubject, AuditBudget], Awaitable[AuditedProperty]]
"""`async def check(subject, budget) -> AuditedProperty`."""
