"""The file that defines a test: its own, or the one with the class it is inherited from."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath


@dataclass(frozen=True, slots=True, kw_only=True)
class TestLocation:
    """The file and lines of a test function."""

    path: str
    """The file, relative to the tree."""
    function: str
    """Its bare name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Class:
    path: str
    bases: tuple[str, ...]
    methods: frozenset[str]


class TestIndex:
    """The tests of a tree, by where they are defined."""

    __test__ = False

    def __init__(self, files: Mapping[str, bytes], names: Iterable[str]) -> None:
        """Read the files that the tests `names` (node ids) may be defined in.

        Those are theirs, and all Python files of the folders around them.
        """
        folders = {
            str(folder)
            for name in names
            if "::" in name
            for folder in PurePosixPath(name.partition("::")[0]).parents
        }
        self.sources: dict[str, str] = {}
        self._functions: dict[str, frozenset[str]] = {}
        self._classes: dict[str, list[_Class]] = {}
        for path, data in files.items():
            if path.endswith(".py") and str(PurePosixPath(path).parent) in folders:
                self._read(path, data)

    def _read(self, path: str, data: bytes) -> None:
        try:
            source = data.decode()
            tree = ast.parse(source)
        except (SyntaxError, ValueError, RecursionError):
            return  # a file that is no Python 3: its tests cannot be found
        self.sources[path] = source
        imported = {
            alias.asname or alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        # A name that is imported too may be the other one.
        self._functions[path] = frozenset(_functions(tree.body)) - imported
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                bases = tuple(base for base in map(_last_name, node.bases) if base)
                made = _Class(path=path, bases=bases, methods=frozenset(_functions(node.body)))
                self._classes.setdefault(node.name, []).append(made)

    def find(self, name: str) -> TestLocation | None:
        """The definition of a test, or None where it is not plain which one it is."""
        path, _, rest = name.partition("::")
        # What parameters say may look like more of the name.
        *classes, function = rest.partition("[")[0].split(" ")[0].split("::")
        if not classes:
            known = function in self._functions.get(path, ())
            return TestLocation(path=path, function=function) if known else None
        own = [made for made in self._classes.get(classes[-1], ()) if made.path == path]
        return self._inherited(own, function, depth=0)

    def _inherited(self, found: list[_Class], function: str, depth: int) -> TestLocation | None:
        if len(found) != 1 or depth > 20:
            return None
        (made,) = found
        if function in made.methods:
            return TestLocation(path=made.path, function=function)
        for base in made.bases:
            known = self._classes.get(base, [])
            # A class of this file hides those of the same name elsewhere.
            nearest = [other for other in known if other.path == made.path] or known
            location = self._inherited(nearest, function, depth + 1)
            if location is not None:
                return location
        return None


def _functions(body: list[ast.stmt]) -> Iterable[str]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.If | ast.Try):
            yield from _functions(node.body)


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
