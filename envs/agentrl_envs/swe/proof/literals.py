"""Other literals of the same type: the inputs that a proof asks for."""

from __future__ import annotations

import ast
import random

_MOST_TEXT = 2000
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def is_literal(node: ast.expr) -> bool:
    """True for what stands for a value without running anything."""
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False
    return True


def can_change(node: ast.AST) -> bool:
    """True for a constant that `change` has another value for."""
    return (
        isinstance(node, ast.Constant)
        and isinstance(node.value, bool | int | float | str | bytes)
        and not (isinstance(node.value, str | bytes) and len(node.value) > _MOST_TEXT)
    )


def change(value: object, draw: random.Random) -> object:
    """A value near `value` and of its type, drawn at random; never equal to it."""
    for _ in range(20):
        new = _near(value, draw)
        if new != value:
            return new
    return not value if isinstance(value, bool) else value


def _near(value: object, draw: random.Random) -> object:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        # No larger than need be: the number may be one of repetitions.
        more = [value * 2, -value] if abs(value) < 10**6 else []
        return draw.choice([value + 1, value - 1, value + 2, value + draw.randrange(3, 12), *more])
    if isinstance(value, float):
        return draw.choice([value * 1.5, value + 1.0, value - 0.5, -value])
    if isinstance(value, bytes):
        return _near(value.decode("latin-1"), draw).encode("latin-1", "replace")  # type: ignore[attr-defined]
    if isinstance(value, str):
        return _near_text(value, draw)
    return value


def _near_text(text: str, draw: random.Random) -> str:
    if not text:
        return draw.choice(_LETTERS)
    at = draw.randrange(len(text))
    letter, before, after = text[at], text[:at], text[at + 1 :]
    if letter.isdigit():
        return before + draw.choice("0123456789") + after
    return draw.choice(
        [
            before + draw.choice(_LETTERS) + after,
            before + letter.swapcase() + after,
            before + letter + letter + after,
            before + after,
            before + draw.choice(text) + letter + after,
        ]
    )
