"""Run the tests in phases; the last line adds their counts up, and the exit status means it.

    python .ci/tests.py [--all] [ARGUMENT OF PYTEST ...]

Files marked slow as a whole run only when something in their reach changed since they last passed
(`record.py`), or when the arguments name them; with `--all` everything runs. Which of them passed
is recorded, and in CI printed too. How many files are left out, and why, is printed at the start
and at the end.

Each test runs once, and those that failed are named at the end: a test that fails under load is
wrong, and a second try would hide it.

Exit status: 0 if everything that ran passed, 130 after Ctrl-C, and 1 otherwise: a test failed, a
phase ended without running its tests, or the arguments select no test of any phase.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import IO
from xml.etree import ElementTree

import reach
import record

WORKSTEAL = ("--dist", "worksteal")
PHASES = {
    "plain": ["-m", "not (docker or fleet or ray or gpu or families)", "-n", "3", *WORKSTEAL],
    "docker": ["-m", "docker and not gpu"],
    "servers": ["-m", "fleet and not (ray or gpu)"],
    "ray": ["-m", "ray and not gpu"],
    "families": ["-m", "families and not gpu"],
}
"""Arguments of pytest by phase. Plain tests wait half of their time, so three share two cores."""
STAGES = (("plain", "docker"), ("servers",), ("ray",), ("families",))
"""Phases that run side by side, stage after stage. Containers are mostly waited for. Servers and
clusters compute on all cores while they start, and what they are asked meanwhile takes its time,
so each kind of them has the machine for itself. Model families compute for half a minute."""
NO_TESTS = 5
"""Pytest ends with this where its arguments select nothing."""
INTERRUPTED = 130


class Phase:
    """One call of pytest: its process, its output and its counts."""

    def __init__(self, name: str, arguments: Sequence[str], folder: Path, *, live: bool) -> None:
        """Start it; its output goes to the terminal if it is `live`, else to a file."""
        self.name = name
        self.seconds = 0.0
        self._began = time.monotonic()
        self.report = folder / f"{name}.xml"
        self._output = folder / f"{name}.txt"
        command = [sys.executable, "-m", "pytest", *PHASES[name], *arguments]
        # Hundreds of processes import the same files; let the first of them keep what it compiles.
        env = {key: v for key, v in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        if "-n" in command:
            # Threads that compute spin at barriers while those of other processes have the cores.
            env.setdefault("OMP_NUM_THREADS", "1")
        with contextlib.ExitStack() as stack:
            output: IO[bytes] | None = None
            if not live:
                output = stack.enter_context(self._output.open("wb"))
            self._process = subprocess.Popen(
                [*command, f"--junitxml={self.report}", "-o", "junit_family=xunit1"],
                stdout=output,
                stderr=output,
                env=env,
            )

    def has_ended(self) -> bool:
        """Look once, and note the seconds it took."""
        ended = self._process.poll() is not None
        if not ended or not self.seconds:
            self.seconds = time.monotonic() - self._began
        return ended

    def print_output(self) -> None:
        """Print what has gone to a file."""
        if self._output.exists():
            print(f"agentrl: {self.name} tests, which ran beside the others", flush=True)
            with self._output.open("rb") as output:
                shutil.copyfileobj(output, sys.stdout.buffer)
            sys.stdout.flush()

    @property
    def selected_nothing(self) -> bool:
        """Whether the arguments leave it no test."""
        return self._process.returncode == NO_TESTS

    @property
    def ran_to_its_end(self) -> bool:
        """Whether each test that it selected has a result."""
        return self._process.returncode in (0, 1, NO_TESTS)

    @property
    def failed(self) -> list[str]:
        """Tests that failed, as pytest takes them: `tests/test_a.py::TestClass::test_b[case]`."""
        found = []
        for case in ElementTree.parse(self.report).iter("testcase") if self.report.exists() else ():
            file = case.get("file")
            if file is None or (case.find("failure") is None and case.find("error") is None):
                continue
            module = file.removesuffix(".py").replace("/", ".")
            groups = case.get("classname", "").removeprefix(module).strip(".").split(".")
            found.append("::".join([file, *filter(None, groups), case.get("name", "")]))
        return list(dict.fromkeys(found))

    @property
    def counts(self) -> Counter[str]:
        """Tests by outcome; a phase that could not run its tests is one failure."""
        found: Counter[str] = Counter()
        if self.report.exists():
            for suite in ElementTree.parse(self.report).iter("testsuite"):
                found.update({key: int(suite.get(key, 0)) for key in ("tests", "skipped")})
                found["failed"] += int(suite.get("failures", 0)) + int(suite.get("errors", 0))
        if self._process.returncode not in (0, NO_TESTS) and not found["failed"]:
            found.update(tests=1, failed=1)
        found["passed"] = found.pop("tests", 0) - found["failed"] - found["skipped"]
        return found


def wait_for(phases: Sequence[Phase]) -> None:
    """Wait until all have ended."""
    while not all([phase.has_ended() for phase in phases]):
        time.sleep(0.1)


def main(arguments: Sequence[str]) -> int:
    """Run all stages, print the closing lines, return the exit status."""
    everything = "--all" in arguments
    arguments = [word for word in arguments if word != "--all"]
    root = Path.cwd()
    before = digests(root)
    choice = record.Choice() if everything else record.choose(root, arguments)
    began = time.monotonic()
    print(
        "agentrl: tests marked gpu are not run here; on a machine with CUDA: pytest -m gpu",
        flush=True,
    )
    if choice.sentence():
        print(f"agentrl: {choice.sentence()}", flush=True)
    with tempfile.TemporaryDirectory(prefix="agentrl-tests-") as folder:
        phases, interrupted = run_stages([*choice.options(), *arguments], Path(folder))
        counts = {phase.name: phase.counts for phase in phases}
        failed = {phase.name: phase.failed for phase in phases}
        sentences = [choice.sentence()]
        if before:
            complete = record.leaves_none_out(arguments)
            ended = {phase.name for phase in phases if complete and phase.ran_to_its_end}
            ran = record.results(phase.report for phase in phases)
            said, *lines = record.update(root, before, ran, PHASES.keys() - ended)
            sentences.append(said)
            if os.environ.get("CI"):
                # A checkout of CI is thrown away; what it found can be copied from here.
                print(*lines, sep="\n")
    seconds = time.monotonic() - began
    for name, tests in failed.items():
        for test in tests:
            print(f"agentrl: failed among the {name} tests: {test}")
    return conclude(phases, counts, seconds, sentences, interrupted=interrupted)


def digests(root: Path) -> dict[str, str]:
    """Digests of all slow test files."""
    project = reach.Project(root)
    return {file: project.digest(file) for file in project.slow_files}


def run_stages(arguments: Sequence[str], folder: Path) -> tuple[list[Phase], bool]:
    """Run stage after stage; returns the phases, and whether Ctrl-C ended them."""
    phases: list[Phase] = []
    for names in STAGES:
        stage: list[Phase] = []
        interrupted = False
        try:
            for name in names:
                print(f"agentrl: {name} tests: {' '.join(PHASES[name])}", flush=True)
                stage.append(Phase(name, arguments, folder, live=name == names[0]))
            wait_for(stage)
        except KeyboardInterrupt:
            # Pytest has got the same Ctrl-C, and ends with a report of what there is.
            interrupted = True
            wait_for(stage)
        for phase in stage:
            phase.print_output()
        phases += stage
        if interrupted:
            return phases, True
    return phases, False


def conclude(
    phases: Sequence[Phase],
    counts: dict[str, Counter[str]],
    seconds: float,
    sentences: Sequence[str],
    *,
    interrupted: bool,
) -> int:
    """Print the closing lines; returns the exit status."""
    parts = [f"{p.name} {counts[p.name]['passed']} in {clock(p.seconds)}" for p in phases]
    print(f"agentrl: passed: {', '.join(parts)}; all in {clock(seconds)}")
    for sentence in filter(None, sentences):
        print(f"agentrl: {sentence}")
    total = sum(counts.values(), Counter[str]())
    words = [f"{total[word]} {word}" for word in ("passed", "failed", "skipped")]
    print(f"agentrl: {', '.join(words)}", flush=True)
    if interrupted:
        return INTERRUPTED
    return 1 if total["failed"] or all(phase.selected_nothing for phase in phases) else 0


def clock(seconds: float) -> str:
    """Minutes and seconds."""
    return "{}:{:02}".format(*divmod(round(seconds), 60))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
