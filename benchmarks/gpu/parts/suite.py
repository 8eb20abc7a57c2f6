"""The tests that carry the marker `gpu`, in a pytest of their own."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

from parts.readings import PartSkipped, Reading, Setting

ROOT = Path(__file__).resolve().parents[3]
NEEDED = ("pytest", "pytest_asyncio", "pytest_timeout", "hypothesis")


def measure(setting: Setting) -> list[Reading]:
    """Counts of the tests; a failure is out of its bound, and pytest's words are in the output."""
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        raise PartSkipped(f"not installed here: {', '.join(missing)}")
    assert setting.folder is not None, "the runner gives every part a folder"
    report = setting.folder / "suite.xml"
    marker = "gpu" if setting.on_gpu else "not gpu"
    command = [sys.executable, "-m", "pytest", "tests/gpu", "-m", marker, "-q"]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", f"--junitxml={report}"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if not report.is_file():
        raise RuntimeError(f"pytest wrote no report:\n{done.stdout[-3000:]}{done.stderr[-1000:]}")
    counts = {"tests": 0, "failures": 0, "errors": 0, "skipped": 0}
    for suite in ElementTree.parse(report).getroot().iter("testsuite"):
        for name in counts:
            counts[name] += int(suite.get(name, "0"))
    failed = [
        f"{case.get('classname')}::{case.get('name')}"
        for case in ElementTree.parse(report).getroot().iter("testcase")
        if case.find("failure") is not None or case.find("error") is not None
    ]
    if failed:
        print(done.stdout[-20_000:])
    return [
        Reading(name=f"tests with the marker `{marker}`", value=counts["tests"]),
        Reading(
            name=f"failed ({', '.join(failed) or 'none'})",
            value=counts["failures"] + counts["errors"],
            bound=0,
        ),
        Reading(name="skipped", value=counts["skipped"]),
    ]
