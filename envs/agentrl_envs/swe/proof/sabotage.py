"""Test files in which chosen tests cannot pass: they separate forged passes from earned ones.

Tested code runs in the process of the test runner, and nothing there is out of its reach: it can
patch the runner, return objects that equal everything, or write the report itself. A second run is
the same in everything but that some tests are changed so that right code fails them. Code that
passes those does not depend on what the tests say, so its passes mean nothing.

Behind every changed test stands the test as it was, or the other way round, under a name made of
words of the file: code that is honest in this run only fails the one that is right. Nothing marks
which of the two that is: a literal is another near one, or a comparison is the opposite one. What
knows the text of a test it has seen can still pick it out, so this is for tests that `proof` cannot
ask for values.

A test without a comparison at the top of its body gets a statement that raises, put first.
"""

from __future__ import annotations

import ast
import copy
import re
import secrets
from collections.abc import Collection
from dataclasses import dataclass

from agentrl_envs.swe.proof.literals import can_change, change, is_literal

_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
"""Lines as the parser counts them; `splitlines` also splits at form feeds."""
_EQUALS = frozenset(("assertEqual", "assertEquals", "assertListEqual", "assertDictEqual"))
_OPPOSITE_METHODS = {
    f"assert{one}": f"assert{other}"
    for pair in (
        ("Equal", "NotEqual"),
        ("True", "False"),
        ("In", "NotIn"),
        ("Is", "IsNot"),
        ("IsNone", "IsNotNone"),
        ("IsInstance", "NotIsInstance"),
    )
    for one, other in (pair, pair[::-1])
}
_OPPOSITES: dict[type[ast.cmpop], str] = {
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
    ast.Lt: ">=",
    ast.GtE: "<",
    ast.Gt: "<=",
    ast.LtE: ">",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sabotaged:
    """A test file that right code fails."""

    source: str
    """To be put in place of the file."""
    functions: frozenset[str]
    """Names of the test functions in it of which one version cannot pass."""
    twins: frozenset[str] = frozenset()
    """Those of them that stand there twice, the second time under `twin_name`."""


def twin_name(name: str, mark: str) -> str:
    """The name of a test's twin: of a bare name, or of a node id with its parameters."""
    # Paths may hold spaces, and parameters colons.
    path, colons, rest = name.partition("::") if "::" in name else ("", "", name)
    end = re.search(r"[\[ ]|$", rest)
    assert end is not None  # the end of the text matches
    function, more = rest[: end.start()], rest[end.start() :]
    # unittest names the method once more behind its class, from Python 3.11 on.
    more = re.sub(rf"\.{re.escape(function)}\)$", f".{function}_{mark})", more)
    return f"{path}{colons}{function}_{mark}{more}"


def twin_mark(source: str) -> str:
    """Words of a file, to end the names of its twins: no form of its own marks them."""
    words = {
        word
        for name in re.findall(r"[A-Za-z_]+", source)
        for word in name.lower().split("_")
        if 3 <= len(word) <= 12
    }
    known = sorted(words) or ["more"]
    for _ in range(100):
        mark = "_".join(secrets.choice(known) for _ in range(1 + secrets.randbelow(3)))
        if f"_{mark}" not in source:
            return mark
    return f"{secrets.choice(known)}_{secrets.randbelow(1000)}"


def sabotage(
    source: str, functions: Collection[str], mark: str = "", swapped: Collection[str] = ()
) -> Sabotaged | None:
    """Change every test function called one of `functions`, wherever it stands in the file.

    Args:
        source: of a test file, from the data set.
        functions: bare names.
        mark: ends the names of twins; empty leaves twins out.
        swapped: functions that stay as they are where they have a twin; then that cannot pass.

    Returns:
        None if the file cannot be parsed or has none of these functions.
    """
    try:
        lines = _LINE.findall(source)
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return None
    found: set[str] = set()
    with_twin: set[str] = set()
    blocks: list[tuple[int, int, list[str]]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in functions:
            start = min((part.lineno for part in node.decorator_list), default=node.lineno) - 1
            end = node.end_lineno or node.lineno
            edits = _other_literals(node, lines) or _opposite(node, lines)
            right = lines[start:end]
            wrong = _edited(right, edits or [_raise_first(node, lines)], start)
            found.add(node.name)
            head = node.lineno - 1 - start
            swap = node.name in swapped
            first, second = (right, wrong) if swap else (wrong, right)
            twin = _renamed(second, head, node.name, mark) if mark else []
            if twin:
                with_twin.add(node.name)
                first = [*first, "\n", *twin]
            else:
                first = wrong
            blocks.append((start, end, first))
    if not found:
        return None
    for start, end, text in sorted(blocks, key=lambda block: block[0], reverse=True):
        if any(other < start and end <= last for other, last, _ in blocks):
            return None  # one inside another
        lines[start:end] = text
    return Sabotaged(source="".join(lines), functions=frozenset(found), twins=frozenset(with_twin))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Edit:
    line: int
    start: int
    end: int
    text: str


def _edited(lines: list[str], edits: list[_Edit], first: int) -> list[str]:
    """Lines of the file from `first` on, with edits."""
    changed = list(lines)
    for edit in sorted(edits, key=lambda edit: (edit.line, edit.start), reverse=True):
        # Columns are bytes of UTF-8, as the parser counts them.
        raw = changed[edit.line - first].encode()
        text = raw[: edit.start] + edit.text.encode() + raw[edit.end :]
        changed[edit.line - first] = text.decode()
    return changed


def _renamed(lines: list[str], head: int, name: str, mark: str) -> list[str]:
    """A function under the name of its twin; nothing if unsure."""
    pattern = rf"^(\s*(?:async\s+)?def\s+){re.escape(name)}(?=\s*\()"
    text, count = re.subn(pattern, rf"\g<1>{twin_name(name, mark)}", lines[head])
    return [*lines[:head], text, *lines[head + 1 :]] if count == 1 else []


def _opposite(node: ast.FunctionDef | ast.AsyncFunctionDef, lines: list[str]) -> list[_Edit]:
    """An edit that turns one comparison at the top of the body round; none if unsure."""
    if any(isinstance(part, ast.Return | ast.Yield | ast.YieldFrom) for part in ast.walk(node)):
        return []
    edits = [edit for statement in node.body if (edit := _turned(statement, lines)) is not None]
    return [secrets.choice(edits)] if edits else []


def _turned(statement: ast.stmt, lines: list[str]) -> _Edit | None:
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        func = statement.value.func
        if isinstance(func, ast.Attribute) and func.attr in _OPPOSITE_METHODS:
            end = func.end_col_offset or 0
            text = _OPPOSITE_METHODS[func.attr]
            return _Edit(
                line=(func.end_lineno or func.lineno) - 1,
                start=end - len(func.attr),
                end=end,
                text=text,
            )
    if not isinstance(statement, ast.Assert):
        return None
    test = statement.test
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        raw = lines[test.lineno - 1].encode()[test.col_offset :]
        blanks = re.match(rb"not\s*(?=\S)", raw)
        if blanks is None:
            return None
        end = test.col_offset + blanks.end()
        text = "" if raw[blanks.end() - 1 : blanks.end()].isspace() else " "
        return _Edit(line=test.lineno - 1, start=test.col_offset, end=end, text=text)
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        left, right = test.left, test.comparators[0]
        if left.end_lineno == right.lineno and left.end_col_offset is not None:
            between = lines[right.lineno - 1].encode()[left.end_col_offset : right.col_offset]
            # Brackets around a side belong to no node.
            if not {b"("[0], b")"[0]} & set(between):
                return _Edit(
                    line=right.lineno - 1,
                    start=left.end_col_offset,
                    end=right.col_offset,
                    text=f" {_OPPOSITES[type(test.ops[0])]} ",
                )
        return None
    if test.lineno == test.end_lineno and isinstance(test, ast.Call | ast.Name | ast.Attribute):
        return _Edit(line=test.lineno - 1, start=test.col_offset, end=test.col_offset, text="not ")
    return None


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
            text = _another(literal)
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
    literals = [side for side in (left, right) if is_literal(side)]
    return literals[0] if len(literals) == 1 else None


def _another(literal: ast.expr) -> str:
    """A literal of the same type that is not equal; empty if there is none to give."""
    other = copy.deepcopy(literal)
    inside = [part for part in ast.walk(other) if can_change(part)]
    if not inside:
        return ""
    part = secrets.choice(inside)
    assert isinstance(part, ast.Constant)
    part.value = change(part.value, secrets.SystemRandom())  # type: ignore[assignment]
    if ast.literal_eval(other) == ast.literal_eval(literal):
        return ""
    text = ast.unparse(other)
    return f"({text})" if isinstance(other, ast.UnaryOp | ast.BinOp) else text
