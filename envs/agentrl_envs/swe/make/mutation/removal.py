"""Features taken out of a source file: the body of a function, a method, or a branch.

What is left reads as if it had not been written yet. A bug asks what is wrong; this asks for lines
of one's own.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Collection, Iterator
from dataclasses import dataclass

_LEAST, _MOST = 3, 80
"""Lines of a body that are worth writing again, and that can be."""
_QUIET = ("__repr__", "__str__", "__del__", "__init_subclass__", "__getstate__", "__init__")
OPERATORS = ("remove_body", "remove_body_and_doc", "remove_method", "remove_branch")
"""By name, as in `SweTask.operator`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """A file without one feature."""

    operator: str
    """One of `OPERATORS`."""
    function: str
    """Dotted name of the function."""
    text: str
    """The file."""
    manual: str = ""
    """The docstring, where the file no longer has it."""


def removals(text: str, covered: Collection[int] | None = None) -> Iterator[Removal]:
    """The features that could be taken out of a file.

    Args:
        text: the file.
        covered: first lines of the functions that tests run; others are left alone. None takes all
            functions.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return
    lines = text.split("\n")
    for function, name, owner in _functions(tree, ()):
        first = min([function.lineno, *(one.lineno for one in function.decorator_list)])
        ran = covered is None or any(n in covered for n in range(first, function.lineno + 1))
        if not ran or function.name in _QUIET:
            continue
        for made in _of_function(lines, function, name, owner, first):
            # A change of lines may still be none of the program, or no program.
            if _is_other(made.text, tree):
                yield made


def _is_other(text: str, tree: ast.Module) -> bool:
    try:
        return ast.dump(ast.parse(text)) != ast.dump(tree)
    except (SyntaxError, ValueError):
        return False


def _functions(
    owner: ast.AST, names: tuple[str, ...]
) -> Iterator[tuple[ast.FunctionDef, str, ast.AST]]:
    for node in ast.iter_child_nodes(owner):
        if isinstance(node, ast.FunctionDef):
            yield node, ".".join((*names, node.name)), owner
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield from _functions(node, (*names, node.name))
        elif isinstance(node, ast.If | ast.Try):
            yield from _functions(node, names)


def _of_function(
    lines: list[str], function: ast.FunctionDef, name: str, owner: ast.AST, first: int
) -> Iterator[Removal]:
    manual = ast.get_docstring(function) or ""
    body = function.body[1:] if manual else function.body
    if body and body[0].lineno > function.lineno:
        start, end = body[0].lineno, int(body[-1].end_lineno or 0)
        # Comments above the first statement belong to it.
        above = int(function.body[0].end_lineno or 0) if manual else _header_end(function)
        start = min([start, *(n for n in range(above + 1, start) if "#" in lines[n - 1])])
        if _LEAST <= end - start + 1 <= _MOST:
            stub = [" " * body[0].col_offset + "raise NotImplementedError"]
            yield _made("remove_body", name, _spliced(lines, start, end, stub))
            if manual.count("\n") >= 2:
                head = " " * body[0].col_offset + f'"""{manual.splitlines()[0].strip()}"""'
                doc = function.body[0].lineno
                safe = '"' not in head.strip()[3:-3] and "\\" not in head
                if safe:
                    text = _spliced(lines, doc, end, [head, *stub])
                    yield _made("remove_body_and_doc", name, text, manual)
    whole = range(first, int(function.end_lineno or 0) + 1)
    plain = not function.name.startswith("_")
    if isinstance(owner, ast.ClassDef) and plain and len(owner.body) > 2 and len(whole) > _LEAST:
        yield _made("remove_method", name, _spliced(lines, whole[0], whole[-1], []), manual)
    for node in ast.walk(function):
        if isinstance(node, ast.If):
            yield from _branch(lines, node, name)


def _branch(lines: list[str], node: ast.If, name: str) -> Iterator[Removal]:
    """An `if` without `else`, or an `elif`, with a body that does something of its own."""
    end = int(node.body[-1].end_lineno or 0)
    keyword = lines[node.lineno - 1][node.col_offset :]
    alone = not node.orelse and keyword.startswith("if")
    if end - node.lineno + 1 >= _LEAST and (alone or keyword.startswith("elif")):
        yield _made("remove_branch", name, _spliced(lines, node.lineno, end, []))


def _header_end(function: ast.FunctionDef) -> int:
    """The last line before the body that is surely of the signature."""
    parts = [function.args, function.returns, *ast.walk(function.args)]
    return max([function.lineno, *(getattr(it, "end_lineno", 0) or 0 for it in parts)])


def _made(operator: str, name: str, text: str, manual: str = "") -> Removal:
    return Removal(operator=operator, function=name, text=text, manual=manual)


def _spliced(lines: list[str], start: int, end: int, instead: list[str]) -> str:
    return "\n".join((*lines[: start - 1], *instead, *lines[end:]))


def merged(text: str, changed: Collection[str]) -> str | None:
    """A file with several changes of it at once; None where two of them touch each other.

    Args:
        text: the file.
        changed: the file with each of the changes.
    """
    edits: list[tuple[int, int, str]] = []
    for new in changed:
        start = 0
        least = min(len(text), len(new))
        while start < least and text[start] == new[start]:
            start += 1
        end = 0
        while end < least - start and text[-1 - end] == new[-1 - end]:
            end += 1
        edits.append((start, len(text) - end, new[start : len(new) - end]))
    edits.sort()
    for (_, end, _), (start, _, _) in itertools.pairwise(edits):
        # On lines of their own, or a diff could not tell them apart.
        if start < end or "\n" not in text[end:start]:
            return None
    for start, end, instead in reversed(edits):
        text = text[:start] + instead + text[end:]
    try:
        ast.parse(text)
    except SyntaxError:
        return None
    return text
