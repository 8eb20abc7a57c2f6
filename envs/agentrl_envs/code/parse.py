"""Parsing of source that a model or a dataset wrote, in the trainer's own process."""

from __future__ import annotations

import ast
import warnings


def parsed(source: str, *, expression: bool = False) -> ast.AST | None:
    """The syntax tree of the source, or None if it is not valid Python.

    What Python would say about doubtful source (`"\\d"`, `1 is 1`) is for its author, not for the
    terminal of a training run.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ast.parse(source, mode="eval" if expression else "exec")
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            # ValueError: null bytes and lone surrogates; the others: absurd nesting.
            return None
