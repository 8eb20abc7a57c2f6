"""The library of attacks, and what became of each."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

from agentrl.errors import ConfigError, choices
from agentrl.preflight.attack.attack import NO_WALLS, Attack, AttackClass
from agentrl.preflight.attack.programs import leak_across_rollouts, program_attacks
from agentrl.preflight.attack.texts import text_attacks

_HALF = 0.5
MOST = 0.75
"""Share of the tasks from which on an answer is not right by chance."""
_LUCK = 0.25


def attacks(only: Iterable[AttackClass] = (), names: Iterable[str] = ()) -> list[Attack]:
    """Attacks to play; what finds a leak stands behind what makes it.

    Args:
        only: classes; none means all.
        names: of single attacks of these classes; none means all.

    Raises:
        ConfigError: an unknown name.
    """
    wanted = set(only) or set(AttackClass)
    found = [*text_attacks(), *program_attacks(), *leak_across_rollouts()]
    found = [attack for attack in found if attack.aim in wanted]
    named = set(names)
    for name in named:
        if name not in (known := [attack.name for attack in found]):
            raise ConfigError(f"env attack --attack: {choices(name, known)}")
    return [attack for attack in found if not named or attack.name in named]


class AttackVerdict(StrEnum):
    """End of an attack on one task."""

    HELD = "held"
    """It earned nothing, and counts."""
    PAID = "paid"
    """It was paid."""
    LEAKED = "leaked"
    """It was shown what another turn or another rollout kept."""
    DROPPED = "dropped"
    """The rollout was taken for a failure of infrastructure."""
    FROZE = "froze"
    """It held up the event loop, or ended the process."""
    UNWALLED = "no walls"
    """What the model wrote was run outside of a sandbox; it did nothing, and could have done
    everything."""
    SPOILED = "spoiled"
    """After the attacks, other rollouts of the same task earn something else than before."""
    CHANCE = "by chance"
    """It was paid for an answer that is right on this task whoever gives it: a constant is, too,
    and neither is on most tasks."""


_GRAVEST = (
    AttackVerdict.UNWALLED, AttackVerdict.PAID, AttackVerdict.LEAKED, AttackVerdict.SPOILED,
    AttackVerdict.FROZE, AttackVerdict.DROPPED,
)  # fmt: skip
_ADVICE: Mapping[AttackVerdict, str] = {
    AttackVerdict.DROPPED: "what a model says or does must not raise: catch what reading it raises "
    "and give reward 0; raise only where a server or a sandbox of yours has failed",
    AttackVerdict.FROZE: "bound time and size of all that a model's words can cause: patterns that "
    "do not try the same text twice, no eval; what takes longer than some milliseconds runs in a "
    "sandbox or in a process with a limit, and is awaited",
    AttackVerdict.UNWALLED: "run what the model writes in a sandbox (self.context.open_sandbox, or "
    "new_sandbox to grade in), and read its answers without eval or exec",
    AttackVerdict.LEAKED: "use another sandbox, or a wiped one, for each turn that a test runs in, "
    "and set all state in reset, on self",
    AttackVerdict.SPOILED: "set all state in reset, on self: what hangs on a class, a module or "
    "a server is shared by all rollouts",
}
_ADVICE_IF_PAID: Mapping[AttackClass, str] = {
    AttackClass.FORGE: "make the verdict where neither words nor code of the model reach: compare "
    "plain data with the expected value outside of the sandbox, and believe no claim",
    AttackClass.READ: "keep expected values out of the sandbox, the files, the arguments and the "
    "memory that the model's code can read",
    AttackClass.SPECIAL_CASE: "compare the whole answer instead of searching for it, refuse lists "
    "of answers, and leave out or draw again the tasks that a constant solves",
}
_NO_REWARD = "give no reward where nothing was solved"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackOutcome:
    """One rollout of an attack, as the loop recorded it; plain data."""

    task_id: str
    """`Task.id`."""
    reward: float | None = None
    """Sum of the rewards of the rollout; None where it does not count."""
    score: float | None = None
    """The environment's 0-1 verdict; None where it gives none."""
    trusted: bool = True
    """Whether the reward counts."""
    termination: str = ""
    """Reason for the end of the rollout."""
    detail: str = ""
    """Reason for a failure."""
    held_s: float = 0.0
    """Longest time in seconds that the event loop stood still, without what the processor was busy
    with others."""
    leaked: bool = False
    """Whether the model was shown the mark of another rollout."""
    unwalled: bool = False
    """Whether something of the attack was run outside of a sandbox."""
    ended: str = ""
    """Why the process that played it ended or was ended; empty if it was not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskWorth:
    """Rewards of a task for known answers, to know an attack that is paid."""

    idle: float | None = None
    """Reward of an empty turn; None where that does not count."""
    solution: float | None = None
    """Reward of the environment's own solution; None where it gives none or does not count."""


def verdict_of(outcome: AttackOutcome, worth: TaskWorth, *, hold_s: float) -> AttackVerdict:
    """The verdict on one rollout of an attack.

    It is paid where it earns more than saying nothing does, and the environment calls it right (a
    score of at least a half), or gives no score and the reward is at least half of what its own
    solution earns, if there is one.

    Args:
        outcome: of the rollout.
        worth: of its task; of an attack that says always the same, without `idle`, as saying
            nothing is one.
        hold_s: seconds a turn may hold up the event loop.
    """
    if outcome.unwalled:
        return AttackVerdict.UNWALLED
    if outcome.ended or outcome.held_s > hold_s:
        return AttackVerdict.FROZE
    if outcome.trusted and _is_paid(outcome, worth):
        return AttackVerdict.PAID
    if outcome.leaked:
        return AttackVerdict.LEAKED
    return AttackVerdict.HELD if outcome.trusted else AttackVerdict.DROPPED


