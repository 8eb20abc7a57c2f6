"""The few lines of a test that show a defect, as someone would type them.

What does not bear on the step that goes wrong is left out, names that stand for short values are
replaced by these, and imports are of the names that are left. Whether the lines still show the
defect is not known here: they are run again, and there are several ways to try.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentrl_envs.swe.make.issue.definitions import (
    BUILTINS,
    Definition,
    NoScriptError,
    foreign,
    free_names,
    names_of,
    needed,
)
from agentrl_envs.swe.make.issue.scripts import Script, Step

_INLINE = 70
_MOST_LINES = 24
_MOST_CALL = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """The step of a script at which the defect shows."""

    bound: tuple[str, ...]
    """Assignments of the parameters."""
    path: tuple[int, ...]
    """Number of the step; in a loop that of the loop, of the round, and of the step in it."""
    names: Mapping[str, str] = field(default_factory=dict[str, str])
    """Values of names, as source, the same with the defect and without."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snippet:
    """Lines that show a defect."""

    imports: tuple[str, ...]
    """Import statements."""
    setup: tuple[str, ...]
    """Other statements before the last."""
    call: str
    """The last line: an expression, or a statement."""
    is_value: bool
    """Whether the last line has a value."""

    def script(self) -> Script:
        """The same as something to run."""
        last = Step(do="probe" if self.is_value else "raises", code=self.call)
        before = tuple(Step(do="run", code=code) for code in self.setup)
        return Script(prelude=self.imports, steps=(*before, last))


def snippets(
    script: Script, moment: Moment, modules: frozenset[str], short: Mapping[str, str]
) -> Iterator[Snippet]:
    """Ways to show what goes wrong, the most readable first.

    Args:
        script: of the test.
        moment: where it goes wrong.
        modules: what a snippet may import.
        short: packages that users are more likely to import from, by their modules.
    """
    seen: set[Snippet] = set()
    try:
        before, last, literals = _before(script.steps, moment)
    except NoScriptError:
        return
    for slicing in (_with_nothing_asked, _with_all):
        for inline in (True, False):
            made = _assemble(script, before, last, literals, slicing, inline)
            if made is None or foreign(made[1], modules):
                continue
            snippet, chosen = made
            for codes in _importing([one.code for one in chosen if one.root], short):
                rest = tuple(one.code for one in chosen if not one.root)
                whole = Snippet(
                    imports=tuple(dict.fromkeys(codes)),
                    setup=(*rest, *snippet.setup),
                    call=snippet.call,
                    is_value=snippet.is_value,
                )
                if whole not in seen and _fits(whole):
                    seen.add(whole)
                    yield whole


def _fits(snippet: Snippet) -> bool:
    """True if someone would still type it, and nothing in it needs the test's own object."""
    lines = "\n".join((*snippet.imports, *snippet.setup)).count("\n") + 1
    typed = "\n".join((*snippet.setup, snippet.call))
    return (
        lines <= _MOST_LINES and len(snippet.call) <= _MOST_CALL and "self" not in free_names(typed)
    )


def _importing(codes: Sequence[str], short: Mapping[str, str]) -> Iterator[tuple[str, ...]]:
    """Imports of packages where they may do, all but one, and as in the test."""
    shorter = [_shorter(code, short) for code in codes]
    yield tuple(shorter)
    for at in range(len(codes)):
        yield (*shorter[:at], codes[at], *shorter[at + 1 :])
    yield tuple(codes)


def _shorter(code: str, short: Mapping[str, str]) -> str:
    (node,) = ast.parse(code).body
    if isinstance(node, ast.ImportFrom) and node.module and node.module in short:
        node.module = short[node.module]
        return ast.unparse(node)
    return code


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    node: ast.stmt
    asked: bool
    """Whether the test only looks at something there."""


def _before(steps: Sequence[Step], moment: Moment) -> tuple[list[_Line], Step, Mapping[str, str]]:
    """The lines up to the moment, the step of the moment, and values of names."""
    lines = [_Line(node=node, asked=False) for text in moment.bound for node in _parsed(text)]
    path = list(moment.path)
    if not path:
        raise NoScriptError("a parameter cannot be bound")
    loops: list[Step] = []
    while True:
        at = path.pop(0)
        for step in steps[:at]:
            lines += _lines(step)
        step = steps[at]
        if step.do != "loop":
            break
        if not path:
            raise NoScriptError("what a loop goes over fails")
        path.pop(0)
        loops.append(step)
        steps = step.steps
    for loop in loops:
        missing = names_of(ast.parse(loop.target)) - set(moment.names)
        if missing & names_of(ast.parse(step.code)):
            raise NoScriptError("a loop variable has no plain value")
    return lines, step, moment.names


def _parsed(text: str) -> list[ast.stmt]:
    return ast.parse(text).body


def _lines(step: Step) -> list[_Line]:
    if step.do == "loop":
        inner = [line.node for part in step.steps for line in _lines(part)]
        target, over = ast.parse(f"{step.target} = {step.code}").body[0], inner or [ast.Pass()]
        assert isinstance(target, ast.Assign)
        loop = ast.For(target=target.targets[0], iter=target.value, body=over, orelse=[])
        return [_Line(node=ast.fix_missing_locations(loop), asked=True)]
    if step.do == "raises":
        return []  # it changed nothing, or the test would have said so
    return [_Line(node=node, asked=step.do == "probe") for node in _parsed(step.code)]


