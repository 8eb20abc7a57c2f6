"""Answers of scripts with a defect and without it, and the first step at which they differ."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentrl_envs.swe.make.issue.scripts import Script, Step
from agentrl_envs.swe.make.issue.snippet import Moment

_ADDRESS = re.compile(r"0x[0-9a-fA-F]{5,}| object at |<(function|generator|bound method|coroutine)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """The value or the exception of one line."""

    value: str = ""
    """Its value as Python writes it; empty where it has none."""
    type: str = ""
    """Name of the value's type."""
    error: str = ""
    """Kind of the exception that it raises; empty if none."""
    message: str = ""
    """Text of the exception."""

    @classmethod
    def read(cls, found: Mapping[str, Any]) -> Effect | None:
        """From an answer of `inside/observe.py`; None for a line that takes too long."""
        if found.get("slow"):
            return None
        return cls(
            **{
                name: str(found[name])
                for name in ("value", "type", "error", "message")
                if name in found
            }
        )

    @property
    def is_plain(self) -> bool:
        """True if it is the same in every run, and nothing of the test's own."""
        return self.error != "AssertionError" and not _ADDRESS.search(f"{self.value}{self.message}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Symptom:
    """A moment of a test with what is given there."""

    moment: Moment
    """Where in the script."""
    step: Step
    """The step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """The effect of the last line of a snippet."""

    effect: Effect
    """What it gives."""
    depths: Mapping[str, int] = field(default_factory=dict[str, int])
    """Calls below the snippet at which marked functions are called, by the mark's number."""


def first_difference(script: Script, good: Mapping[str, Any], bad: Mapping[str, Any]) -> Any:
    """The first moment at which a defect shows in what a script gave; None if there is none.

    Args:
        script: of a test.
        good: what it gave without the defect, as `inside/observe.py` answers.
        bad: with the defect.
    """
    others = {tuple(run["bound"]): run for run in bad["runs"]}
    for run in good["runs"]:
        other = others.get(tuple(run["bound"]))
        if other is None:
            continue
        found = _difference(script, run, other)
        if found is not None:
            return found
    return None


def _difference(script: Script, run: Mapping[str, Any], other: Mapping[str, Any]) -> Symptom | None:
    for good, bad in zip(run["seen"], other["seen"], strict=False):
        step = _at(script.steps, good[0])
        right = Effect.read(good[1])
        if good[0] != bad[0] or step is None or right is None:
            return None
        if right.error and step.do != "raises":
            return None  # the script is not what the test does
        wrong = Effect.read(bad[1])
        if wrong is None:
            return None
        if right != wrong:
            if not (right.is_plain and wrong.is_plain):
                return None
            names = {name: text for name, text in good[2].items() if bad[2].get(name) == text}
            moment = Moment(bound=tuple(run["bound"]), path=tuple(good[0]), names=names)
            return Symptom(moment=moment, step=step)
    return None


def _at(steps: Sequence[Step], path: Sequence[int]) -> Step | None:
    step = None
    left = list(path)
    while left:
        step = steps[left.pop(0)]
        if left:
            left.pop(0)
            steps = step.steps
    return step


def last_effect(answer: Mapping[str, Any], steps: int) -> Shown | None:
    """The effect of the last step of a script; None if it was not reached."""
    if answer["error"] or len(answer["runs"]) != 1:
        return None
    run = answer["runs"][0]
    if not run["seen"] or run["seen"][-1][0] != [steps - 1]:
        return None
    effect = Effect.read(run["seen"][-1][1])
    if effect is None:
        return None
    return Shown(effect=effect, depths={str(key): int(n) for key, n in run["depths"].items()})
