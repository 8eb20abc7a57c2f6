"""The changes of an agent's tree that count: of source files, and of nothing that steers the tests.

Grading starts from a pristine tree and takes over only what this module lets through. Whatever else
the agent left (tests, configuration, compiled files, links, start-up hooks) is not there then.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from agentrl_envs.swe.patches import same_name
from agentrl_envs.swe.record import SweTask
from agentrl_envs.swe.trees import TreeFile

MAX_BYTES = 4 * 2**20
"""Bytes of changed files that are taken over."""
MAX_FILES = 2000
"""Changed files that are taken over: each is written by itself."""
_NEVER_NAMES = frozenset(
    [
        "conftest.py",
        "sitecustomize.py",
        "usercustomize.py",
        "pytest.ini",
        ".pytest.ini",
        "pytest.toml",
        ".pytest.toml",
        "tox.ini",
        "setup.cfg",
        "setup.py",
        "pyproject.toml",
        "noxfile.py",
        ".coveragerc",
        ".git",
        ".hg",
        ".svn",
        "__pycache__",
        ".pytest_cache",
        ".eggs",
        ".tox",
        "site-packages",
    ]
)
"""Files and folders that steer an interpreter or a test runner."""
_NEVER_SUFFIXES = frozenset(
    [
        ".pyc",
        ".pyo",
        ".pth",
        ".so",
        ".pyd",
        ".dll",
        ".dylib",
        ".egg-link",
        ".egg",
        ".whl",
        ".zip",
        ".egg-info",
        ".dist-info",
    ]
)
"""Of a file or a folder: what Python loads and a reader cannot see through."""
_TEST_FOLDERS = frozenset(("test", "tests"))
_RUNNERS = frozenset(
    [
        "pytest",
        "_pytest",
        "pluggy",
        "iniconfig",
        "packaging",
        "py",
        "exceptiongroup",
        "tomli",
        "pygments",
        "coverage",
        "agentrl_report",
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """A change of source files."""

    written: Mapping[str, bytes]
    """Contents by path relative to the tree, of files that are new or changed."""
    executable: Mapping[str, bool] = field(default_factory=dict[str, bool])
    """Of files in `written`, those that may be run now and could not before, or the reverse."""
    deleted: tuple[str, ...] = ()
    """Files that are gone."""
    ignored: tuple[str, ...] = ()
    """Files whose change does not count."""
    too_large: bool = False
    """Whether there is more than `MAX_BYTES` or `MAX_FILES`; nothing is taken over then."""
    patch: str = ""
    """`written` and `deleted` as a unified diff, for readers; filled by the grader."""

    def __bool__(self) -> bool:
        return bool(self.written or self.deleted)


def source_changes(
    task: SweTask, before: Mapping[str, bytes | TreeFile], after: Mapping[str, bytes | TreeFile]
) -> Changes:
    """Compare two trees and keep what counts for `task`.

    Args:
        task: its paths say what is source and what is a test.
        before: the tree the agent was given.
        after: the tree it left; regular files only.
    """
    old, new = _as_files(before), _as_files(after)
    changed = [path for path, entry in new.items() if old.get(path) != entry]
    gone = [path for path in old if path not in new]
    gold = frozenset(patched_files(task.patch))
    counts = {path: _counts(task, path, old, gold) for path in (*changed, *gone)}
    texts = {path: new[path].data for path in changed if counts[path]}
    written = {path: data for path, data in texts.items() if _is_text(data)}
    runs = {path: new[path].executable for path in written}
    executable = {
        path: now for path, now in runs.items() if now != (path in old and old[path].executable)
    }
    deleted = tuple(path for path in gone if counts[path])
    ignored = tuple(path for path in counts if path not in written and path not in deleted)
    if sum(map(len, written.values())) > MAX_BYTES or len(written) + len(deleted) > MAX_FILES:
        return Changes(written={}, ignored=tuple(counts), too_large=True)
    return Changes(written=written, executable=executable, deleted=deleted, ignored=ignored)


def _as_files(tree: Mapping[str, bytes | TreeFile]) -> dict[str, TreeFile]:
    return {
        path: entry if isinstance(entry, TreeFile) else TreeFile(data=entry)
        for path, entry in tree.items()
    }


def patched_files(patch: str) -> list[str]:
    """The files a unified diff names on either side, relative to the tree.

    A change of the mode alone, an empty file and a rename stand in the lines of git only.
    """
    names: list[str] = []
    for line in patch.splitlines():
        found: list[str] = []
        if line.startswith(("--- ", "+++ ")):
            name = line[4:].split("\t")[0].strip()
            found = [name[2:] if name.startswith(("a/", "b/")) else name]
        elif line.startswith(("rename from ", "rename to ", "copy to ")):
            found = [line.partition(" ")[2].partition(" ")[2].strip()]
        elif name := same_name(line):
            found = [name]
        for name in found:
            if name != "/dev/null" and name not in names:
                names.append(name)
    return names


def _counts(task: SweTask, path: str, before: Mapping[str, TreeFile], gold: frozenset[str]) -> bool:
    parts = tuple(path.split("/"))
    if not path or path.startswith("/") or ".." in parts or not path.isprintable():
        return False
    if any(part in _NEVER_NAMES or _suffix(part) in _NEVER_SUFFIXES for part in parts):
        return False
    if path not in before and _shadows(task, path, before):
        return False
    if path in gold:
        # Some libraries keep source in a folder called `test`.
        return True
    if _under(path, task.test_paths):
        return False
    if task.source_paths:
        return _under(path, task.source_paths) and not _looks_like_test(parts)
    # Beside the source, at the root of a repository, lies what configures its tools.
    return not _looks_like_test(parts) and ("/" in path or _suffix(path) == ".py")


def _suffix(part: str) -> str:
    return PurePosixPath(part).suffix.lower()


def _under(path: str, folders: tuple[str, ...]) -> bool:
    return any(
        folder in (".", "") or path == folder or path.startswith(f"{folder.rstrip('/')}/")
        for folder in folders
    )


def _looks_like_test(parts: tuple[str, ...]) -> bool:
    name = parts[-1]
    return (
        name.startswith("test_")
        or name.endswith("_test.py")
        or name == "tests.py"
        or any(part in _TEST_FOLDERS for part in parts[:-1])
    )


def _shadows(task: SweTask, path: str, before: Mapping[str, TreeFile]) -> bool:
    """True if a new file would be imported in place of the standard library or the runner.

    In a package of that name that is there already, as in pytest's own repository, it is not.
    """
    for root in (".", "src", "lib", *task.python_path):
        prefix = "" if root in (".", "") else f"{root.rstrip('/')}/"
        if path.startswith(prefix):
            top = path[len(prefix) :].split("/")[0].partition(".")[0]
            if (top in sys.stdlib_module_names or top in _RUNNERS) and not any(
                old.startswith((f"{prefix}{top}/", f"{prefix}{top}.py")) for old in before
            ):
                return True
    return False


def _is_text(data: bytes) -> bool:
    try:
        return b"\0" not in data and data.decode("utf-8") is not None
    except UnicodeDecodeError:
        return False
