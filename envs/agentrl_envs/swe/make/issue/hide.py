"""A tree without the tests that a task is graded by: what is hidden is not there to be read."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from agentrl_envs.swe.locate import TestIndex
from agentrl_envs.swe.trees import Tree, TreeFile


def hide_tests(tree: Tree, names: Sequence[str]) -> dict[str, TreeFile] | None:
    """The tree without some test functions; None if one of them cannot be found in it.

    Args:
        tree: with the tests.
        names: node ids; a function goes whole, with its passing parameters.
    """
    index = TestIndex({path: entry.data for path, entry in tree.items()}, names)
    gone: dict[str, set[str]] = {}
    for name in names:
        found = index.find(name)
        if found is None:
            return None
        gone.setdefault(found.path, set()).add(found.function)
    made = dict(tree)
    for path, functions in gone.items():
        text = _without(index.sources[path], functions)
        if text is None:
            return None
        made[path] = TreeFile(data=text.encode(), executable=tree[path].executable)
    return made


def _without(source: str, functions: set[str]) -> str | None:
    """A module without the test functions of these names."""
    lines = source.split("\n")
    for owner in ast.walk(ast.parse(source)):
        body = getattr(owner, "body", None)
        if not isinstance(body, list) or isinstance(owner, ast.FunctionDef):
            continue
        mine = [
            node
            for node in body
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in functions
        ]
        for node in mine:
            start = min(node.lineno, *(one.lineno for one in node.decorator_list), node.lineno) - 1
            # What is said above a test is about it.
            while start and lines[start - 1].strip().startswith("#"):
                start -= 1
            left = [" " * node.col_offset + "pass"] if len(mine) == len(body) else []
            lines[start : node.end_lineno] = [
                *left,
                *[_GONE] * (int(node.end_lineno or start) - start - len(left)),
            ]
    text = "\n".join(line for line in lines if line is not _GONE)
    try:
        ast.parse(text)
    except SyntaxError:
        return None
    return text


_GONE = "\0 a line that is taken out"
