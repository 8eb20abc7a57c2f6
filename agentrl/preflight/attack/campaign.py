"""All attacks on one environment, each in a process that can be ended.

What freezes for good is found by its silence: the process is killed, the attack is written down as
one that froze it, and the next one goes on in a new process.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from agentrl.errors import RunError
from agentrl.preflight.attack.attack import AttackClass
from agentrl.preflight.attack.library import (
    AttackOutcome,
    AttackResult,
    TaskWorth,
    attacks,
    verdict_of,
)
from agentrl.processes.child import ChildEnded, ChildProcess

_PLAYER = "agentrl.preflight.attack.player:serve"
_START_S = 300.0
_GRACE_S = 5.0
_SHOWN_BYTES = 1500


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackPlan:
    """The environment under attack, and the limits of the attacks; plain data."""

    env: Mapping[str, Any]
    """An `env` section."""
    dataset: Mapping[str, Any]
    """A `dataset` section."""
    sandbox: str = "auto"
    """`auto`, a backend, or `none`."""
    base: Path = Path()
    """Folder that relative paths start from."""
    tokenizer: str = "agentrl.testing.byte_tokenizer:ByteTokenizer"
    """Import string of what makes the tokenizer that attacks are written with."""
    tasks: int = 4
    """Tasks that every attack is played on, spread over the dataset."""
    seed: int = 0
    """Seed of every rollout."""
    hold_s: float = 1.0
    """Processor seconds that one turn may hold up the event loop."""
    attack_s: float = 300.0
    """Wall-clock seconds that one attack may take on all its tasks."""
    only: Iterable[AttackClass] = ()
    """Classes to play; none means all."""


def run_attacks(
    plan: AttackPlan, on_result: Callable[[AttackResult], None] = lambda result: None
) -> list[AttackResult]:
    """Play every attack of the plan.

    Args:
        plan: what to attack.
        on_result: called after each attack.

    Raises:
        RunError: the environment cannot be played at all.
    """
    results: list[AttackResult] = []
    child: ChildProcess | None = None
    worths: dict[str, TaskWorth] = {}
    with tempfile.TemporaryFile() as log, contextlib.ExitStack() as stack:
        for attack in attacks(plan.only):
            if child is None:
                child, worths = _started(plan, log)
                stack.callback(child.close)
            try:
                reply = child.ask({"attack": attack.name}, timeout_s=plan.attack_s).head
                outcomes = [AttackOutcome(**entry) for entry in reply["outcomes"]]
            except (ChildEnded, TimeoutError, ValueError) as error:
                child.close()
                child = None
                why = str(error) or f"no end after {plan.attack_s:g} s; the process was killed"
                outcomes = [AttackOutcome(task_id="(all)", ended=why)]
            nothing = TaskWorth()
            judged = [
                (found, verdict_of(found, worths.get(found.task_id, nothing), hold_s=plan.hold_s))
                for found in outcomes
            ]
            results.append(AttackResult(attack=attack.name, aim=attack.aim, outcomes=judged))
            on_result(results[-1])
    return results


def _started(plan: AttackPlan, log: IO[bytes]) -> tuple[ChildProcess, dict[str, TaskWorth]]:
    child = ChildProcess(_PLAYER, output=log, grace_s=_GRACE_S)
    asked = {
        "env": dict(plan.env),
        "dataset": dict(plan.dataset),
        "sandbox": plan.sandbox,
        "base": str(plan.base.absolute()),
        "tasks": plan.tasks,
        "seed": plan.seed,
        "tokenizer": plan.tokenizer,
    }
    try:
        reply = child.ask(asked, timeout_s=_START_S).head
    except (ChildEnded, TimeoutError, ValueError) as error:
        log.seek(max(0, log.tell() - _SHOWN_BYTES))
        said = log.read().decode("utf-8", "replace").strip()
        raise RunError(
            f"env attack: {plan.env['target']} cannot be played: "
            f"{str(error) or f'no answer in {_START_S:g} s'}; try `agentrl env check` first. It "
            f"said: {said or 'nothing'}"
        ) from error
    return child, {name: TaskWorth(**worth) for name, worth in reply["worths"].items()}
