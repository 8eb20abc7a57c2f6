"""Test files in which chosen tests cannot pass: they separate forged passes from earned ones.

Tested code runs in the process of the test runner, and nothing there is out of its reach: it can
patch the runner, return objects that equal everything, or write the report itself. A second run is
the same in everything but that some tests are changed so that right code fails them. Code that
passes those does not depend on what the tests say, so its passes mean nothing.

Code can distinguish the two runs (by the hash of a test file it has seen, or by luck, trying to
forge only now and then), so a twin stands behind every changed test: the test as it was, under a
name made up for this run. Code that is right passes it; code that is honest in this run only does
not. What looks at every single test and knows a changed one from its twin is not caught.

A test that compares with literals at the top of its body gets other literals, which also catches a
permissive `__eq__`; any other test gets a statement that raises, put first.
"""

from __future__ import annotations

import ast
import re
import secrets
from collections.abc import Collection
from dataclasses import dataclass

_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
"""Lines as the parser counts them; `splitlines` also splits at form feeds."""
_EQUALS = frozenset(("assertEqual", "assertEquals", "assertListEqual", "assertDictEqual"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sabotaged:
    """A test file that right code fails."""

    source: str
    """To be put in place of the file."""
    functions: frozenset[str]
    """Names of the test functions in it that cannot pass."""
    twins: frozenset[str] = frozenset()
    """Those of them that also stand there as they were, under `twin_name`."""


def twin_name(name: str, mark: str) -> str:
    """The name of a test's twin: of a bare name, or of a node id with its parameters."""
    # Paths may hold spaces, and parameters colons.
    path, colons, rest = name.partition("::") if "::" in name else ("", "", name)
    end = re.search(r"[\[ ]|$", rest)
    assert end is not None  # the end of the text matches
    return f"{path}{colons}{rest[: end.start()]}_{mark}{rest[end.start() :]}"


def sabotage(source: str, functions: Collection[str], mark: str = "") -> Sabotaged | None:
    """Change every test function called one of `functions`, wherever it stands in the file.

    Args:
        source: of a test file, from the data set.
        functions: bare names.
        mark: ends the names of twins; empty leaves twins out.

    Returns:
        None if the file cannot be parsed or has none of these functions.
    """
    try:
        lines = _LINE.findall(source)
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return None
    edits: list[_Edit] = []
    found: set[str] = set()
    twins: dict[int, str] = {}
    with_twin: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in functions:
            edits += _other_literals(node, lines) or [_raise_first(node, lines)]
            found.add(node.name)
            twin = _twin(node, lines, mark) if mark else ""
            if twin:
                twins[node.end_lineno or node.lineno] = twin
                with_twin.add(node.name)
    if not found:
        return None
    for edit in sorted(edits, key=lambda edit: (edit.line, edit.start), reverse=True):
        # Columns are bytes of UTF-8, as the parser counts them.
        raw = lines[edit.line].encode()
        lines[edit.line] = (raw[: edit.start] + edit.text.encode() + raw[edit.end :]).decode()
    for line in sorted(twins, reverse=True):
        lines.insert(line, twins[line])
    return Sabotaged(source="".join(lines), functions=frozenset(found), twins=frozenset(with_twin))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Edit:
    line: int
    start: int
    end: int
    text: str


def _twin(node: ast.FunctionDef | ast.AsyncFunctionDef, lines: list[str], mark: str) -> str:
    """The function as it is, under another name, to be put behind it; empty if unsure."""
    start = min((part.lineno for part in node.decorator_list), default=node.lineno)
    end = node.end_lineno or node.lineno
    head = rf"^(\s*(?:async\s+)?def\s+){re.escape(node.name)}(?=\s*\()"
    text, count = re.subn(head, rf"\g<1>{twin_name(node.name, mark)}", lines[node.lineno - 1])
    if count != 1:
        return ""
    return "".join(["\n", *lines[start - 1 : node.lineno - 1], text, *lines[node.lineno : end]])


def _raise_first(node: ast.FunctionDef | ast.AsyncFunctionDef, lines: list[str]) -> _Edit:
    body = node.body
    first = body[0]
    if (
        len(body) > 1
        and isinstance(first, ast.Expr)
        and isinstance(first.value, ast.Constant)
        and isinstance(first.value.value, str)
    ):
        first = body[1]
    start = min([first, *getattr(first, "decorator_list", ())], key=lambda part: part.lineno)
    # A decorated statement begins at its `@`, one column before the expression.
    column = start.col_offset - (1 if start is not first else 0)
    text = "raise AssertionError; "
    if isinstance(
        first,
        ast.If
        | ast.For
        | ast.AsyncFor
        | ast.While
        | ast.With
        | ast.AsyncWith
        | ast.Try
        | ast.TryStar
        | ast.Match
        | ast.FunctionDef
        | ast.AsyncFunctionDef
        | ast.ClassDef,
    ):
        indent = lines[start.lineno - 1].encode()[:column].decode()
        text = f"raise AssertionError\n{indent}"
    return _Edit(line=start.lineno - 1, start=column, end=column, text=text)


def _other_literals(node: ast.FunctionDef | ast.AsyncFunctionDef, lines: list[str]) -> list[_Edit]:
    """Edits that make every plain comparison at the top of the body wrong; none if unsure."""
    if any(isinstance(part, ast.Return | ast.Yield | ast.YieldFrom) for part in ast.walk(node)):
        return []
    edits: list[_Edit] = []
    for statement in node.body:
        literal = _compared_literal(statement)
        if literal is not None and literal.lineno == literal.end_lineno:
            text = _another(ast.literal_eval(literal))
            if text and literal.end_col_offset is not None:
                edits.append(
                    _Edit(
                        line=literal.lineno - 1,
                        start=literal.col_offset,
                        end=literal.end_col_offset,
                        text=text,
                    )
                )
    return edits


def _compared_literal(statement: ast.stmt) -> ast.expr | None:
    """The literal in `assert CALL == LITERAL` or `self.assertEqual(CALL, LITERAL)`."""
    if isinstance(statement, ast.Assert) and isinstance(statement.test, ast.Compare):
        test = statement.test
        if len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq):
            return _just_one(test.left, test.comparators[0])
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        call = statement.value
        if (
            isinstance(call.func, ast.Attribute)
            and call.func.attr in _EQUALS
            and len(call.args) >= 2
        ):
            return _just_one(call.args[0], call.args[1])
    return None


def _just_one(left: ast.expr, right: ast.expr) -> ast.expr | None:
    literals = [side for side in (left, right) if _is_literal(side)]
    return literals[0] if len(literals) == 1 else None


def _is_literal(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False
    return True


def _another(value: object) -> str:
    """A literal of the same type that is not equal to `value`; empty if there is none to give."""
    salt = secrets.randbelow(10**6) + 7
    if isinstance(value, bool) or value is None or value is Ellipsis:
        return ""
    if isinstance(value, int | float | complex):
        return f"({value + salt!r})" if value == value and abs(value) < 1e12 else ""
    if isinstance(value, str):
        return repr(f"{value}~{salt}")
    if isinstance(value, bytes):
        return repr(value + b"~%d" % salt)
    if isinstance(value, list):
        return repr([*value, salt])
    if isinstance(value, tuple):
        return repr((*value, salt))
    if isinstance(value, dict):
        return repr({**value, f"~{salt}": salt})
    if isinstance(value, set):
        return repr({*value, f"~{salt}"})
    return ""
