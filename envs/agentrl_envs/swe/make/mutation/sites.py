"""The sites of a source file at which operators apply, and the file with one of them applied."""

from __future__ import annotations

import ast
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import libcst as cst
from libcst.metadata import (
    CodeRange,
    MetadataWrapper,
    PositionProvider,
    WhitespaceInclusivePositionProvider,
)

from agentrl_envs.swe.make.mutation.operators import OPERATORS, Change, Scope

_QUIET_METHODS = ("__repr__", "__str__", "__del__", "__init_subclass__", "__getstate__")
"""What they do is shown rather than used: bugs in them are matters of taste."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """One change that could be made to a file."""

    operator: str
    """Name in `OPERATORS`."""
    function: str
    """Dotted name of the innermost function around it."""
    line: int
    """First line of the node, from 1."""
    node: cst.CSTNode
    """The node of the parsed file."""
    change: Change
    """Replacement of the node."""


class SourceFile:
    """A parsed source file and the changes that could be made to it."""

    def __init__(self, text: str, *, covered: Collection[int] | None = None) -> None:
        """Parse the source `text`.

        Args:
            text: the file.
            covered: first lines of the functions that tests run; others are left alone. None
                takes all functions.

        Raises:
            ValueError: libcst cannot read it.
        """
        self.text = text
        try:
            wrapper = MetadataWrapper(cst.parse_module(text))
        except (cst.ParserSyntaxError, RecursionError) as error:
            raise ValueError(f"not a file that libcst reads: {error}") from error
        self._module = wrapper.module
        self._spans = wrapper.resolve(WhitespaceInclusivePositionProvider)
        self._starts = [0]
        for line in text.split("\n"):
            self._starts.append(self._starts[-1] + len(line) + 1)
        finder = _Finder(wrapper.resolve(PositionProvider), covered)
        wrapper.module.visit(finder)
        self.sites: Sequence[Site] = finder.sites
        self._dump = ast.dump(ast.parse(text))

    def changed(self, site: Site) -> str | None:
        """The file with one change; None if that is no other program, or none at all."""
        text = self._spliced(site) or self._rebuilt(site)
        try:
            tree = ast.parse(text)
            compile(text, "<changed>", "exec", dont_inherit=True)
        except (SyntaxError, ValueError):
            return None
        return None if ast.dump(tree) == self._dump else text

    def _spliced(self, site: Site) -> str | None:
        """The change put in as text, which is twenty times faster; None where that is not sure."""
        span = self._spans[site.node]
        start = self._starts[span.start.line - 1] + span.start.column
        end = self._starts[span.end.line - 1] + span.end.column
        old = self.text[start:end]
        if isinstance(site.change, cst.RemovalSentinel):
            whole = span.start.column == 0 and old.endswith("\n")
            return self.text[:start] + self.text[end:] if whole else None
        # Blocks are written with the indentation of their surroundings, which a node has not.
        if self._module.code_for_node(site.node) != old:
            return None
        return self.text[:start] + self._module.code_for_node(site.change) + self.text[end:]

    def _rebuilt(self, site: Site) -> str:
        if isinstance(site.change, cst.RemovalSentinel):
            made = self._module.deep_remove(site.node)
        else:
            made = self._module.deep_replace(site.node, site.change)
        assert isinstance(made, cst.Module)
        return made.code


class _Finder(cst.CSTVisitor):
    """Collects sites inside the bodies of functions."""

    def __init__(self, positions: object, covered: Collection[int] | None) -> None:
        super().__init__()
        self.sites: list[Site] = []
        self._positions = positions
        self._covered = covered
        self._path: list[cst.CSTNode] = []
        self._names: list[str] = []
        self._open: list[bool] = []
        self._parameters: list[list[str]] = []
        self._attributes: list[list[str]] = [[]]

    def on_visit(self, node: cst.CSTNode) -> bool:
        """Called by libcst for every node; False leaves its children out."""
        if isinstance(node, (cst.Annotation, cst.Decorator, cst.Assert)) or _is_docstring(node):
            return False
        if self._open and self._open[-1] and not isinstance(node, cst.FunctionDef):
            self._try_all(node)
        if isinstance(node, cst.ClassDef):
            self._names.append(node.name.value)
            self._attributes.append(_attributes_set(node))
        elif isinstance(node, cst.FunctionDef):
            self._names.append(node.name.value)
            self._open.append(self._wanted(node))
            self._parameters.append(_parameters(node))
        self._path.append(node)
        return True

    def on_leave(self, original_node: cst.CSTNode) -> None:
        """Called by libcst when a node's children are done."""
        if not self._path or self._path[-1] is not original_node:
            return
        self._path.pop()
        if isinstance(original_node, cst.ClassDef):
            self._names.pop()
            self._attributes.pop()
        elif isinstance(original_node, cst.FunctionDef):
            self._names.pop()
            self._open.pop()
            self._parameters.pop()

    def _try_all(self, node: cst.CSTNode) -> None:
        scope = Scope(
            parent=self._path[-1] if self._path else None,
            names=self._parameters[-1],
            attributes=self._attributes[-1],
        )
        for name, operator in OPERATORS.items():
            for change in operator(node, scope):
                self.sites.append(
                    Site(
                        operator=name,
                        function=".".join(self._names),
                        line=self._range(node).start.line,
                        node=node,
                        change=change,
                    )
                )

    def _range(self, node: cst.CSTNode) -> CodeRange:
        return self._positions[node]  # type: ignore[index]

    def _wanted(self, node: cst.FunctionDef) -> bool:
        if node.name.value in _QUIET_METHODS:
            return False
        if self._covered is None:
            return True
        # The interpreter counts a function from its first decorator.
        first = node.decorators[0] if node.decorators else node.name
        lines = range(self._range(first).start.line, self._range(node.name).start.line + 1)
        return any(line in self._covered for line in lines)


def _is_docstring(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Expr) and isinstance(
        node.value, (cst.SimpleString, cst.ConcatenatedString)
    )


def _parameters(node: cst.FunctionDef) -> list[str]:
    found = [*node.params.posonly_params, *node.params.params, *node.params.kwonly_params]
    names = [param.name.value for param in found]
    return [name for name in names if name not in ("self", "cls")]


class _SelfTargets(cst.CSTVisitor):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def visit_AssignTarget(self, node: cst.AssignTarget) -> None:
        target = node.target
        if (
            isinstance(target, cst.Attribute)
            and isinstance(target.value, cst.Name)
            and target.value.value == "self"
            and target.attr.value not in self.found
        ):
            self.found.append(target.attr.value)


def _attributes_set(node: cst.ClassDef) -> list[str]:
    targets = _SelfTargets()
    node.visit(targets)
    return targets.found
