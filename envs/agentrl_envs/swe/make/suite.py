"""Running a library's tests in a sandbox, and reading what each of them did."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from agentrl.errors import SandboxError
from agentrl.sandbox import Outcome, Sandbox, SandboxBackend, SandboxLimits, Snapshot
from agentrl_envs.swe.record import REPO_FOLDER
from agentrl_envs.swe.trees import Tree, upload_tree

_PLUGINS = {"agentrl_report.py": "report.py", "agentrl_stalls.py": "stalls.py"}
"""pytest names a plugin by its module, so the folder holds them under these names."""
_REPORT = "report.jsonl"
_PLUGIN_FOLDER = "plugin"
_ASIDE = "aside"
_MAX_REPORT_BYTES = 32 * 2**20
_STARTS = 3
"""How often a sandbox that fails is replaced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TestResult:
    """The result of one test."""

    __test__ = False  # not a test of ours

    outcome: str
    """`passed`, `failed` or `skipped`; an expected failure counts as skipped."""
    seconds: float
    """How long it took, without the time in which it waited for a processor."""
    message: str
    """Message of a failure; empty otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteRun:
    """The results of a run of all tests."""

    results: Mapping[str, TestResult]
    """By node id; tests that began and did not end are missing."""
    complete: bool
    """Whether pytest came to its end."""
    stuck: str
    """The test that was running when a run did not end; empty otherwise."""
    broken: Mapping[str, str]
    """Files that could not be collected, with their errors."""
    modules: Mapping[str, str]
    """Where the library's modules were imported from."""
    covered: Mapping[str, Sequence[int]]
    """First lines of the functions that ran, by file relative to the tree; empty unless asked."""
    seconds: float
    """Of the whole run, without those in which it waited for a processor that others had."""
    output: str
    """The end of what pytest printed."""

    def passed(self) -> frozenset[str]:
        """Names of the tests that passed."""
        return frozenset(name for name, it in self.results.items() if it.outcome == "passed")


class Stalls(StrEnum):
    """The pauses by which the clocks of a run fall behind; see `inside/stalls.py`."""

    NONE = ""
    """Not at all."""
    MORE = "more"
    """More and more."""
    LESS = "less"
    """Less and less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """The way one library's tests are run."""

    command: Sequence[str]
    """Command, as `SweTask.test_command`."""
    variables: Mapping[str, str]
    """Variables, as `SweTask.test_env`."""
    python_path: Sequence[str]
    """Folders, as `SweTask.python_path`."""
    modules: Sequence[str] = ()
    """Top-level modules whose origin is reported."""


