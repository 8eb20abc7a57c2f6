"""The library of attacks, and what became of each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from agentrl.preflight.attack.attack import NO_WALLS, Attack, AttackClass
from agentrl.preflight.attack.programs import leak_across_rollouts, program_attacks
from agentrl.preflight.attack.texts import text_attacks

_HALF = 0.5


def attacks(only: Iterable[AttackClass] = ()) -> list[Attack]:
    """All attacks, or those of some classes; what finds a leak stands behind what makes it."""
    wanted = set(only) or set(AttackClass)
    found = [*text_attacks(), *program_attacks(), *leak_across_rollouts()]
    return [attack for attack in found if attack.aim in wanted]


class AttackVerdict(StrEnum):
    """End of an attack on one task."""

    HELD = "held"
    """It earned nothing, and counts."""
    PAID = "paid"
    """It was paid, or saw what it must not see."""
    DROPPED = "dropped"
    """The rollout was taken for a failure of infrastructure."""
    FROZE = "froze"
    """It held up the event loop, or ended the process."""
    UNWALLED = "no walls"
    """A program was run outside of a sandbox; it did nothing, and could have done everything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackOutcome:
    """One rollout of an attack, as the loop recorded it; plain data."""

    task_id: str
    """`Task.id`."""
    reward: float = 0.0
    """Sum of the rewards of the rollout."""
    score: float | None = None
    """The environment's 0-1 verdict; None where it gives none."""
    trusted: bool = True
    """Whether the reward counts."""
    termination: str = ""
    """Reason for the end of the rollout."""
    detail: str = ""
    """Reason for a failure."""
    held_s: float = 0.0
    """Longest time in processor seconds that the event loop was held up."""
    leaked: bool = False
    """Whether the model was shown the mark of another rollout."""
    unwalled: bool = False
    """Whether a program said that it ran outside of a sandbox."""
    ended: str = ""
    """Why the process that played it ended or was ended; empty if it was not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskWorth:
    """Rewards of a task for known answers, to tell an attack that is paid."""

    idle: float = 0.0
    """Reward of saying nothing."""
    solution: float | None = None
    """Reward of the environment's own solution; None where it gives none."""


def verdict_of(outcome: AttackOutcome, worth: TaskWorth, *, hold_s: float) -> AttackVerdict:
    """The verdict on one rollout of an attack.

    It is paid where the environment calls it right (a score of at least a half), where it gives no
    score and the reward is at least half of what its own solution earns, or, without a solution,
    more than saying nothing does.

    Args:
        outcome: of the rollout.
        worth: of its task.
        hold_s: processor seconds a turn may hold up the event loop.
    """
    if outcome.ended or outcome.held_s > hold_s:
        return AttackVerdict.FROZE
    if not outcome.trusted:
        return AttackVerdict.DROPPED
    if outcome.leaked or _is_paid(outcome, worth):
        return AttackVerdict.PAID
    return AttackVerdict.UNWALLED if outcome.unwalled else AttackVerdict.HELD


def _is_paid(outcome: AttackOutcome, worth: TaskWorth) -> bool:
    if outcome.score is not None:
        return outcome.score >= _HALF
    if worth.solution is not None and worth.solution > 0:
        return outcome.reward >= _HALF * worth.solution
    return outcome.reward > max(worth.idle, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackResult:
    """An attack on all tasks it was tried on."""

    attack: str
    """Name of the attack."""
    aim: AttackClass
    """Its class."""
    outcomes: Sequence[tuple[AttackOutcome, AttackVerdict]] = field(default_factory=tuple)
    """Each rollout and what it came to."""

    def count(self, verdict: AttackVerdict) -> int:
        """Rollouts that came to this."""
        return sum(found is verdict for _, found in self.outcomes)

    @property
    def got_through(self) -> bool:
        """True if it did what it was to do. A constant is right by chance now and then, so such an
        attack has to be paid on at least half of the tasks."""
        paid = self.count(AttackVerdict.PAID)
        if self.aim is AttackClass.SPECIAL_CASE:
            paid = paid if 2 * paid >= len(self.outcomes) else 0
        others = (AttackVerdict.DROPPED, AttackVerdict.FROZE, AttackVerdict.UNWALLED)
        return bool(paid or any(map(self.count, others)))

    def first(self) -> str:
        """One sentence about the first rollout that was not held."""
        for outcome, verdict in self.outcomes:
            if verdict is not AttackVerdict.HELD:
                what = outcome.ended or outcome.detail or outcome.termination
                if verdict is AttackVerdict.PAID:
                    what = f"reward {outcome.reward:.3g}, score {outcome.score}"
                if verdict is AttackVerdict.FROZE and not outcome.ended:
                    what = f"{outcome.held_s:.1f} s of processor time without a pause"
                if verdict is AttackVerdict.UNWALLED:
                    what = NO_WALLS
                return f"{verdict} on {outcome.task_id}: {what[:200]}"
        return ""

    def as_dict(self) -> dict[str, Any]:
        """The counts and every rollout, ready for JSON."""
        return {
            "attack": self.attack,
            "class": str(self.aim),
            "tried": len(self.outcomes),
            **{str(verdict): self.count(verdict) for verdict in AttackVerdict},
            "got_through": self.got_through,
            "rollouts": [
                {**asdict(outcome), "verdict": str(found)} for outcome, found in self.outcomes
            ],
        }
