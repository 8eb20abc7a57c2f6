"""The statements of a test module that a few lines of it rest on."""

from __future__ import annotations

import ast
import builtins
import functools
import symtable
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

BUILTINS = frozenset(dir(builtins))


class NoScriptError(Exception):
    """A test that cannot be turned into a script."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """A statement of a test module that scripts may need."""

    names: frozenset[str]
    """Names that it binds; `*` for an import of everything."""
    code: str
    """Source of it."""
    uses: frozenset[str]
    """Names that it reads."""
    root: str = ""
    """First part of the module that it imports; empty if it imports nothing."""


def needed(definitions: Sequence[Definition], names: Collection[str]) -> list[Definition]:
    """The definitions that some names need, in the order of the module.

    Raises:
        NoScriptError: a name is defined nowhere.
    """
    stars = [one for one in definitions if "*" in one.names]
    chosen: set[int] = set()
    todo, done = set(names), set[str]()
    while todo:
        name = todo.pop()
        done.add(name)
        found = [i for i, one in enumerate(definitions) if name in one.names]
        if not found and name not in BUILTINS:
            if not stars:
                raise NoScriptError(f"nothing defines {name}")
            found = [i for i, one in enumerate(definitions) if "*" in one.names]
        for index in found:
            chosen.add(index)
            todo |= definitions[index].uses - done
    return [definitions[index] for index in sorted(chosen)]


@functools.lru_cache(maxsize=32)
def definitions_of(source: str) -> tuple[Definition, ...]:
    """The statements of a module on which its functions may rest."""
    found: list[Definition] = []
    for node in ast.parse(source).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            found += _imports(node)
        elif not isinstance(node, ast.Expr):
            found.append(
                Definition(
                    names=frozenset(bound_names(node)),
                    code=ast.unparse(node),
                    uses=frozenset(free_names(ast.unparse(node))),
                )
            )
    return tuple(found)


def free_names(code: str) -> set[str]:
    """Names that a piece of code reads and does not bind itself."""
    top = symtable.symtable(code, "<snippet>", "exec")
    bound = {it.get_name() for it in top.get_symbols() if it.is_assigned() or it.is_imported()}
    found = {it.get_name() for it in top.get_symbols() if it.is_referenced()}
    inner = top.get_children()
    while inner:
        table = inner.pop()
        inner += table.get_children()
        found |= {
            it.get_name() for it in table.get_symbols() if it.is_global() and it.is_referenced()
        }
    return found - bound


def names_of(node: ast.AST) -> set[str]:
    """All names of a piece of code."""
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}


def _imports(node: ast.Import | ast.ImportFrom) -> Iterator[Definition]:
    for alias in node.names:
        if isinstance(node, ast.Import):
            one = ast.Import(names=[alias])
            root = alias.name.partition(".")[0]
            name = alias.asname or root
        else:
            one = ast.ImportFrom(module=node.module, names=[alias], level=node.level)
            root = "." if node.level else (node.module or "").partition(".")[0]
            name = alias.asname or alias.name
        yield Definition(
            names=frozenset((name,)), code=ast.unparse(one), uses=frozenset(), root=root
        )


def bound_names(node: ast.stmt) -> Iterator[str]:
    """Names that a statement binds around it."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
        return
    for part in ast.walk(node):
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
            yield part.id
        elif isinstance(part, ast.alias):
            yield part.asname or part.name.partition(".")[0]


def foreign(definitions: Sequence[Definition], allowed: Collection[str]) -> str:
    """The first module that is neither the library nor of the standard library; empty if none."""
    return next((one.root for one in definitions if one.root and one.root not in allowed), "")
