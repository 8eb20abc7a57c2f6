"""A calculator: one expression in, one number out, and nothing an expression can break.

Every operation is bounded in size before it is computed, and the whole runs in a process of its
own, bounded in processor time and memory: what a model writes never holds up the event loop.
"""

from __future__ import annotations

import ast
import asyncio
import math
import operator
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from agentrl.errors import EnvError, ToolError
from agentrl.machine.processes.shared_host import HostFailed, HostLimitReached, SharedHost

MAX_CHARS = 300
MAX_BITS = 4096
"""Whole numbers beyond this many bits are refused before they are computed."""
MAX_DIGITS = 400
"""Digits that `round` may keep or drop; a float has 324 behind its point."""
CPU_S = 2
"""Processor seconds of one call; it takes microseconds."""
MEMORY_BYTES = 1 << 29
"""Address space of the process that computes."""

Number = int | float


def _rounded(value: Number, digits: Number = 0) -> Number:
    """Python's `round`, which computes 10 to the power of `-digits` whatever that takes."""
    if not isinstance(digits, int) or abs(digits) > MAX_DIGITS:
        raise ToolError(f"round takes a whole number of digits, at most {MAX_DIGITS}.")
    return round(value, digits) if digits else round(value)


_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": abs,
    "ceil": math.ceil,
    "floor": math.floor,
    "max": max,
    "min": min,
    "round": _rounded,
    "sqrt": math.sqrt,
}
"""None may compute a number that is larger than all of its arguments."""
_CONSTANTS = {"pi": math.pi, "e": math.e}
_GLUED = re.compile(r"\d(?!e[+-]?\d)[A-Za-z_]|\d\s*\(|\)\s*[\dA-Za-z_(]")


async def calculator(expression: str) -> str:
    """Compute an arithmetic expression.

    Args:
        expression: numbers, + - * / // % ** and parentheses, such as (3 + 4) * 5; also sqrt,
            abs, round, min, max, floor and ceil
    """
    _check_length(expression)
    try:
        answer = await asyncio.get_running_loop().run_in_executor(
            _thread, _process.ask, "compute", {"expression": expression}
        )
    except HostLimitReached as error:
        raise ToolError(f"The expression {error}.") from None
    except HostFailed as error:
        raise EnvError(f"calculator: {error}") from error
    if "refused" in answer:
        raise ToolError(answer["refused"])
    return answer["text"]


class ArithmeticHost:
    """Computes in the process of `calculator`."""

    OPERATIONS = ("compute",)

    def compute(self, expression: str) -> dict[str, str]:
        """The text of a value, or why there is none."""
        try:
            return {"text": computed(expression)}
        except ToolError as error:
            return {"refused": str(error).encode("utf-8", "replace").decode()}


_thread = ThreadPoolExecutor(1, thread_name_prefix="agentrl-calculator")
"""Questions wait here for the process, and not in the threads that all share."""
_process = SharedHost(
    "agentrl_tools.calculator:ArithmeticHost",
    what="the calculator",
    cpu_s=CPU_S,
    memory_bytes=MEMORY_BYTES,
    wall_s=20.0,
)


def computed(expression: str) -> str:
    """The value of an expression as text; see `evaluate`."""
    return _text(evaluate(expression))


def evaluate(expression: str) -> Number:
    """The value of an expression.

    Raises:
        ToolError: it is not one, divides by zero, or would grow too large.

    Example:
        >>> evaluate("(3 + 4) * 5")
        35
    """
    _check_length(expression)
    source = expression.strip().replace("^", "**")
    # Python would warn about `2x` and offer to call `2 (3)`; both are a forgotten operator.
    if glued := _GLUED.search(source):
        raise ToolError(f"Write an operator between the parts of {glued[0]!r}, such as *.")
    try:
        tree = ast.parse(source, mode="eval")
        return _value(tree.body)
    except ZeroDivisionError:
        raise ToolError("Division by zero.") from None
    except (SyntaxError, ValueError, TypeError, OverflowError, RecursionError, MemoryError) as e:
        reason = e.msg if isinstance(e, SyntaxError) else str(e)
        raise ToolError(f"Cannot compute {_shown(expression)}: {reason}.") from None


def _check_length(expression: str) -> None:
    if len(expression) > MAX_CHARS:
        raise ToolError(f"The expression has {len(expression)} characters, at most {MAX_CHARS}.")


def _value(node: ast.expr) -> Number:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return number
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _value(operand)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            a, b = _value(left), _value(right)
            _check_growth(op, a, b)
            return _real(_BINARY[type(op)](a, b))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _FUNCTIONS:
            return _real(_FUNCTIONS[name](*map(_value, arguments)))
        case ast.Name(id=name) if name in _CONSTANTS:
            return _CONSTANTS[name]
    raise ToolError(f"{_shown(ast.unparse(node))} is not arithmetic.")


def _check_growth(op: ast.operator, a: Number, b: Number) -> None:
    """Refuse a whole number that would take long to compute, before computing it."""
    if not isinstance(a, int) or not isinstance(b, int):
        return
    bits = 0
    if isinstance(op, ast.Pow):
        bits = a.bit_length() * max(0, b)
    elif isinstance(op, ast.Mult):
        bits = a.bit_length() + b.bit_length()
    if bits > MAX_BITS:
        raise ToolError("The result is too large.")


def _real(value: Number | complex) -> Number:
    if isinstance(value, complex) or not math.isfinite(value):
        raise ToolError("The result is not a real number.")
    return value


def _text(value: Number) -> str:
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else f"{value:.12g}"
    return str(value)


def _shown(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")
