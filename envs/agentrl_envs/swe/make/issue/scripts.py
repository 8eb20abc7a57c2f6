"""A test as a script whose values can be asked for, statement by statement.

`assert f(2) == 3` becomes a step that asks what `f(2)` gives. Parameters become assignments, and
`self.x` of a `TestCase` a name. A test with other fixtures, helpers of its class or decorators is
none that a user could have typed, and gives no script.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from agentrl_envs.swe.make.issue.definitions import (
    Definition,
    NoScriptError,
    bound_names,
    free_names,
    names_of,
    needed,
)
from agentrl_envs.swe.proof.literals import is_literal

_RAISES = ("raises", "assertRaises", "assertRaisesRegex")
_BOTH_SIDES = frozenset(
    f"assert{name}"
    for name in ("Equal", "Equals", "NotEqual", "ListEqual", "DictEqual", "SetEqual", "TupleEqual",
                 "SequenceEqual", "CountEqual", "AlmostEqual", "MultiLineEqual", "Is", "IsNot",
                 "Greater", "GreaterEqual", "Less", "LessEqual")
)  # fmt: skip
_ONE = frozenset(("assertTrue", "assertFalse", "assertIsNone", "assertIsNotNone", "assert_"))
_INSIDE = {"assertIn": ast.In, "assertNotIn": ast.NotIn}


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of a script."""

    do: str
    """`run` a statement, `probe` a value, `raises` for a statement that is to fail, or `loop`."""
    code: str = ""
    """The statement or expression; of a loop what it goes over."""
    target: str = ""
    """Loop variables."""
    steps: tuple[Step, ...] = ()
    """Steps of a loop."""

    def request(self) -> dict[str, Any]:
        """As `inside/observe.py` reads it."""
        steps = [step.request() for step in self.steps]
        return {"do": self.do, "code": self.code, "target": self.target, "steps": steps}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cases:
    """Parameters of a test."""

    names: str
    """Names, as the left side of an assignment."""
    over: str
    """Expression that gives the values."""
    sources: tuple[str, ...] | None
    """Source of each value, where they are listed; None where they are computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A test, or the few lines that are left of it."""

    test: str = ""
    """Node id; empty for a script of no test."""
    prelude: tuple[str, ...] = ()
    """Statements that come first: imports and definitions of the test's module."""
    cases: tuple[Cases, ...] = ()
    """Parameters."""
    steps: tuple[Step, ...] = ()
    """Steps, in order."""
    definitions: tuple[Definition, ...] = ()
    """All statements of the module, from which fewer may do."""

    def request(self, marks: Sequence[tuple[str, str]] = ()) -> dict[str, Any]:
        """As `inside/observe.py` reads it; `marks` are functions whose depth is asked for."""
        cases = [
            [case.names, case.over, None if case.sources is None else list(case.sources)]
            for case in self.cases
        ]
        return {
            "prelude": list(self.prelude),
            "cases": cases,
            "marks": [list(m) for m in marks],
            "steps": [step.request() for step in self.steps],
        }


