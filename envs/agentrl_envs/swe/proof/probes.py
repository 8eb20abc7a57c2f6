"""A test file in which chosen tests ask the tested code for values instead of comparing them.

`assert f(2) == 3` becomes `value(17, f(2))`: the 3 is gone, and the value goes out. Beside each
test stand variants with other literals, so that what is asked was never seen before. What a test
compares in another way (`<`, `in`, `is not`, a truth) goes out as true or false. Functions of the
file that tests compare with get probes too, and a test that compares nothing says whether it came
to its end.
"""

from __future__ import annotations

import ast
import copy
import hashlib
import random
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import count

from agentrl_envs.swe.proof.literals import can_change, change, is_literal

_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
"""Lines as the parser counts them; `splitlines` also splits at form feeds."""
_VALUE, _TRUTH = "agentrl_value", "agentrl_truth"
_IMPORT = f"\nfrom agentrl_report import truth as {_TRUTH}, value as {_VALUE}\n"
_EQUALS = frozenset(
    f"assert{what}"
    for what in ("Equal", "Equals", "ListEqual", "DictEqual", "TupleEqual", "SetEqual", "Is")
) | {"assertSequenceEqual", "assertMultiLineEqual", "assertCountEqual"}
_TRUTHS: dict[str, Callable[[list[ast.expr]], ast.expr]] = {
    "assertTrue": lambda given: given[0],
    "assertFalse": lambda given: given[0],
    "assertIsNone": lambda given: ast.Compare(given[0], [ast.Is()], [ast.Constant(None)]),
    "assertIsNotNone": lambda given: ast.Compare(given[0], [ast.Is()], [ast.Constant(None)]),
    "assertIn": lambda given: ast.Compare(given[0], [ast.In()], [given[1]]),
    "assertNotIn": lambda given: ast.Compare(given[0], [ast.In()], [given[1]]),
    "assertNotEqual": lambda given: ast.Compare(given[0], [ast.Eq()], [given[1]]),
    "assertIsInstance": lambda given: _call("isinstance", *given[:2]),
}
_COMPARING = re.compile(r"(?:assert|check|expect|verify)(?![a-z])")
"""Beginnings of the names of functions elsewhere that compare what they are given."""
_MOST_INLINED = 4000
_SHARED = 10**6


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueProbe:
    """One place that a value comes from."""

    function: str
    """Bare name of the test function."""
    variant: int
    """Number of the variant; 0 has the literals of the test."""
    place: int
    """Number of the comparison in its function: the same in every variant. Those of functions that
    tests call are above all others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeFile:
    """A test file with probes."""

    source: str
    """To be put in place of the file."""
    probes: dict[str, ValueProbe]
    """By the words a value is reported with, less its case and count."""
    names: frozenset[str]
    """Test functions, variants included, to be run."""


def function_mark(name: str) -> str:
    """Marks that tell test functions apart in the values of a function that several of them call.

    `report_plugin` has the same one.
    """
    return hashlib.sha256(name.encode()).hexdigest()[:6]


def probe_file(
    source: str,
    functions: Collection[str],
    draw: random.Random,
    *,
    variants: int = 8,
    first: int = 0,
) -> ProbeFile | None:
    """Replace test functions, wherever they stand in the file, by ones with probes.

    Args:
        source: of a test file, from the data set.
        functions: bare names.
        draw: chooses the literals.
        variants: of each function; fewer where it has few literals.
        first: number of the first probe; each file of a task has its own.

    Returns:
        None if the file cannot be parsed, or these functions compare nothing.
    """
    try:
        lines = _LINE.findall(source)
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return None
    numbers = count(first)
    probes: dict[str, ValueProbe] = {}
    made: dict[str, tuple[str, int]] = {}
    known = {node.name for node in _functions(tree)}
    constants = _constant_displays(tree)
    replaced: list[tuple[int, int, str]] = []
    for node in _functions(tree):
        if node.name not in functions:
            continue
        plain = _inlined(_undocumented(node), constants)
        texts: list[str] = []
        for variant, copied in _with_variants(plain, draw, variants):
            rewriting = _Rewriting(numbers, known)
            body = rewriting.rewritten(copied)
            if variant:
                body.name = _free(f"{node.name}_v{variant}", known)
            made[body.name] = (node.name, variant)
            probes |= {
                str(key): ValueProbe(function=node.name, variant=variant, place=place)
                for place, key in enumerate(rewriting.places)
            }
            texts.append(ast.unparse(ast.fix_missing_locations(body)))
        replaced.append(_replaced(node, texts))
    for node in _functions(tree):
        if node.name in functions or node.name.startswith("test"):
            continue
        rewriting = _Rewriting(numbers, known, shared=True)
        body = rewriting.visit(copy.deepcopy(node))
        if not rewriting.places:
            continue
        replaced.append(_replaced(node, [ast.unparse(ast.fix_missing_locations(body))]))
        probes |= {
            f"{key}-{function_mark(name)}": ValueProbe(
                function=function, variant=variant, place=_SHARED + key - first
            )
            for key in rewriting.places
            for name, (function, variant) in made.items()
        }
    if not probes:
        return None
    for start, end, text in sorted(replaced, reverse=True):
        lines[start:end] = [text]
    made_source = "".join([*lines, _IMPORT])
    try:
        ast.parse(made_source)
    except (SyntaxError, ValueError, RecursionError):
        return None  # text that cannot be moved, such as lines inside of an f-string
    return ProbeFile(source=made_source, probes=probes, names=frozenset(made))


def _replaced(node: _Function, texts: list[str]) -> tuple[int, int, str]:
    """The lines of a function, and what is put in their place."""
    start = min((part.lineno for part in node.decorator_list), default=node.lineno)
    return start - 1, node.end_lineno or start, _indented("\n\n".join(texts).split("\n"), node)


def _indented(block: list[str], node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    indent = " " * node.col_offset
    return "".join(f"{indent}{line}\n" if line else "\n" for line in block)


def _functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Functions that a runner may collect: not those inside others."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        for child in ast.iter_child_nodes(waiting.pop()):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                yield child
            elif isinstance(child, ast.stmt | ast.excepthandler):
                waiting.append(child)


def _free(name: str, taken: Collection[str]) -> str:
    """A name of a variant that no function of the file has."""
    function, _, number = name.rpartition("_")
    while f"{function}_{number}" in taken:
        function += "_"
    return f"{function}_{number}"


_Function = ast.FunctionDef | ast.AsyncFunctionDef


def _undocumented(node: _Function) -> _Function:
    """A copy without the text that describes the test, which is no input."""
    plain = copy.deepcopy(node)
    if plain.body and isinstance(plain.body[0], ast.Expr) and is_literal(plain.body[0].value):
        plain.body = plain.body[1:] or [ast.Pass()]
    return plain


def _constant_displays(tree: ast.Module) -> dict[str, ast.expr]:
    """Lists, tuples, sets and dictionaries at the top of a file, by the one name they are given."""
    stored = Counter(
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)
    )
    return {
        node.targets[0].id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        and len(node.targets) == 1
        and isinstance(node.targets[0], ast.Name)
        and stored[node.targets[0].id] == 1
        and isinstance(node.value, ast.List | ast.Tuple | ast.Set | ast.Dict)
    }


def _inlined(node: _Function, constants: Mapping[str, ast.expr]) -> _Function:
    """A function that holds the tables it reads, so that a variant has another table."""
    local = {part.arg for part in ast.walk(node) if isinstance(part, ast.arg)}
    used = {
        part.id for part in ast.walk(node) if isinstance(part, ast.Name) and part.id in constants
    }
    tables = {name: constants[name] for name in used - local}
    if sum(len(list(ast.walk(table))) for table in tables.values()) > _MOST_INLINED:
        return node

    class Inlining(ast.NodeTransformer):
        def visit_Name(self, name: ast.Name) -> ast.expr:
            table = tables.get(name.id)
            return name if table is None else copy.deepcopy(table)

    return Inlining().visit(node)


def _with_variants(
    plain: _Function, draw: random.Random, variants: int
) -> Iterator[tuple[int, _Function]]:
    """The function, and copies of it with other literals."""
    yield 0, copy.deepcopy(plain)
    seen = {ast.dump(plain)}
    number = 1
    for _ in range(3 * variants):
        if number > variants:
            return
        other = copy.deepcopy(plain)
        groups = _inputs(other)
        if not groups:
            return
        for chosen in draw.choice(groups):
            spot = draw.choice(chosen)
            spot.value = change(spot.value, draw)  # type: ignore[assignment]
            spot.kind = None
        text = ast.dump(other)
        if text not in seen:
            seen.add(text)
            yield number, other
            number += 1


def _inputs(node: _Function) -> list[list[list[ast.Constant]]]:
    """Ways to change a function: for each way, sets of constants of which one each is changed.

    One way is a constant of the body; another one in every case of its parameters.
    """
    body = [found for part in node.body for found in _constants(part)]
    ways = [[body]] if body else []
    for decorator in node.decorator_list:
        if (
            isinstance(decorator, ast.Call)
            and ast.unparse(decorator.func).endswith("parametrize")
            and len(decorator.args) > 1
            and isinstance(decorator.args[1], ast.List | ast.Tuple)
        ):
            cases = [_constants(case) for case in decorator.args[1].elts]
            if cases := [case for case in cases if case]:
                # Its values are most of what such a test asks for.
                ways += [cases] * 3
    return ways


def _constants(node: ast.AST) -> list[ast.Constant]:
    """Constants that reach the tested code, as far as one can see."""
    if isinstance(node, ast.Constant):
        return [node] if can_change(node) else []
    if isinstance(node, ast.JoinedStr):
        return []
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], ast.Eq):
        # A literal that is compared with is no input, and is left out of what is run.
        sides = [side for side in (node.left, *node.comparators) if not is_literal(side)]
        return [found for side in sides for found in _constants(side)]
    if isinstance(node, ast.Call):
        name = ast.unparse(node.func)
        if name.endswith("raises") or "Raises" in name:
            return []
        if name.rpartition(".")[2] in _EQUALS:
            sides = [side for side in node.args[:2] if not is_literal(side)]
            return [found for side in sides for found in _constants(side)]
    children: list[ast.AST] = list(ast.iter_child_nodes(node))
    if isinstance(node, ast.Assert):
        children = [node.test]
    elif isinstance(node, ast.AnnAssign):
        children = [part for part in (node.value,) if part is not None]
    return [found for child in children for found in _constants(child)]


class _Rewriting(ast.NodeTransformer):
    """Puts probes in place of comparisons.

    Args:
        numbers: of probes.
        known: names of the file's functions, which compare by themselves.
        shared: whether several tests call the function, so that values are said with the test's
            mark.
    """

    def __init__(
        self, numbers: Iterator[int], known: Collection[str], *, shared: bool = False
    ) -> None:
        self._numbers = numbers
        self._known = known
        self._shared = shared
        self.places: list[int] = []

    def rewritten(self, node: _Function) -> _Function:
        """A test with probes: where it compares nothing, one that reports whether it ends well."""
        made: _Function = self.visit(node)
        if not self.places:
            made.body = [self._ending(made.body)]
        return made

    def visit_Assert(self, node: ast.Assert) -> ast.stmt:
        """Ask for what is compared; the comparison itself is gone."""
        return ast.Expr(self._asked(node.test))

    def visit_Expr(self, node: ast.Expr) -> ast.stmt:
        """The same for the methods of unittest."""
        call = node.value
        if not isinstance(call, ast.Call) or any(isinstance(p, ast.Starred) for p in call.args):
            return node
        name = ast.unparse(call.func).rpartition(".")[2]
        if name in _EQUALS and len(call.args) >= 2:
            return ast.Expr(self._sides(call.args[:2]))
        if name in _TRUTHS and len(call.args) >= 1 + name.endswith(("In", "NotEqual", "Instance")):
            return ast.Expr(self._say(_TRUTH, _TRUTHS[name](call.args)))
        if _is_raises(call) and len(call.args) >= 2:
            tried = ast.Call(call.args[1], call.args[2:], list(call.keywords))
            return self._tried(call.args[0], [ast.Expr(tried)])
        if _COMPARING.match(name) and name not in self._known:
            said = self._sides([part for part in call.args if not isinstance(part, ast.Lambda)])
            return ast.Expr(said) if said.elts else node
        return node

    def visit_With(self, node: ast.With) -> ast.stmt:
        """Ask whether an error is raised."""
        self.generic_visit(node)
        (item, *more) = node.items
        call = item.context_expr
        if (
            not more
            and item.optional_vars is None
            and isinstance(call, ast.Call)
            and _is_raises(call)
            and len(call.args) == 1
        ):
            return self._tried(call.args[0], node.body)
        if isinstance(call, ast.Call) and _is_raises(call):
            return self._ending([node])
        return node

    def _ending(self, body: list[ast.stmt]) -> ast.Try:
        """Report whether statements come to their end."""
        said = self._say(_TRUTH, ast.Constant(False))
        ended = ast.Expr(_call(_TRUTH, said.args[0], ast.Constant(True)))
        handler = ast.ExceptHandler(
            ast.Name("BaseException", ast.Load()), None, [ast.Expr(said), ast.Raise()]
        )
        return ast.Try(body, [handler], [ended], [])

    def _asked(self, test: ast.expr) -> ast.expr:
        if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
            return ast.Tuple([self._asked(part) for part in test.values], ast.Load())
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            return self._say(_TRUTH, test.operand)
        if isinstance(test, ast.Compare) and len(test.ops) == 1:
            sides = [test.left, test.comparators[0]]
            same = isinstance(test.ops[0], ast.Is) and any(map(is_literal, sides))
            if isinstance(test.ops[0], ast.Eq) or same:
                return self._sides(sides)
        return self._say(_TRUTH, test)

    def _sides(self, sides: list[ast.expr]) -> ast.Tuple:
        asked = [self._say(_VALUE, side) for side in sides if not is_literal(side)]
        return ast.Tuple(list[ast.expr](asked), ast.Load())

    def _say(self, name: str, asked: ast.expr) -> ast.Call:
        self.places.append(number := next(self._numbers))
        return _call(name, ast.Constant(f"{number}-" if self._shared else str(number)), asked)

    def _tried(self, kinds: ast.expr, body: list[ast.stmt]) -> ast.Try:
        caught = _call("isinstance", ast.Name("agentrl_error", ast.Load()), kinds)
        said = self._say(_TRUTH, caught)
        number = said.args[0]
        handler = ast.ExceptHandler(
            ast.Name("Exception", ast.Load()), "agentrl_error", [ast.Expr(said)]
        )
        nothing = ast.Expr(_call(_TRUTH, number, ast.Constant(False)))
        return ast.Try(body, [handler], [nothing], [])


def _is_raises(call: ast.Call) -> bool:
    return ast.unparse(call.func).rpartition(".")[2] in ("raises", "assertRaises")


def _call(name: str, *given: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), list(given), [])
