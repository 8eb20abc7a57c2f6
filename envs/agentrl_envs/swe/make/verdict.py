"""The tests that a change breaks, the choice if that makes a task, and its text for the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentrl_envs.swe.make.suite import SuiteRun

_SHOWN = 5
_MESSAGE_LINES = 6
_MESSAGE_CHARACTERS = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """The results of a library's tests when nothing is broken."""

    passed: tuple[str, ...]
    """Tests that passed in every run, sorted."""
    unsteady: tuple[str, ...]
    """Tests that passed in some runs only, or under names that change; no task counts them. So are
    those whose verdict depends on how fast the machine is."""
    seconds: float
    """Of a run, as `SuiteRun.seconds`."""
    slowest_s: float
    """Seconds of the slowest test."""
    covered: Mapping[str, Sequence[int]] = field(default_factory=dict[str, Sequence[int]])
    """Lines, as `SuiteRun.covered`."""


def baseline_of(runs: Sequence[SuiteRun], stalled: Sequence[SuiteRun] = ()) -> Baseline:
    """The results on which several runs of an unbroken library agree.

    Args:
        runs: as the machine is.
        stalled: on a machine that seems to be under load; they say nothing of seconds.

    Where tests are made from a set, their numbers, and so their names, change from run to run. One
    name that comes and goes marks such a file, and none of its names is believed.
    """
    all_runs = (*runs, *stalled)
    somewhere = frozenset.union(*(run.passed() for run in all_runs))
    named = [frozenset(run.results) for run in all_runs]
    shifting = frozenset.union(*named) - frozenset.intersection(*named)
    files = {name.partition("::")[0] for name in shifting}
    everywhere = frozenset(
        name
        for name in frozenset.intersection(*(run.passed() for run in all_runs))
        if name.partition("::")[0] not in files
    )
    return Baseline(
        passed=tuple(sorted(everywhere)),
        unsteady=tuple(sorted(somewhere - everywhere)),
        seconds=min(run.seconds for run in runs),
        slowest_s=max((it.seconds for run in runs for it in run.results.values()), default=0.0),
        covered=next((run.covered for run in runs if run.covered), {}),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeVerdict:
    """The effect of a change of the source on the tests."""

    reason: str
    """Empty if it makes a task; else why not: `not caught`, `stuck`, `crashed`, `too much broken`
    or `unsteady`."""
    fail_to_pass: tuple[str, ...] = ()
    """Tests that it breaks, sorted."""
    pass_to_pass: tuple[str, ...] = ()
    """Tests that it leaves alone, sorted."""
    messages: Mapping[str, str] = field(default_factory=dict[str, str])
    """Messages of the broken tests."""


def judge(wanted: Sequence[str], runs: Sequence[SuiteRun]) -> ChangeVerdict:
    """Compare runs with a change to what passes without it.

    Args:
        wanted: tests that pass without the change, always.
        runs: one or more runs with the change; only what they agree on counts.
    """
    for run in runs:
        if not run.complete:
            return ChangeVerdict(reason="stuck" if run.stuck else "crashed")
    always = frozenset.intersection(*(run.passed() for run in runs))
    ever = frozenset.union(*(run.passed() for run in runs))
    broken = tuple(name for name in wanted if name not in ever)
    kept = tuple(name for name in wanted if name in always)
    if not broken:
        somewhere = any(name not in always for name in wanted)
        return ChangeVerdict(reason="unsteady" if somewhere else "not caught")
    if len(kept) * 2 <= len(wanted):
        return ChangeVerdict(reason="too much broken")
    return ChangeVerdict(
        reason="",
        fail_to_pass=broken,
        pass_to_pass=kept,
        messages={name: _message(runs[0], name) for name in broken[:_SHOWN]},
    )


def _message(run: SuiteRun, name: str) -> str:
    result = run.results.get(name)
    if result is not None:
        return "\n".join(line.rstrip() for line in result.message.splitlines())
    file = name.partition("::")[0]
    return run.broken.get(file, "the test was not found")


def noted(verdict: ChangeVerdict) -> dict[str, Any]:
    """A verdict as a journal keeps it."""
    # Only what makes a task is worth its room: names of tests are long.
    if verdict.reason:
        return {"reason": verdict.reason}
    return {
        "reason": "",
        "broken": list(verdict.fail_to_pass),
        "messages": dict(verdict.messages),
        "kept": list(verdict.pass_to_pass),
    }


def read_verdict(known: Mapping[str, Any]) -> ChangeVerdict:
    """A verdict as a journal has kept it."""
    if known["reason"]:
        return ChangeVerdict(reason=known["reason"])
    return ChangeVerdict(
        reason="",
        fail_to_pass=tuple(known["broken"]),
        pass_to_pass=tuple(known["kept"]),
        messages=known["messages"],
    )


def statement(name: str, version: str, verdict: ChangeVerdict, *, shown: bool) -> str:
    """The problem as the model reads it: what fails and with which message, nothing of the cause.

    Args:
        name: of the library.
        version: of the library.
        verdict: of the change.
        shown: whether the tree holds the failing tests.
    """
    count = len(verdict.fail_to_pass)
    hidden = "" if shown else " that this copy does not hold"
    tests = f"1 test{hidden} fails" if count == 1 else f"{count} tests{hidden} fail"
    lines = [
        f"{tests} in {name} {version}. The tests are right, so mend the source of the library.",
        "",
    ]
    for test in verdict.fail_to_pass[:_SHOWN]:
        lines.append(f"- {test}")
        # After the first empty line pytest explains at length how two values differ.
        text = verdict.messages.get(test, "").partition("\n\n")[0][:_MESSAGE_CHARACTERS]
        lines += [f"      {line}" for line in text.splitlines()[:_MESSAGE_LINES]]
    if count > _SHOWN:
        lines.append(f"- and {count - _SHOWN} more")
    return "\n".join(lines) + "\n"