def _with_nothing_asked(line: _Line) -> bool:
    return not line.asked


def _with_all(line: _Line) -> bool:
    return True


def _assemble(
    script: Script,
    before: Sequence[_Line],
    last: Step,
    literals: Mapping[str, str],
    slicing,
    inline: bool,
) -> tuple[Snippet, list[Definition]] | None:
    code = last.code
    is_value = last.do == "probe"
    kept = [line.node for line in before if slicing(line)]
    final = ast.parse(code).body
    if not is_value and len(final) > 1:
        # All but the last statement of a block only get things ready.
        kept += final[:-1]
        final = final[-1:]
    (node,) = final
    if isinstance(node, ast.Assign) and len(node.targets) == 1 and last.do == "run":
        node = ast.Expr(value=node.value)
    if inline:
        node = _Inlined(literals).visit(node)
    kept = _relevant(kept, names_of(node))
    if inline:
        node, kept = _joined(node, kept)
    text = ast.unparse(ast.fix_missing_locations(node))
    setup = tuple(ast.unparse(ast.fix_missing_locations(one)) for one in kept)
    try:
        chosen = _imported(script.definitions, free_names("\n".join((*setup, text))))
    except NoScriptError:
        return None
    made = Snippet(imports=(), setup=setup, call=text, is_value=isinstance(node, ast.Expr))
    return made, chosen


def _imported(definitions: Sequence[Definition], names: set[str]) -> list[Definition]:
    """What some names need, without an import of everything where one name will do."""
    found: list[Definition] = []
    for one in needed(definitions, names):
        if "*" not in one.names:
            found.append(one)
            continue
        module = one.code.removesuffix("*")
        defined = set[str]().union(*(it.names for it in definitions))
        found += [
            Definition(
                names=frozenset((name,)), code=f"{module}{name}", uses=frozenset(), root=one.root
            )
            for name in sorted(names - defined - BUILTINS)
        ]
    return found


class _Inlined(ast.NodeTransformer):
    """Names replaced by short values."""

    def __init__(self, literals: Mapping[str, str]) -> None:
        self._literals = dict(literals)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        """Replace a name that is read."""
        text = self._literals.get(node.id, "")
        if text and len(text) <= _INLINE and isinstance(node.ctx, ast.Load):
            return ast.parse(text, mode="eval").body
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        """Leave names alone that mean something else inside."""
        inner = {arg.arg for arg in ast.walk(node) if isinstance(arg, ast.arg)}
        return self._without(node, inner)

    def visit_ListComp(self, node: Any) -> ast.AST:
        """Leave names alone that mean something else inside."""
        return self._without(node, _stored(node))

    visit_SetComp = visit_DictComp = visit_GeneratorExp = visit_ListComp

    def _without(self, node: ast.AST, names: set[str]) -> ast.AST:
        fewer = {name: text for name, text in self._literals.items() if name not in names}
        return ast.NodeTransformer.generic_visit(_Inlined(fewer), node)


def _stored(node: ast.AST) -> set[str]:
    return {
        part.id
        for part in ast.walk(node)
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
    }


def _relevant(lines: Sequence[ast.stmt], names: set[str]) -> list[ast.stmt]:
    """The lines that have to do with what some names stand for, as far as that can be seen."""
    wanted = set(names)
    local = set[str]().union(*(_binds(line) for line in lines))
    kept: list[ast.stmt] = []
    for line in reversed(lines):
        mentioned = names_of(line) | _binds(line)
        if mentioned & wanted & local:
            kept.append(line)
            if isinstance(line, ast.Assign):
                # What the name stood for before no longer matters.
                wanted -= {one.id for one in line.targets if isinstance(one, ast.Name)}
                wanted |= {
                    part.id
                    for part in ast.walk(line)
                    if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load)
                }
            else:
                wanted |= mentioned
    return kept[::-1]


def _binds(node: ast.stmt) -> set[str]:
    found = _stored(node)
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        found = {node.name}
    return found


def _joined(node: Any, lines: list[ast.stmt]) -> tuple[ast.stmt, list[ast.stmt]]:
    """`x = f(1)` and then `x` as `f(1)`."""
    while lines and isinstance(node, ast.Expr):
        last = lines[-1]
        if not (isinstance(last, ast.Assign) and isinstance(last.targets[0], ast.Name)):
            break
        name = last.targets[0].id
        uses = [part for part in ast.walk(node) if isinstance(part, ast.Name) and part.id == name]
        elsewhere = any(name in names_of(line) for line in lines[:-1])
        long = len(ast.unparse(last.value)) > _INLINE
        whole = isinstance(node.value, ast.Name)
        if len(last.targets) != 1 or len(uses) != 1 or elsewhere or (long and not whole):
            break
        node = _Inlined({}).generic_visit(_Replaced(name, last.value).visit(node))
        lines = lines[:-1]
    return node, lines


class _Replaced(ast.NodeTransformer):
    def __init__(self, name: str, value: ast.expr) -> None:
        self._name = name
        self._value = value

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return self._value if node.id == self._name else node