@dataclass(slots=True, kw_only=True)
class SuiteRunner:
    """Runs suites in sandboxes of one backend; each run has a sandbox of its own."""

    backend: SandboxBackend
    """Makes the sandboxes; closed by its owner."""
    limits: SandboxLimits
    """Limits of each."""
    environment: Path
    """The test environment on this machine."""
    _visible: bool | None = field(default=None, init=False)

    async def frozen(self, tree: Tree) -> Snapshot:
        """A work directory with a tree, the plugin and, where sandboxes do not see it, the test
        environment; to be closed by the caller."""
        sandbox = await self._open(None)
        try:
            if self._visible is None:
                probe = ("test", "-f", str(self.environment / "pytest" / "__init__.py"))
                self._visible = (await sandbox.exec(probe)).outcome is Outcome.OK
            await upload_tree(tree, sandbox, REPO_FOLDER)
            for name, file in _PLUGINS.items():
                data = (Path(__file__).with_name("inside") / file).read_bytes()
                await sandbox.write_file(f"{_PLUGIN_FOLDER}/{name}", data)
            if not self._visible:
                await sandbox.upload(self.environment, "environment")
            return await sandbox.snapshot()
        finally:
            await sandbox.close()

    async def run(
        self,
        suite: Suite,
        snapshot: Snapshot,
        *,
        changed: Mapping[str, bytes] | None = None,
        cover: bool = False,
        timeout_s: float | None = None,
        test_limit_s: float = 0.0,
        stalls: Stalls = Stalls.NONE,
        stops: bool = False,
    ) -> SuiteRun:
        """Run all tests once.

        Args:
            suite: how.
            snapshot: of `frozen`.
            changed: files of the tree to replace first.
            cover: report which functions run, which takes longer.
            timeout_s: wall time of the whole run; default that of the limits.
            test_limit_s: a test that takes more processor time ends the run, as does one that
                waits for six times as long; 0 is no limit.
            stalls: how the clocks that tests read fall behind.
            stops: also stop the run for real again and again, which takes three times as long.

        Raises:
            SandboxError: three sandboxes in a row failed.
        """
        for attempt in range(_STARTS):
            sandbox: Sandbox | None = None
            try:
                sandbox = await self._open(snapshot)
                for path, data in (changed or {}).items():
                    await sandbox.write_file(f"{REPO_FOLDER}/{path}", data)
                extra = {
                    "AGENTRL_TEST_LIMIT": f"{test_limit_s:g}",
                    **({"AGENTRL_COVER": "1"} if cover else {}),
                    **({"AGENTRL_STALLS": stalls} if stalls else {}),
                    **({"AGENTRL_STOPS": "1"} if stops else {}),
                }
                return await self._exec(sandbox, suite, extra, timeout_s)
            except SandboxError:
                if attempt + 1 == _STARTS:
                    raise
            finally:
                if sandbox is not None:
                    await sandbox.close()
        raise AssertionError("the last attempt returns or raises")

    async def answer(
        self,
        suite: Suite,
        snapshot: Snapshot,
        program: Path,
        request: Any,
        *,
        changed: Mapping[str, bytes] | None = None,
        timeout_s: float,
    ) -> Any:
        """Run a program of `inside` with a request; its answer, or None if it gave none.

        Args:
            suite: how the library's tests are run.
            snapshot: of `frozen`.
            program: takes the file of the request and that of the answer, both JSON.
            request: what JSON knows.
            changed: files of the tree to replace first.
            timeout_s: wall time of the program.

        Raises:
            SandboxError: the sandbox failed.
        """
        sandbox = await self._open(snapshot)
        try:
            for path, data in (changed or {}).items():
                await sandbox.write_file(f"{REPO_FOLDER}/{path}", data)
            await sandbox.write_file(f"{_ASIDE}/{program.name}", program.read_bytes())
            await sandbox.write_file(f"{_ASIDE}/request.json", json.dumps(request).encode())
            there = f"{sandbox.workdir}/{_ASIDE}"
            command = ["python3", "-S", f"{there}/{program.name}"]
            command += [f"{there}/request.json", f"{there}/answer.json"]
            await sandbox.exec(
                command, cwd=REPO_FOLDER, env=self._variables(sandbox, suite), timeout_s=timeout_s
            )
            data = await sandbox.read_file(f"{_ASIDE}/answer.json", max_bytes=_MAX_REPORT_BYTES)
            return json.loads(steady(data.decode(), f"{sandbox.workdir}/{REPO_FOLDER}"))
        except (FileNotFoundError, ValueError):
            return None
        finally:
            await sandbox.close()

    async def _open(self, snapshot: Snapshot | None) -> Sandbox:
        if snapshot is None:
            return await self.backend.create(self.limits)
        return await self.backend.create(self.limits, snapshot)

    async def _exec(
        self,
        sandbox: Sandbox,
        suite: Suite,
        extra: Mapping[str, str],
        timeout_s: float | None,
    ) -> SuiteRun:
        root = f"{sandbox.workdir}/{REPO_FOLDER}"
        variables = {
            **self._variables(sandbox, suite),
            "AGENTRL_REPORT": f"{sandbox.workdir}/{_REPORT}",
            "AGENTRL_MODULES": " ".join(suite.modules),
            **extra,
        }
        command = [*suite.command, "-p", "agentrl_report", "-p", "no:faulthandler", "--tb=short"]
        command += (
            ["-p", "agentrl_stalls"] if {"AGENTRL_STALLS", "AGENTRL_STOPS"} & {*extra} else []
        )
        done = await sandbox.exec(command, cwd=REPO_FOLDER, env=variables, timeout_s=timeout_s)
        lines = b""
        with contextlib.suppress(FileNotFoundError, ValueError):
            lines = await sandbox.read_file(_REPORT, max_bytes=_MAX_REPORT_BYTES)
        output = f"{done.stdout}\n{done.stderr}".strip()[-2000:]
        return read_report(lines, root, seconds=done.duration_s, output=output)

    def _variables(self, sandbox: Sandbox, suite: Suite) -> dict[str, str]:
        root = f"{sandbox.workdir}/{REPO_FOLDER}"
        inside = f"{sandbox.workdir}/environment"
        environment = str(self.environment) if self._visible else inside
        places = [root if part == "." else f"{root}/{part}" for part in suite.python_path]
        path = ":".join([*places, environment, f"{sandbox.workdir}/{_PLUGIN_FOLDER}"])
        return {**suite.variables, "PYTHONPATH": path}


def read_report(lines: bytes, root: str, *, seconds: float, output: str) -> SuiteRun:
    """The lines that the plugin wrote. Others, such as a watchdog's, are left out.

    Args:
        lines: the report.
        root: of the tree in the sandbox; taken out of messages.
        seconds: of the run, by the clock; taken where the run did not come to its end.
        output: what pytest printed.
    """
    results: dict[str, TestResult] = {}
    broken: dict[str, str] = {}
    last: dict[str, object] = {}
    running = ""
    for line in lines.splitlines():
        try:
            kind, *rest = json.loads(line)
        except (ValueError, TypeError):
            continue
        if kind == "start":
            running = rest[0]
        elif kind == "end":
            name, outcome, took, message = rest
            running = ""
            results[name] = TestResult(outcome=outcome, seconds=took, message=steady(message, root))
        elif kind == "broken":
            broken[rest[0]] = steady(rest[1], root)
        else:
            last[kind] = rest[0]
    modules = last.get("modules")
    took = last.get("seconds")
    covered = last.get("covered")
    return SuiteRun(
        results=results,
        # 0: all passed, 1: some failed, 2: some files could not be collected; above: not run.
        complete=last.get("done") in (0, 1, 2),
        stuck=running,
        broken=broken,
        modules=modules if isinstance(modules, dict) else {},
        covered=covered if isinstance(covered, dict) else {},
        seconds=took if isinstance(took, float) else seconds,
        output=output,
    )


def steady(message: str, root: str) -> str:
    """A message without what differs from run to run: the sandbox's paths and addresses."""
    message = message.replace(f"{root}/", "").replace(root, ".")
    return re.sub(r"\b0x[0-9a-fA-F]{6,}\b", "0x...", message)
