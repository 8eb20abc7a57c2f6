"""A library made ready: fetched, read, found fit to make tasks of, its tests run several times."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from agentrl.errors import DataError, SandboxError
from agentrl.sandbox import Snapshot
from agentrl_envs.swe.make.environment import Environment
from agentrl_envs.swe.make.index import Index, Release
from agentrl_envs.swe.make.journal import MakeJournal
from agentrl_envs.swe.make.licenses import is_permissive
from agentrl_envs.swe.make.project import EXTENSION, TEST_ENV, Project, below, find_project
from agentrl_envs.swe.make.sdist import read_sdist
from agentrl_envs.swe.make.suite import Stalls, Suite, SuiteRun, SuiteRunner
from agentrl_envs.swe.make.verdict import Baseline, ChangeVerdict, baseline_of, judge

_COPIES = Path(__file__).with_name("inside") / "copies.py"
_FORMAT = 3
"""Raised when verdicts of an older maker no longer hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The conditions on a library of which tasks are made."""

    baselines: int = 3
    """How often its tests are run with nothing broken, before they are run as under load; what
    differs is left out."""
    min_tests: int = 20
    """Fewer tests that pass prove too little."""
    max_tests: int = 3000
    """Every task names all of them."""
    max_suite_s: float = 30.0
    """All its tests are run several times for every task, and once for every attempt at one."""
    any_license: bool = False
    """Whether licences that ask for more than that their text stays are taken too."""


class Workshop:
    """The parts that all libraries of a run share: index, sandboxes, test environment."""

    def __init__(
        self,
        *,
        index: Index,
        runner: SuiteRunner,
        environment: Environment,
        notes: Path,
        rules: Rules,
    ) -> None:
        """Keep findings in the folder `notes`."""
        self.index = index
        self.runner = runner
        self.environment = environment
        self.rules = rules
        self._notes = notes

    def journal(self, *releases: Release) -> MakeJournal:
        """Findings about these releases, under this test environment and these limits."""
        facts = [_FORMAT, self.environment.id, repr(self.runner.limits), self.rules.baselines]
        facts += [release.sha256 or release.url for release in releases]
        mark = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:12]
        name = releases[0].name
        versions = "-".join(release.version for release in releases)
        return MakeJournal(self._notes / f"{name}-{versions}-{mark}.jsonl")

    async def project(self, release: Release) -> Project:
        """Fetch and read a release.

        Raises:
            DataError: it cannot be had, or may not or cannot be used; says why.
        """
        data = await asyncio.to_thread(self.index.fetch, release)
        sdist = await asyncio.to_thread(read_sdist, data, release.file)
        name = f"{release.name} {release.version}"
        if not sdist.license_file or not sdist.license:
            raise DataError(f"{name}: its source distribution names no licence")
        if not self.rules.any_license and not is_permissive(sdist.license):
            raise DataError(
                f"{name}: its licence is {sdist.license!r}, which asks for more than that its "
                "text stays; allow it with --any-license"
            )
        if release.name in self.environment.names():
            raise DataError(
                f"{name}: it is part of the test environment, where the model would find a copy "
                "of it; leave it out, or leave it out of --test-package"
            )
        return find_project(release, sdist)

    def suite(self, project: Project) -> Suite:
        """The way its tests are run."""
        return Suite(
            command=project.test_command,
            variables=TEST_ENV,
            python_path=(project.python_path,),
            modules=project.modules,
        )

    async def baseline(
        self, project: Project, snapshot: Snapshot, journal: MakeJournal, *, cover: bool
    ) -> Baseline:
        """The results of its tests with nothing broken.

        Raises:
            DataError: they do not run, or too few pass, or they take too long; says what was seen.
            SandboxError: the sandboxes failed.
        """
        key = "baseline, with cover" if cover else "baseline"
        kept = journal.get(key)
        if kept is None:
            found = await self._measure(project, snapshot, cover)
            kept = dataclasses.asdict(found)
            journal.put(key, kept)
        return Baseline(
            passed=tuple(kept["passed"]),
            unsteady=tuple(kept["unsteady"]),
            seconds=kept["seconds"],
            slowest_s=kept["slowest_s"],
            covered=kept["covered"],
        )

    async def _measure(self, project: Project, snapshot: Snapshot, cover: bool) -> Baseline:
        suite = self.suite(project)
        name = f"{project.release.name} {project.release.version}"
        copy = await self._copy_of(project, snapshot)
        if copy:
            raise DataError(f"{name}: sandboxes hold another copy of it at {copy}")
        limit_s = min(self.runner.limits.wall_s, 10.0 + 10.0 * self.rules.max_suite_s)
        runs: list[SuiteRun] = []
        for number in range(self.rules.baselines):
            # The first run also finds a slow library, before it is run again and again.
            watched = cover and number == 1
            run = await self.runner.run(suite, snapshot, cover=watched, timeout_s=limit_s)
            refused = _refusal(run, self.rules, watched)
            if refused:
                raise DataError(f"{name}: {refused}{_remedy(run, project)}")
            runs.append(run)
        # A test that measures time, or waits for less than a loaded machine needs, flips here.
        stalled = [
            await self.runner.run(suite, snapshot, stalls=stalls, stops=True)
            for stalls in (Stalls.MORE, Stalls.LESS)
        ]
        for run in stalled:
            if not run.complete:
                what = f": {run.stuck} did not end" if run.stuck else ""
                raise DataError(f"{name}: its tests do not run on a machine that stalls{what}")
        found = baseline_of(runs, stalled)
        if len(found.passed) < self.rules.min_tests:
            raise DataError(
                f"{name}: {len(found.passed)} of its tests pass in every run, however slow the "
                f"machine; {self.rules.min_tests} are needed"
            )
        return found

    async def _copy_of(self, project: Project, snapshot: Snapshot) -> str:
        """Another path of a sandbox where the library lies; empty if there is none."""
        sandbox = await self.runner.backend.create(self.runner.limits, snapshot)
        try:
            files = {
                name: {
                    path.rsplit("/", 1)[-1]: len(project.tree[path].data)
                    for path in project.sources()
                    if f"/{name}/" in f"/{path}" or path.endswith(f"{name}.py")
                }
                for name in project.modules
            }
            asked = {"modules": files, "places": [str(self.environment.folder), "environment"]}
            done = await sandbox.exec(
                ("python3", "-c", _COPIES.read_text(), json.dumps(asked)),
            )
            if done.exit_code != 0:
                raise SandboxError(f"looking for copies failed: {done.stderr[-300:]}")
            return done.stdout.strip()
        finally:
            await sandbox.close()

    async def judge(
        self,
        project: Project,
        baseline: Baseline,
        snapshot: Snapshot,
        changed: dict[str, bytes] | None = None,
    ) -> ChangeVerdict:
        """Run the tests with a change, and if it breaks some, once more on clocks that stall.

        Args:
            project: whose tests.
            baseline: what passes without the change.
            snapshot: the tree, with the change or without.
            changed: files that differ from the snapshot.
        """
        suite = self.suite(project)
        runs: list[SuiteRun] = []
        for stalls in (Stalls.NONE, Stalls.LESS):
            run = await self.runner.run(
                suite,
                snapshot,
                changed=changed,
                timeout_s=min(self.runner.limits.wall_s, 60.0 + 20.0 * baseline.seconds),
                test_limit_s=max(5.0, 20.0 * baseline.slowest_s),
                stalls=stalls,
            )
            runs.append(run)
            verdict = judge(baseline.passed, runs)
            if verdict.reason:
                break
        return verdict


def _refusal(run: SuiteRun, rules: Rules, watched: bool) -> str:
    """The reason a library that is not broken cannot be used; empty if it can."""
    if not run.complete:
        what = f"{run.stuck} did not end" if run.stuck else "pytest did not end by itself"
        return f"its tests do not run: {what}: {_last_line(run.output)}"
    if run.seconds > rules.max_suite_s and not watched:
        return (
            f"its tests take {run.seconds:.0f} s; at most {rules.max_suite_s:.0f} s are allowed "
            "(--max-suite-s)"
        )
    passed, counted = len(run.passed()), len(run.results)
    if counted > rules.max_tests:
        return f"it has {counted} tests; at most {rules.max_tests} are allowed"
    if passed * 2 <= counted or not counted:
        why = next(iter(run.broken.values()), "") or _last_line(run.output)
        return f"{passed} of {counted} tests pass; the first trouble: {why.strip()[-200:]}"
    foreign = {name: file for name, file in run.modules.items() if "/repo/" not in file and file}
    if foreign or not run.modules:
        return f"its tests import it from elsewhere: {foreign or 'not at all'}"
    return ""


_NO_MODULE = re.compile(r"No module named '([\w.]+)'")


def _remedy(run: SuiteRun, project: Project) -> str:
    """The next step, where a library is refused for something that it lacks; empty if unknown."""
    said = "\n".join((*run.broken.values(), run.output))
    missing = list(dict.fromkeys(name.partition(".")[0] for name in _NO_MODULE.findall(said)))
    own = [name for name in missing if name in project.modules]
    packages = [name for name in missing if name not in project.modules]
    compiled = [
        path
        for path in sorted(project.tree)
        if path.endswith(EXTENSION) and not below(path, project.test_paths)
    ]
    if compiled and (own or "cannot import name" in said or "ImportError" in said):
        return (
            f"; it needs a compiler: {compiled[0]} and {len(compiled) - 1} more files are of an "
            "extension, and nothing is built here; choose a library of pure Python"
        )
    if packages:
        options = " ".join(f"--test-package {name}" for name in packages[:4])
        return (
            f"; its tests import {', '.join(packages[:4])}, which the test environment lacks: "
            f"name it with {options} (the package that brings it, if that has another name), and "
            "give another --out"
        )
    return ""


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["it printed nothing"])[-1][:200]


def pick_release(index: Index, wanted: str) -> Release:
    """The release that `name` or `name==version` asks for; without a version the newest.

    Raises:
        DataError: there is none; lists versions that there are.
    """
    name, _, version = wanted.partition("==")
    name = canonical(name)
    found = index.releases(name)
    if not version:
        return found[0]
    for release in found:
        if release.version == version.strip():
            return release
    there = ", ".join(release.version for release in found[:8])
    raise DataError(f"{name}: no source distribution of version {version}; there are {there}, ...")


def canonical(name: str) -> str:
    """A library's name as indexes spell it.

    Raises:
        DataError: nothing that a library can be called.
    """
    made = re.sub(r"[-_.]+", "-", name.strip().lower())
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", made):
        raise DataError(f"package {name!r}: expected a name as on PyPI, or name==version")
    return made


def pairs(releases: Sequence[Release], most: int) -> list[tuple[Release, Release]]:
    """Consecutive releases as (old, new), the newest pair first."""
    return list(zip(releases[1:], releases, strict=False))[:most]
