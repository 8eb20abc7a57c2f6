"""Named tests in a sandbox, as the environment sees them: `judge` inside, this side trusted."""

from __future__ import annotations

import base64
import json
import secrets
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from importlib.resources import files

from agentrl.errors import SandboxError
from agentrl.sandbox import Outcome, Sandbox

_JUDGE = files("agentrl_envs.swe").joinpath("judge.py").read_text(encoding="utf-8")
_PLUGIN = files("agentrl_envs.swe").joinpath("report_plugin.py").read_text(encoding="utf-8")
SPARE_S = 30.0
"""What the judge may need beside the tests, on a machine under load."""
_KILLED = (-9, 137)
"""SIGKILL, and the status a shell returns for a program that got it."""


class TestState(StrEnum):
    """The way a test ended."""

    __test__ = False  # not a test, though pytest would think so of the name

    PASSED = "p"
    """It ran and passed, and so did its set-up and tear-down."""
    FAILED = "f"
    """The test, its set-up or its tear-down failed."""
    XFAILED = "x"
    """Expected to fail, and failed."""
    SKIPPED = "s"
    """Skipped, or passed though expected to fail."""
    MISSING = "m"
    """Not reported: not collected, or the run ended before it did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TestRun:
    """One run of the tests of a task."""

    __test__ = False

    states: Mapping[str, TestState]
    """Every name that was asked for."""
    started: bool
    """Whether the test runner came up at all, before anything of the repository was loaded."""
    timed_out: bool
    """Whether it was stopped at its wall-clock limit."""
    seconds: float
    """Wall time that it took, the judge's start included."""
    tail: str
    """The end of what was printed."""
    values: Mapping[str, str] = field(default_factory=dict[str, str])
    """Digests of what the tested code gave at probes; `T`, `F` and `N` are True, False and None."""
    killed: bool = False
    """Whether something other than the judge or a limit of the sandbox killed the test runner."""
    silent: bool = False
    """Whether a limit of the sandbox ended the judge before its report."""

    def passed(self, name: str) -> bool:
        """True if this test passed."""
        return self.states[name] is TestState.PASSED


def _options(log: str, only: Collection[str]) -> list[str]:
    """Options for pytest; of chosen tests many raise, and nobody reads where."""
    return [] if log else ["-p", "agentrl_report", *(["--tb=no"] if only else [])]


async def run_tests(
    sandbox: Sandbox,
    *,
    command: Sequence[str],
    names: Sequence[str],
    cwd: str,
    env: Mapping[str, str],
    wall_s: float,
    python: str = "python3",
    only: Collection[str] = (),
    keys: Sequence[str] | None = (),
    log: str = "",
) -> TestRun:
    """Run `command`, in general a pytest command line, and return how the named tests ended.

    Args:
        sandbox: where; nothing that the agent started may still run there.
        command: program and arguments; `-p agentrl_report` is added.
        names: node ids; a name that ends before a bracket or a space stands for all it begins.
        cwd: relative to the work directory.
        env: variables; `PYTHONPATH` is extended.
        wall_s: seconds for the whole run; less if the sandbox allows less than these and `SPARE_S`.
        python: runs the judge, standard library only.
        only: bare names of test functions; others are collected but not run. None runs all.
        keys: probes whose values are wanted; None takes the first ones that report.
        log: kind of output to read the results from; `command` is not pytest then, and `only` is
            of no effect.

    Raises:
        SandboxError: the sandbox failed, or the judge did not come up, or something other than a
            limit ended it: the tested code, or the machine.
    """
    nonce = secrets.token_hex(16)
    limit_s = min(wall_s + SPARE_S, sandbox.limits.wall_s)
    job = {
        "nonce": nonce,
        "command": [*command, *_options(log, only)],
        "log": log,
        "cwd": f"{sandbox.workdir}/{cwd}",
        "env": dict(env),
        # The judge has to be done before the sandbox stops it, or nothing is known.
        "wall_s": max(0.5, limit_s - SPARE_S),
        "names": list(names),
        "plugin": _PLUGIN,
        "only": sorted(only),
        "keys": None if keys is None else list(keys),
    }
    result = await sandbox.exec(
        (python, "-I", "-S", "-c", _JUDGE), stdin=json.dumps(job).encode(), timeout_s=limit_s
    )
    said = [
        line.removeprefix(nonce + " ")
        for line in result.stdout.splitlines()
        if line.startswith(nonce)
    ]
    if not said:
        raise SandboxError(
            f"the test judge did not start: outcome {result.outcome}, exit status "
            f"{result.exit_code}, stderr {result.stderr[-300:]!r}; expected a Python 3.8 or newer "
            f"called {python!r} inside the sandbox"
        )
    if len(said) < 2 and result.outcome in (Outcome.OK, Outcome.NONZERO):
        raise SandboxError(
            f"the test judge ended before its report: exit status {result.exit_code}, stderr "
            f"{result.stderr[-300:]!r}; the tested code killed it, or the machine did (is it short "
            "of memory?)"
        )
    if len(said) < 2:
        # The tested code reached a limit and took the judge down with it, so nothing passed; or the
        # machine is so slow that the judge could not even stop it in time.
        return TestRun(
            states=dict.fromkeys(names, TestState.MISSING),
            started=True,
            timed_out=result.outcome is Outcome.TIMEOUT,
            seconds=result.duration_s,
            tail=f"{result.outcome}: {result.stderr[-300:]}",
            silent=True,
        )
    try:
        report = json.loads(said[1])
        values = json.loads(zlib.decompress(base64.b64decode(report["values"])))
    except (ValueError, zlib.error) as error:
        raise SandboxError(
            f"the report of the tests has {len(said[1])} characters and cannot be read: {error}; "
            f"the sandbox keeps {sandbox.limits.output_bytes} bytes of output; run fewer "
            "tests, or print less"
        ) from error
    states = report["states"].ljust(len(names), "m")
    return TestRun(
        states={name: TestState(state) for name, state in zip(names, states, strict=True)},
        started=report["hello"],
        timed_out=report["timed_out"],
        seconds=result.duration_s,
        tail=report["tail"],
        values=values,
        killed=(
            report["exit"] in _KILLED
            and not report["timed_out"]
            and result.outcome is not Outcome.OOM
        ),
    )
