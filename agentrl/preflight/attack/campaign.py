"""All attacks on one environment, each in a process that can be ended.

The process says several times a second that its event loop is alive. What freezes it for good is
found by its silence: it is killed, the attack is written down as one that froze it, and the next
one goes on in a new process.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from agentrl.errors import RunError
from agentrl.machine.processes.child import ChildEnded, ChildProcess
from agentrl.preflight.attack.attack import Attack, AttackClass
from agentrl.preflight.attack.library import (
    AttackOutcome,
    AttackResult,
    AttackVerdict,
    TaskWorth,
    attacks,
    by_chance,
    changed,
    verdict_of,
)

_PLAYER = "agentrl.preflight.attack.player:serve"
_START_S = 300.0
_GRACE_S = 5.0
_SHOWN_BYTES = 1500
_SECOND_LOOK = 0.5
"""Share of tasks that pay for an attack from which on it is tried on more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackPlan:
    """The environment under attack, and the limits of the attacks; plain data."""

    env: Mapping[str, Any]
    """An `env` section."""
    dataset: Mapping[str, Any]
    """A `dataset` section."""
    sandbox: Mapping[str, Any] | None = field(default_factory=lambda: {"backend": "auto"})
    """A `sandbox` section; None for none."""
    base: Path = Path()
    """Folder that relative paths start from."""
    tokenizer: str = "agentrl.testing.byte_tokenizer:ByteTokenizer"
    """Import string of what makes the tokenizer that attacks are written with."""
    tasks: int = 4
    """Tasks that every attack is played on, spread over the dataset."""
    more_tasks: int = 20
    """Further tasks, for an attack that at least half of those above pay: it may be luck."""
    seed: int = 0
    """Seed of every rollout."""
    hold_s: float = 1.0
    """Seconds that one turn may hold up the event loop."""
    silence_s: float = 30.0
    """Seconds without a sign of the event loop after which the process is killed."""
    attack_s: float = 3600.0
    """Wall-clock seconds that one attack may take on all its tasks; rollouts have limits, too."""
    throwaway: bool = False
    """Whether programs do harm even where nothing holds them."""
    only: Iterable[AttackClass] = ()
    """Classes to play; none means all."""
    names: Iterable[str] = ()
    """Single attacks to play; none means all of the classes."""


class _Player:
    """The process that plays, started again after it was killed."""

    def __init__(self, plan: AttackPlan, log: IO[bytes], reached: Path) -> None:
        self._plan = plan
        self._log = log
        self._reached = reached
        self._child: ChildProcess | None = None
        self.worths: Mapping[str, TaskWorth] = {}

    def start(self) -> None:
        """Start the process, unless it is there.

        Raises:
            RunError: the environment cannot be played at all.
        """
        if self._child is not None:
            return
        plan = self._plan
        self._child = ChildProcess(_PLAYER, output=self._log, grace_s=_GRACE_S)
        asked = {
            "env": dict(plan.env),
            "dataset": dict(plan.dataset),
            "sandbox": None if plan.sandbox is None else dict(plan.sandbox),
            "base": str(plan.base.absolute()),
            "tasks": plan.tasks,
            "more_tasks": plan.more_tasks,
            "seed": plan.seed,
            "tokenizer": plan.tokenizer,
            "reached": str(self._reached),
            "throwaway": plan.throwaway,
        }
        try:
            self.worths = _worths(self._ask(asked, silence_s=_START_S))
        except (ChildEnded, TimeoutError, ValueError) as error:
            self.close()
            self._log.seek(max(0, self._log.tell() - _SHOWN_BYTES))
            said = self._log.read().decode("utf-8", "replace").strip()
            raise RunError(
                f"env attack: {plan.env['target']} cannot be played: "
                f"{str(error) or f'no answer in {_START_S:g} s'}; try `agentrl env check` first. "
                f"It said: {said or 'nothing'}"
            ) from error

    def play(self, attack: Attack, *, more: bool = False) -> AttackResult:
        """One attack on all tasks, or on the further ones."""
        self.start()
        asked = {"attack": attack.name, "more": more}
        try:
            reply = self._ask(asked, silence_s=self._plan.silence_s)
            outcomes = [AttackOutcome(**entry) for entry in reply["outcomes"]]
        except (ChildEnded, TimeoutError, ValueError) as error:
            self.close()
            silence = f"its event loop stood still for {self._plan.silence_s:g} s and it was killed"
            outcomes = [
                AttackOutcome(
                    task_id="(all)", ended=str(error) or silence, unwalled=self._reached.exists()
                )
            ]
            self._reached.unlink(missing_ok=True)
        hold_s = self._plan.hold_s
        judged = [
            (found, verdict_of(found, self._worth(attack, found.task_id), hold_s=hold_s))
            for found in outcomes
        ]
        return AttackResult(attack=attack.name, aim=attack.aim, outcomes=judged)

    def _worth(self, attack: Attack, task_id: str) -> TaskWorth:
        worth = self.worths.get(task_id, TaskWorth())
        return replace(worth, idle=None) if attack.aim is AttackClass.SPECIAL_CASE else worth

    def changed(self) -> AttackResult:
        """What the attacks have left in the process for other rollouts."""
        self.start()
        before = self.worths
        return changed(before, _worths(self._ask({"worths": True}, silence_s=_START_S)))

    def close(self) -> None:
        if self._child is not None:
            self._child.close()
            self._child = None

    def _ask(self, asked: Mapping[str, Any], *, silence_s: float) -> Mapping[str, Any]:
        """Send a request and wait for its answer as long as the event loop gives signs."""
        assert self._child is not None
        deadline = time.monotonic() + self._plan.attack_s
        self._child.send(asked, timeout_s=silence_s)
        while time.monotonic() < deadline:
            reply = self._child.receive(silence_s).head
            if "alive" not in reply:
                return reply
        raise TimeoutError(f"no end after {self._plan.attack_s:g} s; the process was killed")


def run_attacks(
    plan: AttackPlan, on_result: Callable[[AttackResult], None] = lambda result: None
) -> list[AttackResult]:
    """Play every attack of the plan.

    Args:
        plan: what to attack.
        on_result: called after each attack.

    Raises:
        RunError: the environment cannot be played at all.
        ConfigError: an attack that there is not.
    """
    results: list[AttackResult] = []
    with tempfile.TemporaryFile() as log, tempfile.TemporaryDirectory() as folder:
        # Programs of another user of this machine must be able to make the file.
        Path(folder).chmod(0o777)
        player = _Player(plan, log, Path(folder) / "reached")
        with contextlib.closing(player):
            for attack in attacks(plan.only, plan.names):
                result = player.play(attack)
                if _looks_lucky(result):
                    more = player.play(attack, more=True)
                    outcomes = [*result.outcomes, *more.outcomes]
                    result = AttackResult(attack=attack.name, aim=attack.aim, outcomes=outcomes)
                results.append(result)
                on_result(result)
            if any(result.aim is AttackClass.LEAK for result in results):
                results.append(player.changed())
    return by_chance(results)


def _looks_lucky(result: AttackResult) -> bool:
    return bool(result.count(AttackVerdict.PAID)) and result.paid_share() >= _SECOND_LOOK


def _worths(reply: Mapping[str, Any]) -> dict[str, TaskWorth]:
    return {name: TaskWorth(**worth) for name, worth in reply["worths"].items()}
