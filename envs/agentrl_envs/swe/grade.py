"""The verdict on a repair: named tests, in fresh sandboxes, from the agent's change of source.

    agent's tree --download--> what counts --> pristine tree + change --> the tests
                                                                      `-> values, compared outside

The second run happens only when the first would earn something; see `controls`. Should values be
wrong in it, a third one says whether they are the same every time. Rows of other data sets are
tried themselves, once; see `claims`. A sandbox that fails is the agent's doing only where the same
steps work without its change; else that raises, and is never a reward of 0. Nor is a run that
reached its limit, where the gold change needs more than half of that limit just then.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

from agentrl.errors import GraderError, SandboxError
from agentrl.sandbox import Sandbox
from agentrl_envs.fault import ReadOnce, graded
from agentrl_envs.swe.changes import Changes, source_changes
from agentrl_envs.swe.claims import Claims, any_ran
from agentrl_envs.swe.controls import Control, Controls, Doubt, SecondLook
from agentrl_envs.swe.final_diff import diff_for_readers
from agentrl_envs.swe.record import REPO_FOLDER
from agentrl_envs.swe.run_tests import SPARE_S, TestRun, run_tests
from agentrl_envs.swe.trees import regular_files
from agentrl_envs.swe.workspace import NewSandbox, Workspace, put_changes

_MORE_BYTES = 16 * 2**20
_PLAIN = Control()


class Reason(StrEnum):
    """The reason of a verdict."""

    GRADED = "graded"
    """The tests ran."""
    NOTHING = "nothing"
    """No source file was changed."""
    UNREADABLE = "unreadable"
    """The tree was removed, made unreadable or filled up."""
    FORGED = "forged"
    """Tests that cannot pass passed, or tests passed whose values the code does not give."""
    BROKEN = "broken"
    """With this change the test runner does not even start."""
    RUINED = "ruined"
    """What the agent did keeps the grading from working, which works on an untouched tree."""


REASON_WORDS = {
    Reason.GRADED: "The tests ran",
    Reason.NOTHING: "No source file was changed",
    Reason.UNREADABLE: "The tree was removed, made unreadable or filled up",
    Reason.FORGED: "Tests passed that cannot, or not by what the code does",
    Reason.BROKEN: "With this change the test runner does not start",
    Reason.RUINED: "What was done keeps the grading from working",
}
"""Words for each reason, for readers of a rollout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairVerdict:
    """The grade of one repair, and its reason."""

    reason: Reason
    """Reason of the verdict."""
    fixed: int = 0
    """Tests of `FAIL_TO_PASS` that pass now."""
    kept: int = 0
    """Tests of `PASS_TO_PASS` that still pass, or still fail as expected."""
    to_fix: int
    """Number of `FAIL_TO_PASS`."""
    to_keep: int
    """Number of `PASS_TO_PASS`."""
    changes: Changes | None = None
    """The graded changes."""
    run: TestRun | None = None
    """The run of the real tests."""
    controlled: bool = False
    """Whether passes were looked at a second time."""
    proven: bool = False
    """Whether values showed that a test of `FAIL_TO_PASS` is passed by what the code does; where
    they did not, sabotage did, which can be known by its form."""
    unearned: int = 0
    """Tests that passed, but not by what the code gives; they are not in `fixed` and `kept`."""
    repeated: bool = False
    """Whether the grading failed once for a reason that is not the agent's."""

    @property
    def solved(self) -> bool:
        """True if every named test passes."""
        return self.fixed == self.to_fix and self.kept == self.to_keep

    @property
    def fraction(self) -> float:
        """The share of failing tests fixed, times the share of passing tests that still pass."""
        return self.fixed / self.to_fix * (self.kept / self.to_keep if self.to_keep else 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairGrader:
    """Grades the repair of one task."""

    workspace: Workspace
    """Source of its files."""
    new_sandbox: NewSandbox
    """Opens a fresh sandbox for grading."""
    wall_s: float = 0.0
    """Seconds for one run of the tests; 0 takes ten times what the maker needed, at least 60."""
    python: str = "python3"
    """Runs the judge inside the sandbox."""
    only_proven: bool = False
    """Whether passes count only where values show that they are earned."""

    async def grade(self, agent: Sandbox) -> RepairVerdict:
        """Judge what the agent left.

        Raises:
            SandboxError: a sandbox failed, and one without anything of the agent fails as well.
            GraderError: the tests cannot be run even without the agent's change, or the row is no
                task.
        """
        left = ReadOnce(read=lambda: self._changes(agent), sandbox=agent)
        found = await graded(lambda: self._grade(agent, left), lambda: self._untouched(agent))
        if found.verdict is None:
            return self._verdict(Reason.RUINED, None)
        return dataclasses.replace(found.verdict, repeated=found.repeated)

    async def _untouched(self, agent: Sandbox) -> None:
        """The same steps without anything of the agent."""
        fresh = await self.new_sandbox(self.workspace.spec())
        try:
            await fresh.download_tree(REPO_FOLDER, max_bytes=2**40)
        finally:
            await fresh.close()
        await self._run(agent, Changes(written={}))

    async def _grade(self, agent: Sandbox, left: ReadOnce[Changes | None]) -> RepairVerdict:
        changes = await left.get()
        if changes is None or changes.too_large:
            return self._verdict(Reason.UNREADABLE, changes)
        if not changes:
            # By definition the tests fail on what the agent was given.
            return self._verdict(Reason.NOTHING, changes)
        controls = Controls(
            workspace=self.workspace,
            new_sandbox=self.new_sandbox,
            run=functools.partial(self._run, agent),
            check_speed=self._check_speed,
        )
        run = await self._run(agent, changes)
        if run.timed_out and not self._verdict(Reason.GRADED, changes, run).solved:
            self._check_speed(await self._run(agent, await controls.gold() or Changes(written={})))
        if run.killed or run.silent or not run.started:
            await self._check_pristine(agent)
        if not run.started:
            return self._verdict(Reason.BROKEN, changes, run)
        rerun = functools.partial(self._run, agent)
        claims = Claims(workspace=self.workspace, run=rerun, gold=controls.gold)
        expected = await claims.expected_failures(run)
        verdict = self._verdict(Reason.GRADED, changes, run, expected)
        if verdict.fixed:
            await claims.must_fail()
            look = await controls.second_look(changes, run.passed)
            if look.doubt is Doubt.FORGED:
                return self._verdict(Reason.FORGED, changes)
            if self.only_proven and not look.proven:
                return self._unproven(changes, look)
            verdict = dataclasses.replace(
                self._verdict(Reason.GRADED, changes, run, expected, look.unearned),
                controlled=look.doubt is Doubt.NONE,
                proven=look.proven,
                unearned=len(look.unearned),
            )
        elif not any_ran(run, self.workspace.task.FAIL_TO_PASS):
            await claims.must_run()
        return verdict

    def _unproven(self, changes: Changes, look: SecondLook) -> RepairVerdict:
        """The verdict on passes that may be forged: nothing, if the task has some that cannot be.

        Raises:
            GraderError: it has none.
        """
        if look.provable:
            return self._verdict(Reason.FORGED, changes)
        raise GraderError(
            f"task {self.workspace.task.instance_id!r}: none of its FAIL_TO_PASS tests gives values"
            " that would show that a pass is earned, or the row has no gold change; leave the row "
            "out, or set unproven to 'pay' in the arguments of the environment"
        )

    def _verdict(
        self,
        reason: Reason,
        changes: Changes | None,
        run: TestRun | None = None,
        expected_failures: Collection[str] = (),
        unearned: Collection[str] = (),
    ) -> RepairVerdict:
        task = self.workspace.task

        def good(name: str) -> bool:
            if run is None or reason is not Reason.GRADED:
                return False
            return name not in unearned and run.passed(name)

        return RepairVerdict(
            reason=reason,
            fixed=sum(map(good, task.FAIL_TO_PASS)),
            kept=sum(good(name) or name in expected_failures for name in task.PASS_TO_PASS),
            to_fix=len(task.FAIL_TO_PASS),
            to_keep=len(task.PASS_TO_PASS),
            changes=changes,
            run=run,
        )

    async def _changes(self, agent: Sandbox) -> Changes | None:
        before = await self.workspace.files(self.new_sandbox)
        most = sum(len(entry.data) for entry in before.values()) + _MORE_BYTES
        try:
            after = regular_files(await agent.download_tree(REPO_FOLDER, max_bytes=most))
        except (FileNotFoundError, NotADirectoryError, PermissionError, ValueError):
            return None  # the agent's doing: nothing else has been in this sandbox
        except OSError as error:
            raise SandboxError(f"the agent's tree cannot be read: {error}") from error
        # In a thread: an agent can leave a hundred thousand files.
        changes = await asyncio.to_thread(source_changes, self.workspace.task, before, after)
        given = {path: entry.data for path, entry in before.items()}
        patch = await asyncio.to_thread(diff_for_readers, changes, given)
        return dataclasses.replace(changes, patch=patch)

    async def _run(self, agent: Sandbox, changes: Changes, control: Control = _PLAIN) -> TestRun:
        """One run of the tests or of sabotaged ones, and another if the runner was killed.

        A machine that is short of memory kills it once; code that kills it does so again.
        """
        run = await self._run_once(agent, changes, control)
        return await self._run_once(agent, changes, control) if run.killed else run

    async def _run_once(self, agent: Sandbox, changes: Changes, control: Control) -> TestRun:
        """One run in a sandbox of its own."""
        task = self.workspace.task
        wall_s = self._limit_s()
        # The agent's commands may be short of time; the tests must not be.
        longest_s = max(agent.limits.wall_s, wall_s + SPARE_S)
        limits = dataclasses.replace(agent.limits, wall_s=longest_s)
        sandbox = await self.new_sandbox(self.workspace.spec(grade=True, limits=limits))
        try:
            await put_changes(sandbox, changes.written, changes.deleted, changes.executable)
            await put_changes(sandbox, control.files)
            environment = await self.workspace.environment(sandbox)
            root = f"{sandbox.workdir}/{REPO_FOLDER}"
            return await run_tests(
                sandbox,
                command=task.test_command,
                # Sorted: in a control the order would say which tests cannot pass.
                names=sorted(
                    {*task.FAIL_TO_PASS, *task.PASS_TO_PASS, *control.cannot, *control.twins}
                ),
                cwd=REPO_FOLDER,
                env=task.variables(root, environment),
                wall_s=wall_s,
                python=self.python,
                only=control.only,
                keys=control.keys,
                log=task.test_log,
            )
        finally:
            await sandbox.close()

    def _limit_s(self) -> float:
        return self.wall_s or max(60.0, 10 * self.workspace.task.test_seconds)

    def _check_speed(self, gold: TestRun) -> None:
        """A run that reached its limit is the agent's doing only if the machine is fast enough.

        Args:
            gold: a run just after it, where no code of the agent can make the machine look slow.

        Raises:
            GraderError: it is not.
        """
        limit_s = self._limit_s()
        if gold.timed_out or gold.seconds > limit_s / 2:
            raise GraderError(
                f"task {self.workspace.task.instance_id!r}: the tests reached their limit of "
                f"{limit_s:.0f} s, and without the agent's change they need {gold.seconds:.0f} s "
                "just now, so this says nothing of the change; the machine is under load, or the "
                "limit is too short: run fewer rollouts at once, or raise test_wall_s of the "
                "environment"
            )

    async def _check_pristine(self, agent: Sandbox) -> None:
        run = await self._run(agent, Changes(written={}))
        if run.killed or (run.silent and not run.timed_out):
            raise GraderError(
                f"task {self.workspace.task.instance_id!r}: the tests are killed, with or without "
                f"the agent's change: {run.tail[-600:]!r}; the machine or the sandbox is short of "
                "memory: run fewer rollouts at once, or raise its limit"
            )
        if not run.started:
            raise GraderError(
                f"task {self.workspace.task.instance_id!r}: the test runner does not start, with "
                f"or without the agent's change: {run.tail[-600:]!r}; is pytest in the image or in "
                "the data set's test environment, for this Python?"
            )
