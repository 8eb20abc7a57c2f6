"""The probes of one task with the values that are right, and those that its defect gives."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from agentrl_envs.swe.locate import TestLocation
from agentrl_envs.swe.proof.parsing import parsing
from agentrl_envs.swe.proof.probes import ProbeFile, ValueProbe, probe_file
from agentrl_envs.swe.run_tests import TestRun

_PER_FILE = 10**6
_VARIANTS = (12, 4, 0)
"""Inputs of a test that are drawn, in the first try and in those after it: some have no end, and
those of the tests themselves do."""
_TRUTHS = frozenset("TFN")
_LEAST_TRUTHS, _TRUE_SHARE = 6, 0.75
"""Guesses get 5 of 6 right twice in 1 of 84 tries: `P(Bin(6, 1/2) >= 5) ** 2`."""


class Earned(Enum):
    """The part of its values that code has right, where a test passed."""

    ALL = auto()
    """As much as right code has, which may differ from the gold change."""
    PART = auto()
    """Too little: the test passes for its own inputs, or for some."""
    NOTHING = auto()
    """None: the pass has nothing to do with what the code gives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    right: Mapping[str, str]
    """By key, the value with the gold change."""
    wrong: Mapping[str, str]
    """By key, the value without any change, where the probe was reached."""
    seen: Mapping[str, str]
    """By key of a variant, the right value of the same place with the test's own literals."""

    def telling(self) -> list[str]:
        """Keys at which right code and the defect differ: first of all where a value is new."""
        found = [key for key, value in self.right.items() if self.wrong.get(key) != value]
        new = [key for key in found if key in self.seen and self.seen[key] != self.right[key]]
        return [key for key in (new or found) if self.right[key] not in _TRUTHS]

    def truths(self, *, telling: bool) -> list[str]:
        """Keys of true and false at which the defect is seen, or is not.

        The first ones are of variants alone: what a test asserts is written in it.
        """
        return [
            key
            for key, value in self.right.items()
            if value in _TRUTHS
            and (self.wrong.get(key) != value) is telling
            and (key in self.seen or not telling)
        ]

    def others(self) -> list[str]:
        """Keys of values that the defect has nothing to do with."""
        return [
            key
            for key, value in self.right.items()
            if value not in _TRUTHS and self.wrong.get(key) == value
        ]

    def without(self, keys: Collection[str]) -> _Known:
        """The same without what is another value in every run."""
        right = {key: value for key, value in self.right.items() if key not in keys}
        return _Known(right=right, wrong=self.wrong, seen=self.seen)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofPlan:
    """The proof of one task; empty where no value can be asked for."""

    sources: Mapping[str, str] = field(default_factory=dict[str, str])
    """Test files with probes, by path."""
    names: Mapping[TestLocation, frozenset[str]] = field(
        default_factory=dict[TestLocation, frozenset[str]]
    )
    """Bare names of functions to run, variants included, by the test they belong to."""
    known: Mapping[TestLocation, _Known] = field(default_factory=dict[TestLocation, _Known])
    """What is known of each test."""

    def keys(self) -> tuple[str, ...]:
        """The probes that are of use."""
        return tuple(key for known in self.known.values() for key in known.right)

    def proves(self, test: TestLocation, *, kept: bool = False) -> bool:
        """True if values can show whether this test passes for what the code does.

        Args:
            test: a test function.
            kept: whether it passes without any change, so that no value can tell right from wrong.
        """
        known = self.known.get(test)
        if known is None:
            return False
        if kept:
            return bool(known.others())
        truths = (known.truths(telling=telling) for telling in (True, False))
        return bool(known.telling()) or all(len(keys) >= _LEAST_TRUTHS for keys in truths)

    def earned(
        self,
        test: TestLocation,
        values: Mapping[str, str],
        *,
        kept: bool = False,
        passing: float = 1.0,
    ) -> Earned:
        """Compare the values of a run with those of right code.

        Another repair may well differ from the gold one where no test says what is right. So half
        of the values that the defect has wrong are enough. Where there is only true or false, which
        can be guessed, it is three quarters, both where the defect is seen and where it is not: who
        says the opposite of what the defect says has none of the second kind.

        Args:
            test: a test function that `proves` is true for.
            values: of a run.
            kept: as for `proves`.
            passing: the share of its cases that passed; of the values that the defect has wrong so
                many fewer have to be right.
        """
        known = self.known[test]
        asked = known.others() if kept else known.telling()
        if asked or kept:
            share = _share(asked, known, values)
            # Code may well have the values of the test itself: it can read them there.
            nothing = share == 0 and passing == 1.0
            enough = share >= 0.5 * passing
            return Earned.NOTHING if nothing else Earned.ALL if enough else Earned.PART
        mended, others = (
            _share(known.truths(telling=telling), known, values) for telling in (True, False)
        )
        right = mended >= _TRUE_SHARE * passing and others >= _TRUE_SHARE
        return Earned.ALL if right else Earned.PART

    def without(self, again: Mapping[str, str]) -> ProofPlan:
        """The plan less what a second run with the gold change gives another value for."""
        known = {
            test: one.without({key for key in one.right if again.get(key) != one.right[key]})
            for test, one in self.known.items()
        }
        return ProofPlan(sources=self.sources, names=self.names, known=known)


