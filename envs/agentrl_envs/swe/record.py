"""One repair task as a row: SWE-bench's names for what SWE-bench has, ours for the rest.

`SweTask` is what the maker writes, what the environment starts from and what the readers of other
data sets produce. A row is self-contained but for the trees, which lie in a `TreeStore` beside it,
and the test environment, a folder of pure-Python packages that every task of a data set shares.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentrl.errors import DataError

TASKS_FILE = "tasks.jsonl"
"""The rows of a data set folder."""
STORE_FOLDER = "store"
"""The `TreeStore` of a data set folder."""
ENVIRONMENT_FOLDER = "environment"
"""The shared test environment of a data set folder: goes on `PYTHONPATH`, read-only."""
REPO_FOLDER = "repo"
"""Where in a sandbox's work directory the task's tree is put."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweTask:
    """A repository in which named tests fail, and what makes them pass.

    The last two groups of fields are ours; a row of another data set leaves them at their defaults.
    """

    instance_id: str
    """Unique and stable; safe as a file name."""
    repo: str
    """The library, as PyPI names it; `owner/name` in rows of other data sets."""
    base_commit: str
    """What the model starts from: the id of a tree in the store, or a commit."""
    patch: str
    """The gold change of source files, a unified diff against `base_commit`."""
    problem_statement: str
    """The defect as the model reads it, without the fix."""
    FAIL_TO_PASS: tuple[str, ...]
    """Tests, by pytest node id, that fail before and pass after `patch`."""
    PASS_TO_PASS: tuple[str, ...] = ()
    """Tests that pass before and after."""
    test_patch: str = ""
    """Changes of the tests that the model does not see; empty where it sees all of them."""
    version: str = ""
    """Release of the library that the fixed source belongs to."""
    hints_text: str = ""
    """Never shown to the model by our environment."""
    created_at: str = ""
    """When the release was uploaded, ISO 8601; empty where the index does not name it."""
    environment_setup_commit: str = ""
    """As in SWE-bench; empty in ours."""

    image: str = ""
    """Container image that holds the repository; empty in ours, where `base_commit` is uploaded."""
    grade_tree: str = ""
    """Tree to grade in: `base_commit` with the tests as they are to be. Empty takes
    `base_commit`. Grading puts the agent's changes of source files on top of it."""
    source_paths: tuple[str, ...] = ()
    """Folders and files, relative to the tree, whose changes count; all others are put back. Empty
    is unknown: everything that is not a test or a test's configuration counts."""
    test_paths: tuple[str, ...] = ()
    """Files and folders that are tests even below `source_paths`."""
    python_path: tuple[str, ...] = ()
    """Folders of the tree that go on `PYTHONPATH`, before the test environment."""
    test_command: tuple[str, ...] = ()
    """How all named tests are run from the root of the tree; a runner may add pytest options."""
    test_log: str = ""
    """Kind of output that results are read from (`django`, `sympy`); empty where `test_command` is
    pytest, whose plugin reports them."""
    test_env: Mapping[str, str] = field(default_factory=dict[str, str])
    """Variables that pin time zone, locale and hash seed."""
    test_seconds: float = 0.0
    """How long `test_command` took with the fixed source, on the maker's machine, without the
    time in which it waited for a processor that others had."""
    environment: str = ""
    """Id of the test environment; its folder holds a file `environment.json` with the same."""
    requirements: tuple[str, ...] = ()
    """What that environment is made of, pinned: for an image or another machine."""
    python: str = ""
    """Version of Python that it was validated with."""

    kind: str = ""
    """`procedural`, `several`, `removed` or `releases`."""
    operator: str = ""
    """Which operator put the bug in; of several those of all, joined by `+`."""
    style: str = ""
    """`tests` where the text names the failing tests, `natural` where it is a user's report and
    the tests are hidden; empty in rows of other data sets."""
    parts: tuple[str, ...] = ()
    """Of a bug with several sites, for each of them the patch that mends all others and not it."""
    figures: Mapping[str, float] = field(default_factory=dict[str, float])
    """How hard the task is, see `make/difficulty.py`: `level`, `sites`, `files`, `failing_tests`,
    `failing_share`, `fix_lines`, `depth` where it was measured, and `solve_rate` with
    `solve_rollouts` where `agentrl tasks levels --rates` has written them."""
    source_file: str = ""
    """The file with the bug; of a release pair the first."""
    split: str = "train"
    """`train` or `test`; all tasks of a library are in one."""
    license: str = ""
    """SPDX id of the library's licence, or the text of its metadata."""
    license_file: str = ""
    """Path in the tree of the licence text."""
    provenance: Mapping[str, str] = field(default_factory=dict[str, str])
    """`name`, `version`, `file`, `url` and `sha256` of the source distribution, and those of the
    older release as `old_version`, `old_file`, ... in a release pair."""

    def to_row(self) -> dict[str, Any]:
        """As JSON knows it."""
        row = {name: getattr(self, name) for name in _TYPES}
        return {
            name: list(value)
            if isinstance(value, tuple)
            else dict(value)
            if isinstance(value, Mapping)
            else value
            for name, value in row.items()
        }

    @classmethod
    def from_row(cls, row: Mapping[str, Any], where: str) -> SweTask:
        """Read a row of ours or of SWE-bench; columns that are not fields are left out.

        Args:
            row: lists of tests may be JSON text, as in older SWE-bench files.
            where: file and row, for messages.

        Raises:
            DataError: a field that is missing or of another type; names it and the row.
        """
        if not isinstance(row, Mapping):
            raise DataError(f"{where}: expected an object with columns, got {type(row).__name__}")
        values = {
            name: _value(name, kind, row[name], where)
            for name, kind in _TYPES.items()
            if row.get(name) is not None
        }
        missing = [name for name in _REQUIRED if not values.get(name)]
        if missing:
            raise DataError(
                f"{where}: a repair task needs {', '.join(_REQUIRED)}; missing or empty: "
                f"{', '.join(missing)}; columns here: {', '.join(map(str, row))}"
            )
        return cls(**values)

    def variables(self, root: str, environment: str) -> dict[str, str]:
        """The variables to run `test_command` with.

        Args:
            root: absolute path, in the sandbox, of the task's tree.
            environment: absolute path, in the sandbox, of the test environment; may be empty where
                the image holds the packages.
        """
        places = [root if part == "." else f"{root}/{part}" for part in self.python_path]
        path = [*places, *([environment] if environment else [])]
        return {**self.test_env, "PYTHONPATH": ":".join(path)}