def script_of(
    test: str,
    function: ast.FunctionDef,
    around: Sequence[ast.ClassDef],
    definitions: Sequence[Definition],
) -> Script:
    """The script of one test function.

    Args:
        test: node id.
        function: its definition.
        around: the class that it is named in and, where it is inherited, the one it lies in.
        definitions: of the modules of both, the first one's first.

    Raises:
        NoScriptError: there is none.
    """
    arguments = [arg.arg for arg in function.args.args]
    # What is read once serves many tests, so it is not to be changed.
    body = [copy.deepcopy(node) for node in function.body if not _is_text(node)]
    before: list[ast.stmt] = []
    decorators = list(function.decorator_list)
    if around:
        if not arguments:
            raise NoScriptError("no method of an object")
        known, before = _of_class(around)
        fixed = _NoSelf(arguments[0], known)
        body = [fixed.visit(node) for node in body]
        before = [fixed.visit(copy.deepcopy(node)) for node in before]
        arguments = arguments[1:]
        decorators += [one for node in around for one in node.decorator_list]
    cases = tuple(case for one in decorators if (case := _cases(one)) is not None)
    given = {name.strip(" ,()") for case in cases for name in case.names.split(",")}
    if set(arguments) - given or function.args.kwonlyargs or function.args.vararg:
        raise NoScriptError(f"it takes {', '.join(set(arguments) - given)}")
    steps = (*(Step(do="run", code=ast.unparse(node)) for node in before), *_steps(body))
    code = "\n".join(ast.unparse(node) for node in (*before, *body))
    # What is left of the object makes its step fail, and no report of it.
    read = free_names(code) - given - {"pytest", "self"}
    for case in cases:
        read |= free_names(case.over)
    prelude = needed(definitions, sorted(read))
    return Script(
        test=test,
        prelude=tuple(one.code for one in prelude),
        cases=cases,
        steps=steps,
        definitions=tuple(definitions),
    )


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _of_class(around: Sequence[ast.ClassDef]) -> tuple[set[str], list[ast.stmt]]:
    """Names that `self` has, and the statements that give them: of the class and of its set-up."""
    known: set[str] = set()
    before: list[ast.stmt] = []
    for owner in reversed(around):
        for node in owner.body:
            if isinstance(node, ast.Assign | ast.AnnAssign):
                before.append(node)
                known.update(bound_names(node))
        for node in owner.body:
            if isinstance(node, ast.FunctionDef) and node.name in ("setUp", "setup_method"):
                before += [part for part in node.body if not _is_text(part)]
                known.update(
                    part.attr
                    for part in ast.walk(node)
                    if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store)
                )
    return known, before


class _NoSelf(ast.NodeTransformer):
    """`self.x` becomes `x`."""

    def __init__(self, name: str, known: Collection[str]) -> None:
        self._name = name
        self._known = known

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        """Replace an attribute of the object."""
        self.generic_visit(node)
        own = isinstance(node.value, ast.Name) and node.value.id == self._name
        stored = isinstance(node.ctx, ast.Store)
        if own and (stored or node.attr in self._known):
            return ast.copy_location(ast.Name(id=node.attr, ctx=node.ctx), node)
        return node


def _cases(decorator: ast.expr) -> Cases | None:
    text = ast.unparse(decorator)
    if not (isinstance(decorator, ast.Call) and text.startswith("pytest.mark.parametrize(")):
        if text.startswith("pytest.mark."):
            return None
        raise NoScriptError(f"it is decorated with {text[:40]}")
    if len(decorator.args) < 2:
        raise NoScriptError("parameters by keyword")
    names, values = decorator.args[:2]
    try:
        named = ast.literal_eval(names)
    except ValueError:
        raise NoScriptError("parameters with computed names") from None
    split = named.split(",") if isinstance(named, str) else list(named)
    left = ", ".join(name.strip() for name in split)
    sources = None
    if isinstance(values, ast.List | ast.Tuple):
        sources = tuple(_case_source(value, len(split)) for value in values.elts)
    return Cases(names=left, over=ast.unparse(values), sources=sources)


def _case_source(value: ast.expr, count: int) -> str:
    if isinstance(value, ast.Starred):
        raise NoScriptError("parameters that are unpacked")
    if isinstance(value, ast.Call) and ast.unparse(value.func) == "pytest.param":
        value = value.args[0] if count == 1 else ast.Tuple(elts=value.args, ctx=ast.Load())
    return ast.unparse(value)


def _steps(body: Sequence[ast.stmt]) -> tuple[Step, ...]:
    found: list[Step] = []
    for node in body:
        if isinstance(node, ast.Return):
            break
        found += _step(node)
    return tuple(found)