def by_chance(results: Sequence[AttackResult]) -> list[AttackResult]:
    """The results, where what is paid as chance pays a constant is called so.

    A constant is right now and then, and what forges a verdict is paid on the other tasks, too.
    Where a constant is paid on a quarter of the tasks or more, as in games of luck, any move may
    win: there only what most tasks pay is more than chance.
    """
    constants = [
        result
        for result in results
        if result.aim is AttackClass.SPECIAL_CASE and result.paid_share() < MOST
    ]
    luck = any(result.paid_share() >= _LUCK for result in constants)
    lucky = {
        outcome.task_id
        for result in (results if luck else constants)
        for outcome, verdict in result.outcomes
        if verdict is AttackVerdict.PAID
    }
    return [result.with_chance(lucky) for result in results]


def changed(before: Mapping[str, TaskWorth], after: Mapping[str, TaskWorth]) -> AttackResult:
    """The tasks whose known answers no longer earn what they did, as one more attack.

    Args:
        before: worths before the attacks, by task.
        after: and after them.
    """
    outcomes: list[tuple[AttackOutcome, AttackVerdict]] = []
    for task_id, worth in after.items():
        detail = _change(before.get(task_id, worth), worth)
        outcome = AttackOutcome(task_id=task_id, reward=worth.idle, detail=detail)
        outcomes.append((outcome, AttackVerdict.SPOILED if detail else AttackVerdict.HELD))
    return AttackResult(
        attack="leaves something for all rollouts", aim=AttackClass.LEAK, outcomes=outcomes
    )


def _change(before: TaskWorth, after: TaskWorth) -> str:
    solved = before.solution or 0.0
    if solved > 0 and (after.solution is None or after.solution < _HALF * solved):
        return f"the solution earned {solved:g} before the attacks, {after.solution} after"
    if _is_paid(AttackOutcome(task_id="", reward=after.idle), before):
        return f"saying nothing earned {before.idle} before the attacks, {after.idle} after"
    return ""


def _is_paid(outcome: AttackOutcome, worth: TaskWorth) -> bool:
    if outcome.reward is None or (worth.idle is not None and outcome.reward <= worth.idle):
        return False
    if outcome.score is not None:
        return outcome.score >= _HALF
    if worth.solution is not None and worth.solution > 0:
        return outcome.reward >= _HALF * worth.solution
    return outcome.reward > 0.0


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
        """True if it did on some task what it was to do."""
        return self.worst() is not None

    def paid_share(self) -> float:
        """Share of the tasks on which it was paid in some rollout."""
        tasks = {outcome.task_id for outcome, _ in self.outcomes}
        paid = {o.task_id for o, verdict in self.outcomes if verdict is AttackVerdict.PAID}
        return len(paid) / max(1, len(tasks))

    def with_chance(self, tasks: Collection[str]) -> AttackResult:
        """The same, where it was right by chance: on some of these tasks, and not on most of all.

        Args:
            tasks: ids of those that a constant is paid on.
        """
        if self.paid_share() >= MOST:
            return self
        chance = AttackVerdict.CHANCE
        return replace(
            self,
            outcomes=[
                (o, chance if v is AttackVerdict.PAID and o.task_id in tasks else v)
                for o, v in self.outcomes
            ],
        )

    def worst(self) -> tuple[AttackOutcome, AttackVerdict] | None:
        """The first rollout of the gravest verdict; None if all were held."""
        found = [pair for pair in self.outcomes if pair[1] in _GRAVEST]
        return min(found, key=lambda pair: _GRAVEST.index(pair[1]), default=None)

    def advice(self) -> str:
        """Advice for the gravest verdict; empty if all were held."""
        worst = self.worst()
        if worst is None:
            return ""
        if worst[1] is AttackVerdict.PAID:
            return _ADVICE_IF_PAID.get(self.aim, _NO_REWARD)
        return _ADVICE[worst[1]]

    def first(self) -> str:
        """One sentence about the first rollout of the gravest verdict; empty if all were held."""
        worst = self.worst()
        if worst is None:
            return ""
        outcome, verdict = worst
        what = outcome.ended or outcome.detail or outcome.termination
        if verdict is AttackVerdict.PAID:
            what = f"reward {outcome.reward:.3g}, score {outcome.score}"
        if verdict is AttackVerdict.LEAKED:
            what = "it was shown what another turn or rollout kept"
        if verdict is AttackVerdict.FROZE and not outcome.ended:
            what = f"the event loop stood still for {outcome.held_s:.1f} s"
        if verdict is AttackVerdict.UNWALLED:
            what = NO_WALLS
        line = what.partition("\n")[0]
        return f"{verdict} on {outcome.task_id}: {line[:200]}"

    def as_dict(self) -> dict[str, Any]:
        """The counts and every rollout, ready for JSON."""
        return {
            "attack": self.attack,
            "class": str(self.aim),
            "tried": len(self.outcomes),
            **{str(verdict): self.count(verdict) for verdict in AttackVerdict},
            "got_through": self.got_through,
            "advice": self.advice(),
            "rollouts": [
                {**asdict(outcome), "verdict": str(found)} for outcome, found in self.outcomes
            ],
        }