RunProbes = Callable[
    [Mapping[str, str], frozenset[str], bool, tuple[str, ...] | None], Awaitable[TestRun]
]
"""Runs test files, by path, and of them the functions of these names: with the gold change if the
third is true, without any change if it is false. Gives the values of these keys, or of all."""


async def make_plan(
    sources: Mapping[str, str],
    tests: Collection[TestLocation],
    run: RunProbes,
    draw: random.Random,
    *,
    check_machine: Callable[[], Awaitable[None]],
) -> ProofPlan | None:
    """Draw inputs for `tests` and find out what is right for them, in three runs.

    Args:
        sources: test files by path.
        tests: functions of these files.
        run: runs files.
        draw: chooses the inputs.
        check_machine: called after a run that was not complete; raises if the tests as they are
            do not run well either. A plan with fewer inputs because a machine was busy would
            accept a change that repeats what the tests show.

    Returns:
        None if no try was complete, which says nothing of the next one.
    """
    for variants in _VARIANTS:
        files = await parsing(_probed, sources, tests, draw, variants)
        if not files:
            return ProofPlan()
        texts = {path: made.source for path, made in files.items()}
        only = frozenset(name for made in files.values() for name in made.names)
        values: list[Mapping[str, str]] = []
        # Twice with the gold change: some values differ in every run.
        for right in (True, True, False):
            done = await run(texts, only, right, tuple(values[0]) if values else None)
            lost = any(values) and not done.values
            if done.timed_out or not done.started or (right and (done.killed or lost)):
                await check_machine()
                break
            values.append(done.values)
        else:
            return await asyncio.to_thread(_plan, files, texts, tests, *values)
    return None


def _probed(
    sources: Mapping[str, str], tests: Collection[TestLocation], draw: random.Random, variants: int
) -> dict[str, ProbeFile]:
    files: dict[str, ProbeFile] = {}
    for number, path in enumerate(sorted({test.path for test in tests})):
        here = {test.function for test in tests if test.path == path}
        first = number * _PER_FILE
        made = probe_file(sources[path], here, draw, variants=variants, first=first)
        if made is not None:
            files[path] = made
    return files


def _plan(
    files: Mapping[str, ProbeFile],
    texts: Mapping[str, str],
    tests: Collection[TestLocation],
    right: Mapping[str, str],
    again: Mapping[str, str],
    wrong: Mapping[str, str],
) -> ProofPlan:
    probes = {key: (path, it) for path, made in files.items() for key, it in made.probes.items()}
    # A function that several tests call has one number for all of them, and places of its own.
    places = {(path, it.function, it.variant, it.place): key for key, (path, it) in probes.items()}
    known = {
        test: _known(test, right, wrong, probes, places) for test in tests if test.path in files
    }
    plan = ProofPlan(
        sources=texts,
        names={
            test: frozenset(
                name
                for name in files[test.path].names
                if name == test.function or name.startswith(f"{test.function}_")
            )
            for test in known
        },
        known=known,
    )
    return plan.without(again)


def _known(
    test: TestLocation,
    right: Mapping[str, str],
    wrong: Mapping[str, str],
    probes: Mapping[str, tuple[str, ValueProbe]],
    places: Mapping[tuple[str, str, int, int], str],
) -> _Known:
    mine: dict[str, str] = {}
    seen: dict[str, str] = {}
    for key, path, probe in _read(right, probes):
        if (path, probe.function) != (test.path, test.function):
            continue
        mine[key] = right[key]
        if probe.variant:
            plain = places.get((path, probe.function, 0, probe.place))
            # The same case and count of the same comparison.
            before = right.get(f"{plain}.{key.partition('.')[2]}")
            if before is not None:
                seen[key] = before
    return _Known(right=mine, wrong=wrong, seen=seen)


def _read(
    values: Mapping[str, str], probes: Mapping[str, tuple[str, ValueProbe]]
) -> Iterator[tuple[str, str, ValueProbe]]:
    for key in values:
        prefix = key.partition(".")[0]
        if prefix in probes:
            yield key, *probes[prefix]


def _share(keys: Collection[str], known: _Known, values: Mapping[str, str]) -> float:
    """The share of values that are right; 1 of none."""
    if not keys:
        return 1.0
    return sum(values.get(key) == known.right[key] for key in keys) / len(keys)
