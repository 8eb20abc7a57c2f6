"""`.ci/tests.py`, which `make test` runs: one closing line, and an exit status that means it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / ".ci" / "tests.py"


def start(folder: Path, source: str, *arguments: str) -> subprocess.Popen[str]:
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n docker\n fleet\n ray\n gpu\n")
    (folder / "test_some.py").write_text(f"import pytest, time, pathlib\n{source}")
    # Without the workers of the plain phase, which take a second; `start_all` has them.
    options = ["-q", "-p", "xdist", "-n", "0", "-p", "no:cacheprovider"]
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), *options, *arguments],
        cwd=folder,
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def start_all(folder: Path, source: str) -> subprocess.Popen[str]:
    """Start it without arguments, as `make test` does."""
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n docker\n fleet\n ray\n gpu\n")
    (folder / "test_some.py").write_text(f"import pytest, pathlib\n{source}")
    options = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "-q -p xdist"}
    return subprocess.Popen(
        [sys.executable, str(SCRIPT)],
        cwd=folder,
        env=os.environ | options,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def closing_lines(text: str) -> list[str]:
    return text.strip().splitlines()[-2:]


def test_counts_of_all_phases_stand_in_the_last_line(tmp_path: Path) -> None:
    """Fails if a failure of one phase is lost in those after it, or an error is no failure."""
    source = """
def test_plain(): pass
def test_left_out(): pytest.skip("here")
@pytest.mark.docker
def test_docker(broken): pass
@pytest.mark.ray
def test_ray(): pass
@pytest.mark.gpu
def test_gpu(): raise AssertionError("deselected, and said so")
@pytest.mark.gpu
@pytest.mark.ray
def test_gpu_and_ray(): raise AssertionError("deselected in every phase")
"""
    with start(tmp_path, source) as process:
        text, _ = process.communicate()
    assert process.returncode == 1
    assert "agentrl: tests marked gpu are not run here" in text
    parts, total = closing_lines(text)
    assert total == "agentrl: 2 passed, 1 failed, 1 skipped"
    pattern = r"plain 1 in \d+:\d\d, docker 0 in \S+, servers 0 in \S+, ray 1 in \S+; all in \S+"
    assert re.fullmatch("agentrl: passed: " + pattern, parts), parts
    assert "fixture 'broken' not found" in text


@pytest.mark.parametrize(
    ("arguments", "status", "total"),
    [
        (["-k", "test_plain"], 0, "1 passed, 0 failed, 0 skipped"),
        (["-k", "no_such_test"], 1, "0 passed, 0 failed, 0 skipped"),
        (["--no-such-option"], 1, "0 passed, 4 failed, 0 skipped"),
    ],
)
def test_a_phase_may_select_nothing_but_not_all_of_them(
    tmp_path: Path, arguments: list[str], status: int, total: str
) -> None:
    with start(tmp_path, "def test_plain(): pass", *arguments) as process:
        text, _ = process.communicate()
    assert process.returncode == status, text
    assert closing_lines(text)[1] == f"agentrl: {total}"


def test_ctrl_c_shows_what_there_is(tmp_path: Path) -> None:
    source = """
@pytest.mark.docker
def test_first(): pass
@pytest.mark.docker
def test_long():
    pathlib.Path("began").touch()
    time.sleep(600)
"""
    with start(tmp_path, source) as process:
        deadline = time.monotonic() + 120
        while not (tmp_path / "began").exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        text, _ = process.communicate()
    assert process.returncode == 130, text
    assert closing_lines(text)[1].startswith("agentrl: 1 passed, ")


SECOND_TIME = """
def second_time(name):
    file = pathlib.Path(name)
    if file.exists():
        return True
    file.touch()
    return False
class TestGroup:
    @pytest.mark.parametrize("case", ["a/b", "c[d"])
    def test_late(self, case): assert second_time(f"late-{ord(case[0])}")
def test_good(): pass
@pytest.mark.ray
def test_wrong(): assert WRONG
"""


def test_a_test_that_passes_when_run_once_more_is_named(tmp_path: Path) -> None:
    """Fails if a busy machine fails a run, or if nobody learns which tests it was."""
    with start_all(tmp_path, SECOND_TIME.replace("WRONG", "True")) as process:
        text, _ = process.communicate()
    assert process.returncode == 0, text
    assert closing_lines(text)[1] == "agentrl: 4 passed, 0 failed, 0 skipped"
    for case in ("a/b", "c[d"):
        assert f"passed when run once more: test_some.py::TestGroup::test_late[{case}]" in text


def test_a_test_that_fails_again_fails_the_run(tmp_path: Path) -> None:
    with start_all(tmp_path, SECOND_TIME.replace("WRONG", "False")) as process:
        text, _ = process.communicate()
    assert process.returncode == 1, text
    assert closing_lines(text)[1] == "agentrl: 3 passed, 1 failed, 0 skipped"


def test_many_failing_tests_do_not_run_again(tmp_path: Path) -> None:
    source = "@pytest.mark.parametrize('i', range(6))\ndef test_wrong(i): assert False"
    with start_all(tmp_path, source) as process:
        text, _ = process.communicate()
    assert process.returncode == 1
    assert "run once more" not in text
    assert closing_lines(text)[1] == "agentrl: 0 passed, 6 failed, 0 skipped"
