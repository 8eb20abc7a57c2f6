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

INI = "[pytest]\nmarkers =\n docker\n fleet\n ray\n gpu\n slow\n families\n"
SCRIPT = Path(__file__).parents[1] / ".ci" / "tests.py"


def start(folder: Path, source: str, *arguments: str) -> subprocess.Popen[str]:
    (folder / "pytest.ini").write_text(INI)
    if source:
        (folder / "test_some.py").write_text(f"import pytest, time, pathlib\n{source}")
    options = {"PYTEST_ADDOPTS": "-p xdist -p no:cacheprovider"}
    return subprocess.Popen(
        # Without the workers of the plain phase, which take a second.
        [sys.executable, str(SCRIPT), "-q", "-n0", *arguments],
        cwd=folder,
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **options},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
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
    counts = {"plain": 1, "docker": 0, "servers": 0, "ray": 1, "families": 0}
    pattern = ", ".join(rf"{phase} {count} in \d+:\d\d" for phase, count in counts.items())
    assert re.fullmatch(rf"agentrl: passed: {pattern}; all in \S+", parts), parts
    assert "fixture 'broken' not found" in text


@pytest.mark.parametrize(
    ("arguments", "status", "total"),
    [
        (["-k", "test_plain"], 0, "1 passed, 0 failed, 0 skipped"),
        (["-k", "no_such_test"], 1, "0 passed, 0 failed, 0 skipped"),
        (["--no-such-option"], 1, "0 passed, 5 failed, 0 skipped"),
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


def slow_project(folder: Path) -> None:
    """A project with two slow files and a quick one."""
    for name, source in {
        "tests/test_quick.py": "def test_quick(): pass",
        "tests/test_slow.py": f"{SLOW}from tests import needed\ndef test_slow(): pass",
        "tests/test_wrong.py": f"{SLOW}def test_wrong(): assert False",
        "tests/test_without.py": f"{SLOW}def test_without(): pytest.skip('no part')",
        "tests/needed.py": "",
        "conftest.py": "import sys; sys.path.append('.')",
    }.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(source)
    (folder / ".ci").mkdir()


SLOW = "import pytest\npytestmark = [pytest.mark.slow]\n"


def run(folder: Path, *arguments: str, source: str = "") -> str:
    with start(folder, source, *arguments) as process:
        text, _ = process.communicate()
    return text


def record_of(folder: Path) -> Path:
    return folder / ".ci" / "passed.txt"


def test_files_that_passed_are_left_out_until_their_reach_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if a failed or skipped file is recorded, or a changed or named file is left out."""
    monkeypatch.setenv("CI", "true")
    slow_project(tmp_path)
    first = run(tmp_path)
    assert closing_lines(first)[1] == "agentrl: 2 passed, 1 failed, 1 skipped"
    assert ".ci/passed.txt: 1 slow test files written, 0 removed" in first
    (line,) = record_of(tmp_path).read_text().splitlines()
    assert line.startswith("tests/test_slow.py ")
    assert f"\n{line}\n" in first

    again = run(tmp_path)
    assert closing_lines(again)[1] == "agentrl: 1 passed, 1 failed, 1 skipped"
    assert again.count("agentrl: left out 1 slow test files (0 minutes), since nothing") == 2
    assert "0 run since something did, 2 since .ci/passed.txt does not hold them" in again
    assert record_of(tmp_path).read_text() == f"{line}\n"
    named = run(tmp_path, "tests/test_slow.py", "tests/test_wrong.py")
    assert closing_lines(named)[1].startswith("agentrl: 1 passed, 1")

    (tmp_path / "tests" / "needed.py").write_text("changed = 1")
    changed = run(tmp_path)
    assert closing_lines(changed)[1] == "agentrl: 2 passed, 1 failed, 1 skipped"
    assert "1 run since something did" in changed
    assert record_of(tmp_path).read_text() != f"{line}\n"


def test_a_file_that_fails_loses_its_line_and_others_keep_theirs(tmp_path: Path) -> None:
    slow_project(tmp_path)
    digest = "0" * 32
    record = record_of(tmp_path)
    record.write_text(f"tests/test_slow.py {digest} 5\ntests/test_wrong.py {digest} 5\n<<<<<<<\n")
    text = run(tmp_path, "tests/test_wrong.py")
    assert ".ci/passed.txt: 0 slow test files written, 1 removed" in text
    assert record.read_text() == f"tests/test_slow.py {digest} 5\n"
    # A part of a file that passes is no file that passed.
    for words in (["tests/test_slow.py::test_slow"], ["tests/test_slow.py", "-k", "slow"]):
        assert "1 passed" in run(tmp_path, *words)
        assert record.read_text() == f"tests/test_slow.py {digest} 5\n"


def test_a_phase_that_did_not_end_spoils_only_what_could_have_tests_there(tmp_path: Path) -> None:
    """Fails if Ctrl-C among the Ray tests loses what passed before, or records a file of which one
    test never ran."""
    slow_project(tmp_path)
    for name, source in {
        "docker": "pytestmark = [pytest.mark.docker, pytest.mark.slow]\ndef test_docker(): pass\n",
        "part": f"{SLOW}def test_here(): pass\n@pytest.mark.ray\ndef test_there(): pass\n",
        "ray": f"{SLOW.replace('[', '[pytest.mark.ray, ')}def test_it(): raise KeyboardInterrupt\n",
    }.items():
        (tmp_path / "tests" / f"test_{name}.py").write_text(f"import pytest\n{source}")
    text = run(tmp_path, "--all")
    assert ".ci/passed.txt: 2 slow test files written" in text
    files = [line.split()[0] for line in record_of(tmp_path).read_text().splitlines()]
    assert files == ["tests/test_docker.py", "tests/test_slow.py"]


def test_the_record_never_leaves_a_run_without_tests(tmp_path: Path) -> None:
    slow_project(tmp_path)
    for name in ("quick", "wrong", "without"):
        (tmp_path / "tests" / f"test_{name}.py").unlink()
    run(tmp_path)
    assert record_of(tmp_path).read_text()
    assert closing_lines(run(tmp_path))[1] == "agentrl: 1 passed, 0 failed, 0 skipped"


FAILS_ONCE = """
def first_time(name):
    file = pathlib.Path(name)
    known = file.exists()
    file.touch()
    return not known
class TestGroup:
    @pytest.mark.parametrize("case", ["a/b", "c[d"])
    def test_late(self, case): assert not first_time(f"late-{ord(case[0])}")
def test_good(): pass
@pytest.mark.ray
def test_wrong(broken): pass
"""


def test_failing_tests_are_named_and_run_once(tmp_path: Path) -> None:
    """Fails if a second try hides a test that a busy machine fails, or an error is not named."""
    text = run(tmp_path, source=FAILS_ONCE)
    assert closing_lines(text)[1] == "agentrl: 1 passed, 3 failed, 0 skipped"
    assert [line for line in text.splitlines() if line.startswith("agentrl: failed among")] == [
        "agentrl: failed among the plain tests: test_some.py::TestGroup::test_late[a/b]",
        "agentrl: failed among the plain tests: test_some.py::TestGroup::test_late[c[d]",
        "agentrl: failed among the ray tests: test_some.py::test_wrong",
    ]
