"""Code that surely fails for a task without a label.

Only what runs in every call that does not fail counts: the statements before the first branch, and
in them what is evaluated for sure. Anything else may know tasks without a label.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any

_CONVERSIONS = frozenset(
    ("float", "int", "len", "dict", "list", "set", "tuple", "sorted", "iter", "sum")
)
"""Builtins that take no None."""


def needs_label(target: Any) -> bool:
    """Return true if an environment or a reward function surely fails without a label.

    Args:
        target: what the config names; ours may have an attribute `needs_label`, which counts for
            the class whose `reset` is taken.
    """
    if not inspect.isclass(target):
        return bool(getattr(target, "needs_label", False)) or _fails(target)
    owner = next((one for one in target.__mro__ if "reset" in vars(one)), target)
    methods = (getattr(target, name, None) for name in ("reset", "step"))
    return bool(vars(owner).get("needs_label")) or any(map(_fails, methods))


def _fails(function: Any) -> bool:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    except (OSError, TypeError, SyntaxError, ValueError, RecursionError):
        return False  # without source, as an extension or an instance
    if not isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    names = [arg.arg for arg in (*tree.args.posonlyargs, *tree.args.args, *tree.args.kwonlyargs)]
    labels = {f"{name}.label" for name in names} | {"self.task.label"}
    labels |= {"ground_truth"} & set(names)
    return any(_takes_no_none(node, labels) for node in _run(tree.body, labels))


def _run(body: list[ast.stmt], labels: set[str]) -> Iterator[ast.AST]:
    """Parts of statements that run in every call; `labels` are the names that a label has there."""
    for statement in body:
        match statement:
            case ast.Try(body=inner, handlers=handlers):
                if all(isinstance(one.body[-1], ast.Raise) for one in handlers):
                    yield from _run(inner, labels)
                return
            case ast.If(test=first, body=[ast.Raise()], orelse=[]):
                yield from _evaluated(first)
            case ast.If(test=first) | ast.While(test=first):
                yield from _evaluated(first)
                return
            case ast.For(iter=first) | ast.AsyncFor(iter=first) | ast.Match(subject=first):
                yield from _evaluated(first)
                return
            case ast.With() | ast.AsyncWith():
                return  # it may take an error for an answer
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                continue
            case _:
                yield from _evaluated(statement)
        if isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign):
            _rename(statement, labels)


def _rename(statement: ast.Assign | ast.AnnAssign | ast.AugAssign, labels: set[str]) -> None:
    same = statement.value is not None and ast.unparse(statement.value) in labels
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    for target in targets:
        for name in [one.id for one in ast.walk(target) if isinstance(one, ast.Name)]:
            labels -= {name, f"{name}.label"}
        if same and isinstance(target, ast.Name):
            labels.add(target.id)


def _evaluated(node: ast.AST) -> Iterator[ast.AST]:
    """A node and what is in it, less what may be passed over."""
    yield node
    match node:
        case ast.Lambda():
            return
        case ast.IfExp(test=first):
            yield from _evaluated(first)
        case ast.BoolOp(values=[first, *_]) | ast.Compare(left=first, comparators=[_, _, *_]):
            yield from _evaluated(first)
        case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
            yield from _evaluated(node.generators[0].iter)
        case _:
            for inner in ast.iter_child_nodes(node):
                yield from _evaluated(inner)


def _takes_no_none(node: ast.AST, labels: set[str]) -> bool:
    match node:
        case ast.Attribute(value=of) | ast.Subscript(value=of):
            return ast.unparse(of) in labels
        case ast.Call(func=ast.Name(id=name), args=[of, *_]) if name in _CONVERSIONS:
            return ast.unparse(of) in labels
    return False
