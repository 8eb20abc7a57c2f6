"""Test runners of repositories in the SWE-bench family, and the names that they give tests.

All run pytest but for two, as in SWE-bench's `test_cmd`
(https://github.com/SWE-bench/SWE-bench, swebench/harness/constants/python.py): django has a runner
of its own, sympy another one. Their results are read from what they print, see `judge`. A config
may name the runner of any other repository:

    dataset.args.runners:
      owner/name:
        command: [python, -m, unittest, -v, "{labels}"]
        log: {passed: '^(?P<name>.+) [.]{3} ok$', failed: '^(?:FAIL|ERROR): (?P<name>.+)$'}
        env: {PATH: /opt/venv/bin:/usr/bin:/bin}

`{files}` stands for the test files of the row, `{labels}` for the same as module names, `{names}`
for its tests; `log` is `pytest`, `django` (also of unittest), `sympy`, or patterns by how a line
says that a test ended: `passed`, `failed`, `skipped`, `expected` (it failed as it was to).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from agentrl.errors import DataError, choices
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


RunnersByRepo = Mapping[str, Mapping[str, Any]]
"""Runners of a config, by repository."""
_KEYS = ("command", "log", "env")
_LOGS = ("pytest", "django", "sympy")
_STATES = {"passed": "p", "failed": "f", "skipped": "s", "expected": "x"}


def check_runners(runners: RunnersByRepo) -> None:
    """Refuse runners of a config that have no use.

    Raises:
        DataError: names the repository and the key.
    """
    for repo, made in runners.items():
        where = f"runners, {repo!r}"
        if not isinstance(made, Mapping) or set(made) - set(_KEYS):
            got = sorted(map(str, made)) if isinstance(made, Mapping) else type(made).__name__
            raise DataError(f"{where}: expected an object with {', '.join(_KEYS)}; got {got}")
        command = made.get("command")
        if not isinstance(command, Sequence) or isinstance(command, str) or not command:
            raise DataError(f"{where}: command is {command!r}; expected a list of words")
        _check_log(made.get("log", "pytest"), where)


def _check_log(log: Any, where: str) -> None:
    if isinstance(log, str):
        if log not in _LOGS:
            raise DataError(f"{where}: log: {choices(log, _LOGS)}, or patterns by state")
        return
    if not isinstance(log, Mapping) or set(log) - set(_STATES) or "passed" not in log:
        raise DataError(
            f"{where}: log is {log!r}; expected one of {', '.join(_LOGS)}, or patterns by "
            f"{', '.join(_STATES)}, of which passed is needed"
        )
    for state, text in log.items():
        try:
            pattern = re.compile(str(text))
        except re.error as error:
            raise DataError(f"{where}: log.{state}: {text!r} is no pattern: {error}") from None
        if "name" not in pattern.groupindex:
            raise DataError(f"{where}: log.{state}: {text!r} has no group (?P<name>...)")


def _configured(
    made: Mapping[str, Any], record: SweTask, changed: Sequence[str], where: str
) -> Runner:
    """The runner that a config names for a repository."""
    names = (*record.FAIL_TO_PASS, *record.PASS_TO_PASS)
    named = [name.partition("::")[0] for name in names if "::" in name]
    files = tuple(dict.fromkeys(named or changed))
    places = {
        "{files}": files,
        "{labels}": tuple(name.removesuffix(".py").replace("/", ".") for name in files),
        "{names}": names,
    }
    words = [str(word) for word in made["command"]]
    if not files and {"{files}", "{labels}"} & set(words):
        raise UnsupportedRow(
            f"{where}: {record.instance_id!r}: neither the names of its tests nor test_patch say "
            f"which file to run, as the runner of {record.repo} in dataset.args.runners asks for"
        )
    log = made.get("log", "pytest")
    if isinstance(log, Mapping):
        log = json.dumps({_STATES[state]: text for state, text in log.items()}, sort_keys=True)
    env = {str(name): str(value) for name, value in (made.get("env") or {}).items()}
    return Runner(
        command=tuple(part for word in words for part in places.get(word, (word,))),
        log="" if log == "pytest" else str(log),
        env={"PATH": _PATH, **env},
    )


def runner_of(
    record: SweTask,
    changed: Sequence[str],
    where: str,
    runners: RunnersByRepo = MappingProxyType({}),
) -> Runner:
    """The runner of a row.

    Args:
        record: the row.
        changed: Python files that its `test_patch` changes.
        where: file and row, for messages.
        runners: of a config, checked; they come before those known here.

    Raises:
        UnsupportedRow: its tests are named as no runner here names them, or nothing says which
            files to run.
    """
    names = (*record.FAIL_TO_PASS, *record.PASS_TO_PASS)
    if record.repo in runners:
        return _configured(runners[record.repo], record, changed, where)
    env = {"PATH": _PATH}
    if record.repo == "django/django":
        return _django(record, changed, env, where)
    if record.repo == "sympy/sympy" and not any("::" in name for name in names):
        if not changed:
            raise UnsupportedRow(f"{where}: test_patch does not say which file to run")
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
            "(known: django/django, sympy/sympy); name it in dataset.args.runners, leave the row "
            "out, or all such rows with dataset.args.skip_unsupported=true"
        )
    tests = tuple(dict.fromkeys(name.partition("::")[0] for name in names if "::" in name))
    if not tests and not changed:
        raise UnsupportedRow(
            f"{where}: neither the names of tests nor test_patch say which file to run"
        )
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
        known = frozenset(files)
        found = {name: name if "::" in name else _dotted_id(name, known) for name in names}
    return {name: place for name, place in found.items() if place}


def _dotted_id(name: str, files: frozenset[str]) -> str:
    """The node id of a name as unittest or its like give it; the name itself where unsure."""
    dotted = re.sub(r"(\w+) \(([\w.]+)\)", r"\2.\1", name).split(".")
    for end in range(len(dotted) - 1, 0, -1):
        path = "/".join(dotted[:end]) + ".py"
        if path in files:
            return "::".join((path, *dict.fromkeys(dotted[end:])))
    return name


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
