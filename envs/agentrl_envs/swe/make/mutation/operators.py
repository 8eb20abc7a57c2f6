"""The ways a working function is broken: small changes that real mistakes look like.

Each operator looks at one node of a syntax tree and gives what could stand in its place. It need
not know whether a test would notice; that is found by running the tests. libcst keeps comments and
formatting, so the layout of a bug does not differ from its surroundings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import libcst as cst


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """The function and class around a node."""

    parent: cst.CSTNode | None
    """The node that holds it."""
    names: Sequence[str] = ()
    """Parameters of the innermost function, without `self` and `cls`."""
    attributes: Sequence[str] = ()
    """Data attributes that the innermost class sets on `self`."""


REMOVED = cst.RemovalSentinel.REMOVE
Change = cst.CSTNode | cst.RemovalSentinel
Operator = Callable[[cst.CSTNode, Scope], Iterator[Change]]

_COMPARISONS: Mapping[type[cst.BaseCompOp], tuple[type[cst.BaseCompOp], ...]] = {
    cst.LessThan: (cst.LessThanEqual, cst.GreaterThan),
    cst.LessThanEqual: (cst.LessThan,),
    cst.GreaterThan: (cst.GreaterThanEqual, cst.LessThan),
    cst.GreaterThanEqual: (cst.GreaterThan,),
    cst.Equal: (cst.NotEqual,),
    cst.NotEqual: (cst.Equal,),
    cst.Is: (cst.IsNot,),
    cst.IsNot: (cst.Is,),
    cst.In: (cst.NotIn,),
    cst.NotIn: (cst.In,),
}
_ARITHMETIC: Mapping[type[cst.CSTNode], type[cst.CSTNode]] = {
    cst.Add: cst.Subtract,
    cst.Subtract: cst.Add,
    cst.Multiply: cst.FloorDivide,
    cst.Divide: cst.Multiply,
    cst.FloorDivide: cst.Divide,
    cst.Modulo: cst.FloorDivide,
    cst.Power: cst.Multiply,
    cst.BitAnd: cst.BitOr,
    cst.BitOr: cst.BitAnd,
    cst.LeftShift: cst.RightShift,
    cst.RightShift: cst.LeftShift,
    cst.AddAssign: cst.SubtractAssign,
    cst.SubtractAssign: cst.AddAssign,
    cst.MultiplyAssign: cst.AddAssign,
}
_SIBLINGS: Mapping[str, str] = {
    **{"min": "max", "max": "min", "any": "all", "all": "any", "floor": "ceil", "ceil": "floor"},
    **{"startswith": "endswith", "endswith": "startswith", "lower": "upper", "upper": "lower"},
    **{"lstrip": "rstrip", "rstrip": "lstrip", "strip": "rstrip", "find": "rfind"},
    **{"split": "rsplit", "rsplit": "split", "partition": "rpartition", "rpartition": "partition"},
    **{
        "append": "extend",
        "extend": "append",
        "add": "discard",
        "keys": "values",
        "index": "count",
    },
    **{"appendleft": "append", "popleft": "pop", "isdigit": "isalpha", "isalpha": "isdigit"},
    **{"sorted": "list", "tuple": "list", "list": "tuple", "set": "list", "int": "float"},
    **{"update": "setdefault", "issubclass": "isinstance", "iter": "list", "abs": "int"},
}
_EXCEPTIONS: Mapping[str, str] = {
    "KeyError": "IndexError",
    "IndexError": "KeyError",
    "ValueError": "KeyError",
    "TypeError": "ValueError",
    "AttributeError": "KeyError",
    "StopIteration": "IndexError",
    "ImportError": "ValueError",
    "OSError": "ValueError",
    "UnicodeDecodeError": "KeyError",
}


def compare(node: cst.CSTNode, scope: Scope) -> Iterator[Change]:
    """`a < b` becomes `a <= b`, `a in b` becomes `a not in b`."""
    if isinstance(node, cst.ComparisonTarget):
        for kind in _COMPARISONS.get(type(node.operator), ()):
            yield node.with_changes(operator=_spaced(kind, node.operator))


def arithmetic(node: cst.CSTNode, scope: Scope) -> Iterator[Change]:
    """`a + b` becomes `a - b`."""
    if isinstance(node, (cst.BinaryOperation, cst.AugAssign)):
        kind = _ARITHMETIC.get(type(node.operator))
        # Adding to text is joining; text minus text fails at once and teaches nothing.
        parts = (node.left, node.right) if isinstance(node, cst.BinaryOperation) else (node.value,)
        if kind and not any(isinstance(part, _TEXT) for part in parts):
            yield node.with_changes(operator=_spaced(kind, node.operator))


def _spaced(kind: type[Any], old: Any) -> Any:
    """An operator of another kind with the same spaces around it."""
    return kind(whitespace_before=old.whitespace_before, whitespace_after=old.whitespace_after)


_TEXT = (cst.SimpleString, cst.FormattedString, cst.ConcatenatedString)


def boolean(node: cst.CSTNode, scope: Scope) -> Iterator[Change]:
    """`a and b` becomes `a or b`."""
    if isinstance(node, cst.BooleanOperation):
        kind = cst.Or if isinstance(node.operator, cst.And) else cst.And
        yield node.with_changes(operator=_spaced(kind, node.operator))


def drop_operand(node: cst.CSTNode, scope: Scope) -> Iterator[Change]:
    """`a and b` becomes `a`, or `b`."""
    if isinstance(node, cst.BooleanOperation):
        for kept in (node.left, node.right):
            yield _within(kept, node)


def negate(node: cst.CSTNode, scope: Scope) -> Iterator[Change]:
    """`if a:` becomes `if not a:`, and the other way round."""
    if isinstance(node, (cst.If, cst.While, cst.IfExp)) and isinstance(node.test, _SIMPLE):
        inverse = cst.UnaryOperation(operator=cst.Not(), expression=node.test)
        yield node.with_changes(test=inverse)
    if isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Not):
        yield _within(node.expression, node)


_SIMPLE = (cst.Name, cst.Attribute, cst.Call, cst.Subscript)


def off_by_one(node: cst.CSTNode, scope: Scope) -> Iterator[Change]:
    """`0` becomes `1`, `3` becomes `4` or `2`."""
    if isinstance(node, cst.Integer) and node.value.isdigit() and len(node.value) < 6:
        number = int(node.value)
        yield node.with_changes(value=str(number + 1))
        if number > 1:
            yield node.with_changes(value=str(number - 1))


def flip_constant(node: cst.CSTNode, scope: Scope) -> Iterator[Change]:
    """`True` becomes `False`; a default of `None` stays."""
    if isinstance(node, cst.Name) and node.value in ("True", "False"):
        yield node.with_changes(value="False" if node.value == "True" else "True")


def swap_arguments(node: cst.CSTNode, scope: Scope) -> Iterator[Change]:
    """`f(a, b)` becomes `f(b, a)`."""
    if isinstance(node, cst.Call) and len(node.args) >= 2:
        first, second, *rest = node.args
        plain = all(arg.keyword is None and not arg.star for arg in (first, second))
        if plain and not first.value.deep_equals(second.value):
            swapped = (
                first.with_changes(value=second.value),
                second.with_changes(value=first.value),
            )
            yield node.with_changes(args=(*swapped, *rest))


def drop_argument(node: cst.CSTNode, scope: Scope) -> Iterator[Change]:
    """`f(a, key=b)` becomes `f(a)`."""
    if isinstance(node, cst.Call):
        for index, arg in enumerate(node.args):
            if arg.keyword is not None:
                kept = [*node.args[:index], *node.args[index + 1 :]]
                if kept and index == len(node.args) - 1:
                    kept[-1] = kept[-1].with_changes(comma=arg.comma)
                yield node.with_changes(args=kept)


def sibling_call(node: cst.CSTNode, scope: Scope) -> Iterator[Change]:
    """`min(a)` becomes `max(a)`, `a.startswith(b)` becomes `a.endswith(b)`."""
    if isinstance(node, cst.Call):
        func = node.func
        name = func.attr if isinstance(func, cst.Attribute) else func
        if isinstance(name, cst.Name) and name.value in _SIBLINGS:
            other = name.with_changes(value=_SIBLINGS[name.value])
            changed = func.with_changes(attr=other) if isinstance(func, cst.Attribute) else other
            yield node.with_changes(func=changed)


def wrong_name(node: cst.CSTNode, scope: Scope) -> Iterator[Change]:
    """A parameter stands where another one should."""
    names = list(scope.names)
    if isinstance(node, (cst.Arg, cst.ComparisonTarget, cst.Return)):
        field = "comparator" if isinstance(node, cst.ComparisonTarget) else "value"
        value = getattr(node, field)
        if isinstance(value, cst.Name) and value.value in names and len(names) > 1:
            other = names[(names.index(value.value) + 1) % len(names)]
            yield node.with_changes(**{field: value.with_changes(value=other)})


def wrong_attribute(node: cst.CSTNode, scope: Scope) -> Iterator[Change]:
    """`self.a` is read where `self.b` should be."""
    names = list(scope.attributes)
    if not isinstance(node, cst.Attribute) or isinstance(scope.parent, cst.AssignTarget):
        return
    on_self = isinstance(node.value, cst.Name) and node.value.value == "self"
    if on_self and node.attr.value in names and len(names) > 1:
        other = names[(names.index(node.attr.value) + 1) % len(names)]
        yield node.with_changes(attr=node.attr.with_changes(value=other))


def slice_bound(node: cst.CSTNode, scope: Scope) -> Iterator[Change]:
    """`a[i:j]` becomes `a[:j]`, or `a[i:]`."""
    if isinstance(node, cst.Slice):
        if node.lower is not None:
            yield node.with_changes(lower=None)
        if node.upper is not None:
            yield node.with_changes(upper=None)


def loop_exit(node: cst.CSTNode, scope: Scope) -> Iterator[Change]:
    """`break` becomes `continue`, and the other way round."""
    if isinstance(node, cst.Break):
        yield cst.Continue(semicolon=node.semicolon)
    elif isinstance(node, cst.Continue):
        yield cst.Break(semicolon=node.semicolon)


def drop_statement(node: cst.CSTNode, scope: Scope) -> Iterator[Change]:
    """A call, an assignment to an attribute or a check is forgotten."""
    if not isinstance(scope.parent, cst.IndentedBlock) or len(scope.parent.body) < 2:
        return
    if isinstance(node, cst.SimpleStatementLine) and len(node.body) == 1:
        small = node.body[0]
        called = isinstance(small, cst.Expr) and isinstance(small.value, cst.Call)
        stored = isinstance(small, cst.Assign) and not any(
            # A forgotten plain name is a NameError at its first use: too easy.
            isinstance(target.target, (cst.Name, cst.Tuple, cst.List))
            for target in small.targets
        )
        if called or stored or isinstance(small, cst.AugAssign):
            yield REMOVED
    elif isinstance(node, cst.If) and node.orelse is None:
        yield REMOVED


def drop_else(node: cst.CSTNode, scope: Scope) -> Iterator[Change]:
    """The last branch of an `if` is forgotten."""
    if isinstance(node, cst.If) and isinstance(node.orelse, cst.Else):
        yield node.with_changes(orelse=None)


def swap_branches(node: cst.CSTNode, scope: Scope) -> Iterator[Change]:
    """Exchange the branches of `if` and `else`."""
    if isinstance(node, cst.If) and isinstance(node.orelse, cst.Else):
        yield node.with_changes(
            body=node.orelse.body, orelse=node.orelse.with_changes(body=node.body)
        )
    if isinstance(node, cst.IfExp):
        yield node.with_changes(body=node.orelse, orelse=node.body)


def other_exception(node: cst.CSTNode, scope: Scope) -> Iterator[Change]:
    """The wrong kind of exception is caught, or raised."""
    if isinstance(node, cst.ExceptHandler) and isinstance(node.type, cst.Name):
        other = _EXCEPTIONS.get(node.type.value)
        if other:
            yield node.with_changes(type=node.type.with_changes(value=other))
    if isinstance(node, cst.Raise) and isinstance(node.exc, cst.Call):
        func = node.exc.func
        if isinstance(func, cst.Name) and func.value in _EXCEPTIONS:
            func = func.with_changes(value=_EXCEPTIONS[func.value])
            yield node.with_changes(exc=node.exc.with_changes(func=func))


def return_early(node: cst.CSTNode, scope: Scope) -> Iterator[Change]:
    """`return f(a)` becomes `return a`; `yield from a` gives `a` itself."""
    if isinstance(node, cst.Return) and isinstance(node.value, cst.Call):
        args = node.value.args
        if args and args[0].keyword is None and not args[0].star:
            yield node.with_changes(value=_within(args[0].value, node.value))
    if isinstance(node, cst.Yield) and isinstance(node.value, cst.From):
        yield node.with_changes(value=node.value.item)


def _within(kept: cst.BaseExpression, outer: cst.BaseExpression) -> cst.BaseExpression:
    """`kept` in the place of `outer`, inside its parentheses as well: it may span lines."""
    return kept.with_changes(
        lpar=(*outer.lpar, *kept.lpar),
        rpar=(*kept.rpar, *outer.rpar),
    )


OPERATORS: Mapping[str, Operator] = MappingProxyType(
    {
        function.__name__: function
        for function in (
            compare, arithmetic, boolean, drop_operand, negate, off_by_one, flip_constant,
            swap_arguments, drop_argument, sibling_call, wrong_name, wrong_attribute, slice_bound,
            loop_exit, drop_statement, drop_else, swap_branches, other_exception, return_early,
        )
    }
)  # fmt: skip
"""By name, as in `SweTask.operator`."""
