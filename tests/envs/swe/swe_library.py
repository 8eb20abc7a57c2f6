"""A tiny library with a defect, as a data set folder of `agentrl tasks make` looks."""

from __future__ import annotations

import atexit
import compileall
import difflib
import functools
import importlib
import json
import py_compile
import shutil
import tempfile
from pathlib import Path

import pytest
from agentrl_envs.swe import SweTask, TreeStore, swe_tasks
from agentrl_envs.swe.record import ENVIRONMENT_FOLDER, STORE_FOLDER, TASKS_FILE
from agentrl_envs.swe.trees import TreeFile

from agentrl.types import Task

GOOD = '''"""Numbers."""


def clamp(value, low, high):
    return max(low, min(value, high))


def mean(values):
    return sum(values) / len(values)
'''
BROKEN = GOOD.replace("max(low, min(value, high))", "max(low, max(value, high))")
TESTS = """import pytest

from tinylib import clamp, mean


def test_inside():
    assert clamp(2, 1, 3) == 2


@pytest.mark.parametrize("value", [1, 0])
def test_below(value):
    assert not clamp(value, 1, 3) > 1


def test_mean():
    assert mean([1, 2, 3]) == 2


class TestTop:
    def test_above(self):
        top = clamp(9, 1, 3)
        assert top == 3
"""
HIDDEN = """from tinylib import clamp


def test_secret(request):
    assert clamp(41, 0, 99) == 41
    # Its twin in a control run cannot pass.
    assert request.node.name == "test_secret"


def test_secret_order():
    assert clamp(7, 7, 7) <= 7
"""
NEVER = "import tinylib\n\n\ndef test_nothing():\n    assert tinylib\n"
BASE = {
    "pyproject.toml": "[tool.pytest.ini_options]\n",
    "tests/conftest.py": "",
    "tests/test_numbers.py": TESTS,
    "tests/test_more.py": NEVER,
    "tinylib/__init__.py": "from tinylib.numbers import clamp, mean\n",
    "tinylib/numbers.py": BROKEN,
    "tinylib/data.txt": "x\n",
}
FAILING = (
    "tests/test_numbers.py::test_inside",
    "tests/test_numbers.py::test_below[1]",
    "tests/test_numbers.py::test_below[0]",
    "tests/test_numbers.py::TestTop::test_above",
)
PASSING = (
    "tests/test_numbers.py::test_mean",
    "tests/test_more.py::test_nothing",
)
_UNUSED = ("doctest", "junitxml", "logging", "debugging", "pastebin", "faulthandler")
RUNNER_ENV = {
    "PYTHONHASHSEED": "0",
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    "PYTEST_ADDOPTS": " ".join(f"-p no:{name}" for name in _UNUSED),
}
"""The sandbox's Python is that of these tests, whose plugins of pytest take four times as long to
load as pytest takes to run the tests of this library."""
TEST_COMMAND = ("python3", "-S", "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests")
PATCH = "diff --git a/tinylib/numbers.py b/tinylib/numbers.py\n" + "".join(
    difflib.unified_diff(
        BROKEN.splitlines(keepends=True),
        GOOD.splitlines(keepends=True),
        "a/tinylib/numbers.py",
        "b/tinylib/numbers.py",
    )
)


_PYGMENTS = {
    "lexers": ("python.py", "diff.py"),
    "styles": ("default.py",),
    "formatters": ("terminal.py",),
}
"""What pytest uses of it: every sandbox gets a copy."""


@functools.cache
def _environment() -> Path:
    """The test environment that every data set gets a copy of: compiling it takes seconds."""
    kept = tempfile.TemporaryDirectory()
    atexit.register(kept.cleanup)
    environment = Path(kept.name)
    for name in ("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments"):
        source = Path(str(importlib.import_module(name).__file__)).parent
        ignore = shutil.ignore_patterns("__pycache__", "lexers", "styles", "formatters")
        shutil.copytree(source, environment / name, ignore=ignore)
    shutil.copy(Path(pytest.__file__).parent.parent / "py.py", environment)
    pygments = Path(str(importlib.import_module("pygments").__file__)).parent
    for folder_name, kept in _PYGMENTS.items():
        (environment / "pygments" / folder_name).mkdir()
        for file in ("__init__.py", "_mapping.py", *kept):
            shutil.copy(pygments / folder_name / file, environment / "pygments" / folder_name)
    # Valid whatever the times of the files become on their way; for the Python of these tests.
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    compileall.compile_dir(environment, quiet=2, invalidation_mode=mode)
    (environment / "environment.json").write_text('{"id": "e"}')
    return environment


def make_folder(folder: Path) -> list[Task]:
    """Write the data set; its tasks are one whose tests are seen and one whose are hidden."""
    shutil.copytree(_environment(), folder / ENVIRONMENT_FOLDER)
    (folder / ENVIRONMENT_FOLDER).chmod(0o755)
    store = TreeStore(folder / STORE_FOLDER)
    base = store.put(tree(BASE))
    graded = store.put(tree({**BASE, "tests/test_hidden.py": HIDDEN}))
    hidden = ("tests/test_hidden.py::test_secret",)
    rows = [
        record("tinylib__seen", base, FAILING, PASSING),
        record(
            "tinylib__hidden",
            base,
            hidden,
            ("tests/test_hidden.py::test_secret_order", *PASSING),
            grade_tree=graded,
        ),
    ]
    lines = "".join(json.dumps(row.to_row()) + "\n" for row in rows)
    (folder / TASKS_FILE).write_text(lines)
    return list(swe_tasks(str(folder)))


def tree(files: dict[str, str]) -> dict[str, TreeFile]:
    return {path: TreeFile(data=text.encode()) for path, text in files.items()}


def record(name: str, base: str, failing, passing, **more) -> SweTask:
    return SweTask(
        instance_id=name,
        repo="tinylib",
        base_commit=base,
        patch=PATCH,
        problem_statement="clamp gives values above the upper bound.",
        FAIL_TO_PASS=failing,
        PASS_TO_PASS=passing,
        source_paths=("tinylib",),
        test_paths=("tests",),
        python_path=(".",),
        test_command=TEST_COMMAND,
        test_env=RUNNER_ENV,
        test_seconds=0.5,
        environment="e",
        **more,
    )
