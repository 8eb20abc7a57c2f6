"""The library and the tests of a source distribution, and the way the tests are run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from agentrl.errors import DataError
from agentrl_envs.swe.make.index import Release
from agentrl_envs.swe.make.sdist import Sdist
from agentrl_envs.swe.trees import Tree, TreeFile

TEST_ENV = {
    "CI": "true",
    "COLUMNS": "80",
    "LANG": "C.UTF-8",
    "LC_ALL": "C.UTF-8",
    "NO_COLOR": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",
    "TZ": "UTC",
}
"""What tests run with: nothing that differs between machines. `CI` also makes hypothesis draw the
same examples every time."""
EXTENSION = (".c", ".cc", ".cpp", ".cxx", ".pyx", ".pxd", ".f90", ".rs")
"""How names of files end that a compiler makes a module of."""
_TEST_FOLDERS = frozenset(("test", "tests", "testing"))
_NO_PACKAGE = frozenset(
    (
        *(
            "test",
            "tests",
            "testing",
            "doc",
            "docs",
            "example",
            "examples",
            "benchmark",
            "benchmarks",
        ),
        *("script", "scripts", "tool", "tools", "ci", "bin", "tasks", "extras", "dist", "setup"),
        *("conftest", "noxfile", "fabfile", "versioneer", "runtests", "ez_setup", "src"),
    )
)
_TEST_FILE = re.compile(r"(test_[^/]*|[^/]*_tests?)\.py$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """A library as something whose tests can be run."""

    release: Release
    """Release it comes from."""
    tree: Tree
    """Files of the project."""
    license: str
    """License, as `Sdist.license`."""
    license_file: str
    """File, as `Sdist.license_file`."""
    python_path: str
    """Folder of the tree that its packages are imported from."""
    modules: Sequence[str]
    """Top-level modules and packages."""
    source_paths: Sequence[str]
    """Files and folders of the library."""
    test_paths: Sequence[str]
    """Files and folders of its tests; some may lie below `source_paths`."""
    requires: Sequence[str]
    """Requirements at run time."""

    @property
    def test_command(self) -> tuple[str, ...]:
        """Runs all its tests from the root of the tree, whatever its own options ask."""
        options = ("-q", "-o", "addopts=", "-p", "no:cacheprovider")
        # One file that needs a missing package must not take the others along.
        options += ("--continue-on-collection-errors",)
        runnable = [path for path in self.test_paths if not path.endswith("conftest.py")]
        # Without the packages of whatever interpreter a sandbox has: the same tests everywhere.
        return ("python3", "-S", "-m", "pytest", *options, *runnable)

    def sources(self) -> list[str]:
        """Python files of the library that are not tests, sorted."""
        return [path for path in sorted(self.tree) if path.endswith(".py") and self.is_source(path)]

    def is_source(self, path: str) -> bool:
        """True if a path belongs to the library and is not a test."""
        return below(path, self.source_paths) and not below(path, self.test_paths)


def below(path: str, folders: Sequence[str]) -> bool:
    """True if a path is one of the files or lies in one of the folders."""
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)


def find_project(release: Release, sdist: Sdist) -> Project:
    """Find package and tests.

    Raises:
        DataError: there is no package of that name, or there are no tests; says what there is.
    """
    tree = dict(sdist.tree)
    root, modules = _modules(release, tree)
    prefix = "" if root == "." else f"{root}/"
    sources = [
        f"{prefix}{name}" if _has(tree, f"{prefix}{name}") else f"{prefix}{name}.py"
        for name in modules
    ]
    tests = _tests(tree, sources)
    if not tests:
        raise DataError(
            f"{release.name} {release.version}: its source distribution has no tests "
            f"({release.file}); choose another library or an older release"
        )
    info = f"{prefix}{release.name.replace('-', '_')}.egg-info/PKG-INFO"
    known = any(re.match(rf"{re.escape(prefix)}[^/]+\.(egg|dist)-info/", path) for path in tree)
    if not known and sdist.metadata:
        # Libraries ask importlib.metadata for their version; installing would have written this.
        tree[info] = TreeFile(data=sdist.metadata.encode())
    return Project(
        release=release,
        tree=tree,
        license=sdist.license,
        license_file=sdist.license_file,
        python_path=root,
        modules=modules,
        source_paths=sources,
        test_paths=tests,
        requires=sdist.requires,
    )


def _has(tree: Tree, folder: str) -> bool:
    return any(path.startswith(f"{folder}/") for path in tree)


def _modules(release: Release, tree: Tree) -> tuple[str, list[str]]:
    """The folder that is imported from, and the top-level modules in it."""
    for root in ("src", "lib", "python", "."):
        prefix = "" if root == "." else f"{root}/"
        here = {
            match[1]
            for path in tree
            if (match := re.match(rf"{re.escape(prefix)}([A-Za-z_]\w*)(/__init__)?\.py$", path))
        } - _NO_PACKAGE
        wanted = release.name.replace("-", "_").lower()
        named = [name for name in sorted(here) if name.lower() == wanted]
        stated = [name for name in _top_level(tree, prefix) if name in here]
        if named or stated:
            return root, sorted({*named, *stated})
        packages = [name for name in sorted(here) if f"{prefix}{name}/__init__.py" in tree]
        if len(packages) == 1 or (root != "." and packages):
            return root, packages
    compiled = [path for path in sorted(tree) if path.endswith(EXTENSION)]
    if compiled:
        raise DataError(
            f"{release.name} {release.version}: it needs a compiler: its module is not of Python, "
            f"{compiled[0]} and {len(compiled) - 1} more files are of an extension, and nothing is "
            "built here; choose a library of pure Python"
        )
    folders = sorted({path.split("/", 1)[0] for path in tree if "/" in path})
    raise DataError(
        f"{release.name} {release.version}: no package or module of that name in {release.file}; "
        f"folders there: {', '.join(folders)[:200]}"
    )


def _top_level(tree: Tree, prefix: str) -> list[str]:
    for path, entry in tree.items():
        if re.match(rf"{re.escape(prefix)}[^/]+\.egg-info/top_level\.txt$", path):
            return [
                name
                for name in entry.data.decode("utf-8", "replace").split()
                if name.lower() not in _NO_PACKAGE and not name.startswith("_")
            ]
    return []


def _tests(tree: Tree, sources: Sequence[str]) -> list[str]:
    """Outermost test folders, and test files beside them. Empty if there is nothing to run."""
    folders: set[str] = set()
    files: set[str] = set()
    runnable = False
    for path in sorted(tree):
        *parents, name = path.split("/")
        at = next((i for i, part in enumerate(parents) if part.lower() in _TEST_FOLDERS), None)
        # `pkg/testing/` is as often part of the library as a folder of tests.
        inside = at is not None and not (parents[at] == "testing" and below(path, sources))
        if inside and at is not None:
            folder = "/".join(parents[: at + 1])
            if _TEST_FILE.match(name):
                folders.add(folder)
                runnable = True
        elif _TEST_FILE.match(name) and (not parents or below(path, sources)):
            files.add(path)
            runnable = True
        elif name == "conftest.py":
            files.add(path)
    if not runnable:
        return []
    outermost = [path for path in sorted(folders) if not below(path, sorted(folders - {path}))]
    return outermost + sorted(path for path in files if not below(path, outermost))