def _step(node: ast.stmt) -> Sequence[Step]:
    if isinstance(node, ast.Assert):
        if _called(node.test) in _RAISES and isinstance(node.test, ast.Call):
            return _asserting(node.test) or ()
        return [Step(do="probe", code=text) for text in _probes(node.test)]
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        asked = _asserting(node.value)
        if asked is not None:
            return asked
    if isinstance(node, ast.With):
        first = node.items[0]
        name = _called(first.context_expr)
        if name in _RAISES and len(node.items) == 1:
            # What is asked of the error afterwards has no error to ask.
            return [Step(do="raises", code="\n".join(map(ast.unparse, node.body)))]
        if name == "subTest":
            return _steps(node.body)
    if isinstance(node, ast.For) and not node.orelse and _asks(node):
        return [
            Step(
                do="loop",
                code=ast.unparse(node.iter),
                target=ast.unparse(node.target),
                steps=_steps(node.body),
            )
        ]
    return [Step(do="run", code=ast.unparse(ast.fix_missing_locations(_Unasserted().visit(node))))]


class _Unasserted(ast.NodeTransformer):
    """Assertions inside a block become what they look at."""

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        """Keep what is looked at: that may change it."""
        return ast.Expr(value=node.test)

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        """The same for methods of a `TestCase`."""
        call = node.value
        if isinstance(call, ast.Call) and _called(call) in _BOTH_SIDES | _ONE | {*_INSIDE}:
            return ast.Expr(value=ast.Tuple(elts=call.args, ctx=ast.Load()))
        return node


def _asks(node: ast.AST) -> bool:
    return any(
        isinstance(part, ast.Assert)
        or (isinstance(part, ast.Call) and str(_called(part)).startswith("assert"))
        for part in ast.walk(node)
    )


def _called(node: ast.expr) -> str:
    if not isinstance(node, ast.Call):
        return ""
    func = node.func
    return func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")


def _asserting(call: ast.Call) -> Sequence[Step] | None:
    """The steps for a call that asserts; None for another call."""
    name, args = _called(call), call.args
    on_self = isinstance(call.func, ast.Attribute) and names_of(call.func) == {"self"}
    if name in _RAISES and len(args) >= 2:
        # `raises(E, f, *args)`; with a pattern in the second place it comes third.
        at = 2 if name == "assertRaisesRegex" else 1
        func = args[at]
        if isinstance(func, ast.Lambda) and len(args) == at + 1:
            return [Step(do="raises", code=ast.unparse(func.body))]
        keywords = [word for word in call.keywords if word.arg not in ("match", "msg")]
        made = ast.Call(func=func, args=args[at + 1 :], keywords=keywords)
        return [Step(do="raises", code=ast.unparse(made))]
    if not on_self or not name.startswith("assert"):
        return None
    if (name in _BOTH_SIDES and len(args) >= 2) or (name in _ONE and args):
        sides = args[:2] if name in _BOTH_SIDES else args[:1]
        texts = [text for side in sides if not is_literal(side) for text in _probes(side)]
        return [Step(do="probe", code=text) for text in texts]
    if name in _INSIDE and len(args) >= 2:
        whole = ast.Compare(left=args[0], ops=[_INSIDE[name]()], comparators=[args[1]])
        return [Step(do="probe", code=text) for text in _probes(whole)]
    if name == "assertIsInstance" and len(args) >= 2:
        return [Step(do="probe", code=ast.unparse(args[0]))]
    raise NoScriptError(f"it asserts with {name}")


def _probes(test: ast.expr) -> list[str]:
    """The expressions to ask for; each is evaluated once, as it may change what it looks at."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return [text for value in test.values for text in _probes(value)]
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _probes(test.operand)
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        right = test.comparators[0]
        if isinstance(test.ops[0], ast.In | ast.NotIn):
            return [ast.unparse(right if isinstance(right, ast.Call) else test)]
        sides = [side for side in (test.left, right) if not is_literal(side)]
        return [ast.unparse(side) for side in sides] or [ast.unparse(test)]
    if _called(test) in ("isinstance", "bool") and isinstance(test, ast.Call):
        return [ast.unparse(test.args[0])]
    return [ast.unparse(test)]