def _value(name: str, kind: Any, value: Any, where: str) -> Any:
    if kind is tuple and isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise DataError(f"{where}: {name} is not a list in JSON: {error}") from None
    if kind is tuple and not isinstance(value, str) and hasattr(value, "tolist"):
        value = value.tolist()
    if (
        kind is tuple
        and isinstance(value, (list, tuple))
        and all(isinstance(v, str) for v in value)
    ):
        return tuple(value)
    if kind is _NUMBERS and isinstance(value, Mapping):
        if all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in value.values()):
            return {str(key): float(item) for key, item in value.items()}
        raise DataError(f"{where}: {name} is {ascii(value)[:80]}; expected numbers by name")
    if kind is Mapping and isinstance(value, Mapping):
        return {str(key): str(item) for key, item in value.items()}
    if kind is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if kind is str and isinstance(value, str):
        return value
    expected = {tuple: "a list of strings", Mapping: "an object", float: "a number", str: "text",
                _NUMBERS: "an object with numbers"}  # fmt: skip
    raise DataError(
        f"{where}: {name} is {type(value).__name__} {ascii(value)[:80]}; expected {expected[kind]}"
    )


def _kind(hint: Any) -> Any:
    origin = typing.get_origin(hint) or hint
    if typing.get_args(hint)[1:] == (float,):
        return _NUMBERS
    return origin if origin in (tuple, str, float) else Mapping


_NUMBERS = object()
"""Stands for an object whose values are numbers."""
_TYPES: Mapping[str, Any] = types.MappingProxyType(
    {name: _kind(hint) for name, hint in typing.get_type_hints(SweTask).items()}
)
_REQUIRED = tuple(
    item.name
    for item in dataclasses.fields(SweTask)
    if item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING
)


def read_tasks(path: Path) -> Iterator[SweTask]:
    """The tasks of a data set folder, or of a JSONL file.

    Raises:
        DataError: no such file, or a row that is not a task; names the line.
    """
    file = path / TASKS_FILE if path.is_dir() else path
    try:
        stream = file.open("rb")
    except OSError as error:
        raise DataError(
            f"{file}: {error.strerror}; expected a folder made by 'agentrl tasks make', or a "
            "JSONL file"
        ) from error
    with stream:
        for number, line in enumerate(stream, start=1):
            if not line.strip():
                continue
            where = f"{file}, line {number}"
            try:
                row = json.loads(line)
            except ValueError as error:
                raise DataError(f"{where}: not JSON: {error}") from None
            task = SweTask.from_row(row, where)
            if not task.image and not task.test_command:
                raise DataError(
                    f"{where}: test_command is missing or empty, so nothing could be graded; a row "
                    "of 'agentrl tasks make' has one, a row of SWE-bench needs "
                    "agentrl_envs.swe:swe_bench as its source"
                )
            yield task
