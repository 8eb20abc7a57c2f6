"""The second run of a repair: tests whose verdict the tested code cannot know.

Where values can be asked for (`proof`), they decide. The other tests that passed are sabotaged, see
`sabotage`: that is weaker, and all there is for a test without values or a row without a gold
change.
"""

from __future__ import annotations

import functools
import random
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from agentrl.errors import DataError, GraderError
from agentrl_envs.swe.changes import Changes
from agentrl_envs.swe.claims import AskedOnce, row_key
from agentrl_envs.swe.locate import TestIndex, TestLocation
from agentrl_envs.swe.patches import apply_patch
from agentrl_envs.swe.proof import Earned, ProofPlan, make_plan
from agentrl_envs.swe.proof.parsing import parsing
from agentrl_envs.swe.proof.sabotage import sabotage, twin_mark, twin_name
from agentrl_envs.swe.record import SweTask
from agentrl_envs.swe.run_tests import TestRun
from agentrl_envs.swe.runners import node_ids
from agentrl_envs.swe.trees import Tree
from agentrl_envs.swe.workspace import NewSandbox, Workspace

_MOST_TESTS = 12
"""Test functions of `FAIL_TO_PASS` that values are asked of; one has a dozen cases or more."""
_SPOT_CHECKS = 12
"""Test functions of `PASS_TO_PASS` that values are asked of."""
_SABOTAGED_SPOTS = 3
"""Those that are sabotaged where values can be asked of none."""
_MOST_TASKS = 256


class Doubt(Enum):
    """The result of a second run."""

    NONE = auto()
    """What passed passed by what the code does."""
    FORGED = auto()
    """Something passed that the code does not do."""
    UNKNOWN = auto()
    """No test could be looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SecondLook:
    """The result of a second run for tests that passed in the first."""

    doubt: Doubt
    """Of the passes as a whole."""
    unearned: frozenset[str] = frozenset()
    """Names that passed though the code gives too few of their values; they do not count."""
    proven: bool = False
    """Whether values show it of a test of `FAIL_TO_PASS`, and not sabotage alone."""
    provable: bool = False
    """Whether values can show it of any test of `FAIL_TO_PASS`, whatever passed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """Files that a run adds to a tree, and values it is asked for."""

    files: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    """Test files as graded, but changed."""
    cannot: tuple[str, ...] = ()
    """Names of tests that right code fails."""
    twins: tuple[str, ...] = ()
    """Names of tests that right code passes."""
    only: frozenset[str] = frozenset()
    """Test functions to run; none for all."""
    keys: tuple[str, ...] | None = ()
    """Probes whose values are wanted; None for all."""


