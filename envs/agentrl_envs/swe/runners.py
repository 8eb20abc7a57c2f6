"""Test runners of repositories in the SWE-bench family, and the names that they give tests.

All run pytest but for two, as in SWE-bench's `test_cmd`
(https://github.com/SWE-bench/SWE-bench, swebench/harness/constants/python.py): django has a runner
of its own, sympy another one. Their results are read from what they print, see `judge`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from agentrl.errors import DataError
from agentrl_envs.swe.record import SweTask

CONDA = "/opt/miniconda3/envs/testbed/bin"
"""Programs of the repository in images of SWE-bench."""
PYTEST = ("-m", "pytest", "-rA", "-p", "no:cacheprovider")
_PATH = f"{CONDA}:/usr/local/bin:/usr/bin:/bin"
_DJANGO_NAME = re.compile(r"(\w++) \(([\w.]++)\)")


class UnsupportedRow(DataError):
    """A row whose tests cannot be run here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Runner:
    """The way a row's tests are run."""

    command: tuple[str, ...]
    """From the root of the repository."""
    log: str = ""
    """Kind of output that results are read from; empty where the plugin of pytest reports."""
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    """Variables."""


def runner_of(record: SweTask, changed: Sequence[str], where: str) -> Runner:
    """The runner of a row.

    Args:
        record: the row.
        changed: Python files that its `test_patch` changes.
        where: file and row, for messages.

    Raises:
        UnsupportedRow: its tests are named as no runner here names them.
        DataError: nothing says which files to run.
    """
    names = (*record.FAIL_TO_PASS, *record.PASS_TO_PASS)
    env = {"PATH": _PATH}
    if record.repo == "django/django":
        return _django(record, changed, env, where)
    if record.repo == "sympy/sympy" and not any("::" in name for name in names):
        if not changed:
            raise DataError(f"{where}: test_patch does not say which file to run")
        return Runner(
            command=(f"{CONDA}/python", "bin/test", "-C", "--verbose", *changed),
            log="sympy",
            env={**env, "PYTHONWARNINGS": "ignore::UserWarning,ignore::SyntaxWarning"},
        )
    strange = [name for name in names if "::" not in name and not name.isidentifier()]
    if strange:
        raise UnsupportedRow(
            f"{where}: {record.instance_id!r} ({record.repo}) names the test {strange[0]!r}, which "
            "is no pytest node id, and its repository's own test runner is not known here "
            "(known: django/django, sympy/sympy); leave the row out, or all such rows with "
            "dataset.args.skip_unsupported=true"
        )
    tests = tuple(dict.fromkeys(name.partition("::")[0] for name in names if "::" in name))
    if not tests and not changed:
        raise DataError(f"{where}: neither the names of tests nor test_patch say which file to run")
    return Runner(command=(f"{CONDA}/python", *PYTEST, *(tests or changed)), env=env)


def _django(record: SweTask, changed: Sequence[str], env: Mapping[str, str], where: str) -> Runner:
    labels = [
        name.removeprefix("tests/").removesuffix(".py").replace("/", ".")
        for name in changed
        if name.startswith("tests/")
    ]
    if not labels:
        raise UnsupportedRow(
            f"{where}: {record.instance_id!r}: its test_patch changes no Python file below tests/, "
            "so nothing says what django's runner is to run; leave the row out, or all such rows "
            "with dataset.args.skip_unsupported=true"
        )
    options = ("--settings=test_sqlite", "--parallel", "1") if record.version != "1.9" else ()
    return Runner(
        command=(f"{CONDA}/python", "tests/runtests.py", "--verbosity", "2", *options, *labels),
        log="django",
        # Some tests print or read other letters than those of ASCII.
        env={**env, "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", "PYTHONIOENCODING": "utf8"},
    )


def node_ids(task: SweTask, files: Iterable[str]) -> dict[str, str]:
    """The pytest node id of each test of a task, by the name that its runner gives it.

    A name that says nothing of a place (the first line of a docstring, in django) is left out.

    Args:
        task: the task.
        files: paths of its tree.
    """
    names = (*task.FAIL_TO_PASS, *task.PASS_TO_PASS)
    if task.test_log == "django":
        known = frozenset(files)
        found = {name: _django_id(name, known) for name in names}
    elif task.test_log == "sympy":
        one = [path for path in task.test_paths if path.endswith(".py")]
        found = {name: f"{one[0]}::{name}" if len(one) == 1 else "" for name in names}
    else:
        found = {name: name for name in names}
    return {name: place for name, place in found.items() if place}


def _django_id(name: str, files: frozenset[str]) -> str:
    match = _DJANGO_NAME.fullmatch(name)
    if match is None:
        return ""
    function, *parts = match[1], *match[2].split(".")
    if parts[-1] == function:
        parts = parts[:-1]  # Python 3.11 names the method once more
    if len(parts) < 2:
        return ""
    path = "/".join(("tests", *parts[:-1])) + ".py"
    if path not in files:
        path = "/".join(("tests", *parts[:-1], "__init__.py"))
    return f"{path}::{parts[-1]}::{function}" if path in files else ""
