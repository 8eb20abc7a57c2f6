"""The record of slow test files that passed, and the choice of files that need not run.

A line of the record is a file, the digest of its reach (`reach.py`) when it passed, and seconds.
Every run writes down which files wholly passed, whatever became of others: no test of them failed,
was skipped or left out by an argument, and each phase that could hold one ran to its end. A file
that the record does not hold, or with another digest, runs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

import reach

_SELECTS = re.compile(r"-[km].*|--(lf|last-failed|ff|nf|sw|stepwise|deselect|ignore|co).*")
"""Options of pytest that choose among tests."""
_HARMLESS = re.compile(r"-[qv]+|-n\d+|--(durations|tb)=.*")
"""Options of pytest with which every test runs."""
_ENDS = re.compile(r"-x|--(exitfirst|maxfail).*")
"""Options of pytest that may end it before the last test."""
_PHASES = {
    r"mark\.docker": "docker",
    r"mark\.fleet|vllm_server": "servers",
    r"mark\.ray": "ray",
    r"mark\.families": "families",
}
"""What puts a test into a phase other than the plain one (`tests.py`, `tests/conftest.py`)."""


@dataclass(frozen=True)
class Passed:
    """A line of the record: a digest and the seconds that the tests took."""

    digest: str
    seconds: int


@dataclass(frozen=True)
class Choice:
    """Slow test files of a call: those to leave out, and why the others run."""

    left_out: Mapping[str, Passed] = field(default_factory=dict)
    changed: Sequence[str] = ()
    """Files that run since something in their reach changed after they passed."""
    unknown: Sequence[str] = ()
    """Files that run since the record does not hold them."""

    def options(self) -> list[str]:
        """Arguments of pytest."""
        return [f"--ignore={file}" for file in sorted(self.left_out)]

    def sentence(self) -> str:
        """What is left out, what runs, and why; empty where no file is slow."""
        if not (self.left_out or self.changed or self.unknown):
            return ""
        minutes = sum(passed.seconds for passed in self.left_out.values()) / 60
        return (
            f"left out {len(self.left_out)} slow test files ({minutes:.0f} minutes), since nothing "
            f"in their reach changed after they passed; {len(self.changed)} run since something "
            f"did, {len(self.unknown)} since {reach.RECORD} does not hold them"
        )


@dataclass
class FileResult:
    """Tests of one file that ran."""

    tests: int = 0
    bad: int = 0
    """Tests that failed."""
    skipped: int = 0
    seconds: float = 0.0
    phases: set[str] = field(default_factory=set)
    """Phases that its tests ran in."""


def read(root: Path) -> dict[str, Passed]:
    """The record; lines that are no lines of a record are left out."""
    path = root / reach.RECORD
    found = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        match = re.fullmatch(r"(tests/\S+\.py) ([0-9a-f]{32}) (\d+)", line)
        if match:
            found[match[1]] = Passed(match[2], int(match[3]))
    return found


def choose(root: Path, arguments: Sequence[str]) -> Choice:
    """Choose what `make test` leaves out: nothing where the arguments choose tests themselves."""
    project = reach.Project(root)
    if chooses(arguments) or not project.slow_files:
        return Choice()
    passed = read(root)
    left_out, changed, unknown = {}, [], []
    for file in project.slow_files:
        if file not in passed:
            unknown.append(file)
        elif passed[file].digest != project.digest(file):
            changed.append(file)
        else:
            left_out[file] = passed[file]
    if left_out.keys() >= set(project.test_files):
        # A run without a test proves nothing.
        changed, left_out = [*changed, *left_out], {}
    return Choice(left_out, changed, unknown)


def chooses(arguments: Iterable[str]) -> bool:
    """Whether some argument names files or tests, or selects among them."""
    return any(
        _SELECTS.fullmatch(word) or "::" in word or (word[:1] != "-" and Path(word).exists())
        for word in arguments
    )


def leaves_none_out(arguments: Sequence[str]) -> bool:
    """Whether the arguments leave no test of a file out, so that its passing may be recorded."""
    options = os.environ.get("PYTEST_ADDOPTS", "").split()
    free = all(
        _HARMLESS.fullmatch(word) or (Path(word).exists() and "::" not in word)
        for word in arguments
    )
    return free and not any(_SELECTS.fullmatch(w) or _ENDS.fullmatch(w) for w in options)


def results(reports: Iterable[Path]) -> dict[str, FileResult]:
    """Results by test file, from the reports of pytest."""
    found: dict[str, FileResult] = {}
    for report in reports:
        if not report.exists():
            continue
        for case in ElementTree.parse(report).iter("testcase"):
            result = found.setdefault(case.get("file", ""), FileResult())
            result.tests += 1
            result.phases.add(report.stem)
            result.seconds += float(case.get("time", 0))
            result.bad += case.find("failure") is not None or case.find("error") is not None
            skip = case.find("skipped")
            result.skipped += skip is not None and skip.get("type") != "pytest.xfail"
    return found


def update(
    root: Path, before: Mapping[str, str], ran: Mapping[str, FileResult], unfinished: Set[str]
) -> list[str]:
    """Write what passed and what failed; returns a sentence about it, and each line written.

    Args:
        root: folder of the project.
        before: digests of all slow files before the tests began.
        ran: results of this run.
        unfinished: phases that have no result for some of their tests; only failures count of files
            that could have tests there.
    """
    project = reach.Project(root)
    old = read(root)
    record = {file: old[file] for file in before if file in old}
    noted: list[str] = []
    removed, moved = 0, 0
    for file, result in ran.items():
        if file not in before:
            continue
        if result.bad:
            removed += record.pop(file, None) is not None
        elif file not in project.slow_files or project.digest(file) != before[file]:
            moved += 1
        elif not result.skipped and not unfinished & _phases(project.text(file), result):
            record[file] = Passed(before[file], round(result.seconds))
            noted.append(file)
    lines = {file: f"{file} {p.digest} {p.seconds}\n" for file, p in sorted(record.items())}
    if noted or removed:
        (root / reach.RECORD).write_text("".join(lines.values()), encoding="utf-8")
    left = f"; {moved} changed while they ran" if moved else ""
    said = f"{reach.RECORD}: {len(noted)} slow test files written, {removed} removed{left}"
    return [said, *(lines[file].rstrip() for file in sorted(noted))]


def _phases(source: str, result: FileResult) -> set[str]:
    """Phases that tests of a file may belong to: those they ran in, and those its marks name.

    One phase alone is sure where a marker of the module names it and no other mark stands there.
    """
    named = {phase for word, phase in _PHASES.items() if re.search(word, source)}
    module = re.search(r"^pytestmark = (\[[^\]]*\]|.*)", source, re.MULTILINE)
    whole = {phase for word, phase in _PHASES.items() if module and re.search(word, module[1])}
    return named | result.phases | (set() if len(whole) == 1 and named == whole else {"plain"})