RunControl = Callable[[Changes, Control], Awaitable[TestRun]]
"""Runs the tests in a fresh sandbox with a change and what a control adds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Controls:
    """The controls of one task."""

    workspace: Workspace
    """The task, and where its files come from."""
    new_sandbox: NewSandbox
    """Opens a fresh sandbox."""
    run: RunControl
    """Runs the tests."""
    check_speed: Callable[[TestRun], None]
    """Raises if a run with the gold change shows that the machine is too slow to judge."""

    async def second_look(self, changes: Changes, passed: Callable[[str], bool]) -> SecondLook:
        """Look once more at tests that passed with a change.

        Args:
            changes: of the agent.
            passed: says of a name whether it passed in the first run.

        Raises:
            GraderError: the machine is too slow to say anything.
            SandboxError: a sandbox failed.
        """
        task = self.workspace.task
        tests = await self._task_tests()
        fixing, keeping, gold = tests.fixing, tests.keeping, tests.gold
        plan = await self._plan(tests, gold) if gold else ProofPlan()
        now = {name for name in (*task.FAIL_TO_PASS, *task.PASS_TO_PASS) if passed(name)}
        fixed = _tests(fixing, now)
        kept = _tests(keeping, now) - _tests(fixing, set(fixing))
        proven = [test for test in fixed if plan.proves(test)]
        # Of a test with cases of which some still fail, values are right in part only.
        cases = Counter(fixing.values())
        passing = Counter(test for name, test in fixing.items() if name in now)
        shares = {test: passing[test] / cases[test] for test in proven}
        spots = [test for test in kept if plan.proves(test, kept=True)]
        weak = {name: test for name, test in fixing.items() if name in now and test not in proven}
        if not spots:
            more = [name for name in keeping if name in now]
            drawn = secrets.SystemRandom().sample(more, min(_SABOTAGED_SPOTS, len(more)))
            weak |= {name: keeping[name] for name in drawn}
        control = await parsing(_control, tests.sources, plan, (*proven, *spots), weak)
        provable = any(map(plan.proves, set(fixing.values())))
        if not proven and not control.cannot:
            return SecondLook(doubt=Doubt.UNKNOWN, provable=provable)
        second = await self.run(changes, control)
        impossible = [name for name in control.cannot if second.passed(name)]
        if impossible and gold is None:
            return SecondLook(doubt=Doubt.FORGED)
        lost = [twin for twin in control.twins if not second.passed(twin)]
        wrong = _wrong(plan, shares, spots, second)
        if gold is None or not (impossible or lost or wrong):
            return SecondLook(doubt=Doubt.NONE, proven=bool(proven), provable=provable)
        # Some tests cannot run under another name or twice, some compare what is nearly equal, and
        # some values differ in every run.
        third = await self.run(gold, control)
        wrong = _wrong(plan.without(third.values), shares, spots, second)
        if second.timed_out:
            self.check_speed(third)
        if (
            not all(map(third.passed, impossible))
            or any(map(third.passed, lost))
            or Earned.NOTHING in wrong.values()
        ):
            return SecondLook(doubt=Doubt.FORGED)
        places = {**keeping, **fixing}
        unearned = frozenset(name for name in now if places.get(name) in wrong)
        return SecondLook(
            doubt=Doubt.NONE, unearned=unearned, proven=bool(proven), provable=provable
        )

    async def gold(self) -> Changes | None:
        """The gold change; None where the row has none that fits."""
        return (await self._task_tests()).gold

    async def _task_tests(self) -> _TaskTests:
        """The tests of this task and its gold change, read once in this process."""

        async def read() -> tuple[_TaskTests, bool]:
            files = await self.workspace.files(self.new_sandbox, grade=True)
            return await parsing(_task_tests, self.workspace.task, files), True

        return await _TESTS.get(row_key(self.workspace), read)

    async def _plan(self, found: _TaskTests, gold: Changes) -> ProofPlan:
        """The plan of this task, made once in this process."""

        async def make() -> tuple[ProofPlan, bool]:
            draw = secrets.SystemRandom()
            fixing, keeping = found.fixing, found.keeping
            tests = _drawn(_tests(fixing, set(fixing)), _MOST_TESTS, draw)
            rest = _tests(keeping, set(keeping)) - set(tests)
            # What a change breaks lies mostly near what it mends.
            near = {test for test in rest if test.path in {one.path for one in tests}}
            tests += _drawn(near, _SPOT_CHECKS // 2, draw)
            tests += _drawn(rest - set(tests), _SPOT_CHECKS // 2, draw)
            probe = functools.partial(self._probe, gold)
            only = frozenset(test.function for test in tests)
            check = functools.partial(self._check_machine, gold, only)
            made = await make_plan(found.sources, tests, probe, draw, check_machine=check)
            return made or ProofPlan(), made is not None

        return await _PLANS.get(row_key(self.workspace), make)

    async def _check_machine(self, gold: Changes, only: frozenset[str]) -> None:
        """Raises unless the tests as they are run well just now.

        Raises:
            GraderError: the machine is too slow, or short of memory.
        """
        run = await self.run(gold, Control(only=only))
        self.check_speed(run)
        if run.killed or not run.started:
            raise GraderError(
                f"task {self.workspace.task.instance_id!r}: the tests do not run with the gold "
                f"change just now, {'something killed' if run.killed else 'nothing started'} their "
                "runner, so nothing can be said of a change; the machine is short of memory or "
                "processes: run fewer rollouts at once"
            )

    async def _probe(
        self,
        gold: Changes,
        sources: Mapping[str, str],
        only: frozenset[str],
        right: bool,
        keys: tuple[str, ...] | None,
    ) -> TestRun:
        files = {path: text.encode() for path, text in sources.items()}
        control = Control(files=files, only=only, keys=keys)
        return await self.run(gold if right else Changes(written={}), control)


_Located = dict[str, TestLocation]


@dataclass(frozen=True, slots=True, kw_only=True)
class _TaskTests:
    """The tests of a task, and the change that mends what they show."""

    sources: Mapping[str, str]
    """Files in which its tests are defined, by path."""
    fixing: _Located
    """Definitions of `FAIL_TO_PASS`, by name, where they are known."""
    keeping: _Located
    """The same of `PASS_TO_PASS`."""
    gold: Changes | None
    """The gold change; None where the row has none that fits."""


_TESTS: AskedOnce[_TaskTests] = AskedOnce(_MOST_TASKS)
_PLANS: AskedOnce[ProofPlan] = AskedOnce(_MOST_TASKS)
"""Plans by task: its rollouts share one, and the code of none can reach it."""


def _task_tests(task: SweTask, tree: Tree) -> _TaskTests:
    """Parses all Python files around the tests, so it is no work for an event loop."""
    files = {path: entry.data for path, entry in tree.items()}
    places = node_ids(task, files)
    index = TestIndex(files, places.values())
    fixing, keeping = (
        {
            name: test
            for name in names
            if name in places and (test := index.find(places[name])) is not None
        }
        for names in (task.FAIL_TO_PASS, task.PASS_TO_PASS)
    )
    paths = {test.path for test in (*fixing.values(), *keeping.values())}
    return _TaskTests(
        sources={path: index.sources[path] for path in paths},
        fixing=fixing,
        keeping=keeping,
        gold=_gold(task, tree),
    )


def _gold(task: SweTask, tree: Tree) -> Changes | None:
    try:
        fixed = apply_patch(tree, task.patch)
    except (DataError, ValueError):
        return None
    changed = {path: entry for path, entry in fixed.items() if tree.get(path) != entry}
    runs = {
        path: entry.executable
        for path, entry in changed.items()
        if entry.executable != (path in tree and tree[path].executable)
    }
    gone = tuple(path for path in tree if path not in fixed)
    written = {path: entry.data for path, entry in changed.items()}
    return Changes(written=written, executable=runs, deleted=gone)


def _tests(located: _Located, names: set[str]) -> set[TestLocation]:
    return {test for name, test in located.items() if name in names}


def _drawn(tests: set[TestLocation], most: int, draw: random.Random) -> list[TestLocation]:
    ordered = sorted(tests, key=lambda test: (test.path, test.function))
    return draw.sample(ordered, min(most, len(ordered)))


def _wrong(
    plan: ProofPlan,
    proven: Mapping[TestLocation, float],
    spots: Sequence[TestLocation],
    run: TestRun,
) -> dict[TestLocation, Earned]:
    """Tests of which the values are not those of right code."""
    found = {
        test: plan.earned(test, run.values, passing=share) for test, share in proven.items()
    } | {test: plan.earned(test, run.values, kept=True) for test in spots}
    return {test: earned for test, earned in found.items() if earned is not Earned.ALL}


def _control(
    files: Mapping[str, str], plan: ProofPlan, proven: Sequence[TestLocation], weak: _Located
) -> Control:
    """Files with the probes of a plan, and with tests that are sabotaged."""
    sources = {
        path: text
        for path, text in plan.sources.items()
        if any(test.path == path for test in proven)
    }
    only = {name for test in proven for name in plan.names[test]}
    cannot: list[str] = []
    twins: list[str] = []
    for path in {test.path for test in weak.values()}:
        here = {name: test for name, test in weak.items() if test.path == path}
        functions = {test.function for test in here.values()}
        mark = twin_mark(files[path])
        swapped = {name for name in functions if secrets.randbelow(2)}
        text = sources.get(path, files[path])
        changed = sabotage(text, functions, mark, swapped)
        if changed is None:
            continue
        sources[path] = changed.source
        for name, test in here.items():
            if test.function not in changed.functions:
                continue
            only.add(test.function)
            if test.function not in changed.twins:
                cannot.append(name)
                continue
            only.add(twin_name(test.function, mark))
            pair = [name, twin_name(name, mark)]
            wrong, right = pair[::-1] if test.function in swapped else pair
            cannot.append(wrong)
            twins.append(right)
    known = {test: plan.known[test] for test in proven}
    return Control(
        files={path: text.encode() for path, text in sources.items()},
        cannot=tuple(cannot),
        twins=tuple(twins),
        only=frozenset(only),
        keys=tuple(key for one in known.values() for key in one.right),
    )
