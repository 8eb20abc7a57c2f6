"""The tests that carry the marker `gpu`, in a pytest of their own."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

from parts.readings import PartSkipped, Reading, Setting

ROOT = Path(__file__).resolve().parents[3]
NEEDED = ("pytest", "pytest_asyncio", "pytest_timeout", "hypothesis")


def measure(setting: Setting) -> Iterator[Reading]:
    """Counts of the tests; a failure is out of its bound, and pytest's words are in the output."""
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        raise PartSkipped(f"not installed here: {', '.join(missing)}")
    assert setting.folder is not None, "the runner gives every part a folder"
    report = setting.folder / "suite.xml"
    marker = "gpu" if setting.on_gpu else "not gpu"
    # -v: the output of a part that is killed ends with the name of the test that took so long.
    command = [sys.executable, "-m", "pytest", "tests/gpu", "-m", marker, "-v"]
    command += ["-p", "no:cacheprovider", f"--junitxml={report}"]
    status = subprocess.run(command, cwd=ROOT, check=False).returncode
    if not report.is_file():
        raise RuntimeError(f"pytest ended with {status} and wrote no report; see its output")
    tree = ElementTree.parse(report)
    counts = {"tests": 0, "failures": 0, "errors": 0, "skipped": 0}
    for suite in tree.iter("testsuite"):
        for name in counts:
            counts[name] += int(suite.get(name, "0"))
    failed = [
        f"{case.get('classname')}::{case.get('name')}"
        for case in tree.iter("testcase")
        if case.find("failure") is not None or case.find("error") is not None
    ]
    yield Reading(name=f"tests with the marker `{marker}`", value=counts["tests"])
    yield Reading(
        name=f"failed ({', '.join(failed) or 'none'})",
        value=counts["failures"] + counts["errors"],
        bound=0,
    )
    yield Reading(name="skipped", value=counts["skipped"])
