"""`.ci/newcomer.py`: tests that need a missing part are skipped there, or CI fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / ".ci" / "newcomer.py"
LOOK = """
import os, pathlib, pytest, shutil
def test_other_programs_are_there(): assert shutil.which("env") and "CI" not in os.environ
def test_no_daemon(): assert not pathlib.Path(os.environ["DOCKER_HOST"][7:]).exists()
def test_with_a_part():
    if not any(map(shutil.which, ("bwrap", "docker", "chromium"))):
        pytest.skip("nothing of it is here")
    raise AssertionError("found a part")
"""


@pytest.mark.parametrize(
    ("source", "status"),
    [
        (LOOK, 0),
        (f"{LOOK}def test_fails(): raise FileNotFoundError('bwrap')", 1),
        ("def test_needs_nothing(): pass", 1),
        (f"{LOOK}import no_such_module", 1),
    ],
)
def test_only_a_skip_passes_without_the_parts(tmp_path: Path, source: str, status: int) -> None:
    """Fails if a part is found, if a failing test passes, or if nothing that is skipped does."""
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n docker\n fleet\n ray\n gpu\n")
    (tmp_path / "test_some.py").write_text(source)
    parts = tmp_path / "bin"
    parts.mkdir()
    for name in ("bwrap", "docker", "chromium"):
        (parts / name).write_text("#!/bin/sh\n")
        (parts / name).chmod(0o755)
    found = subprocess.run(
        [sys.executable, str(SCRIPT), "test_some.py"],
        cwd=tmp_path,
        env=os.environ
        | {"PATH": f"{parts}{os.pathsep}{os.environ['PATH']}", "CI": "true"}
        | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
    )
    assert found.returncode == status, found.stdout
