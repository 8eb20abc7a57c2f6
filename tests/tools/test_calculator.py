from __future__ import annotations

import time

import pytest
from agentrl_tools.calculator import MAX_BITS, calculator

from agentrl.errors import ToolError
from agentrl.tool import FunctionTool


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        ("1 + 2 * 3", "7"),
        ("(1 + 2) * 3", "9"),
        ("10 / 4", "2.5"),
        ("10 / 5", "2"),
        ("-7 // 2", "-4"),
        ("7 % 4", "3"),
        ("2 ** 10", "1024"),
        ("2 ^ 3", "8"),
        ("0.1 + 0.2", "0.3"),
        ("1e3 + 1", "1001"),
        ("sqrt(16) + abs(-2)", "6"),
        ("max(3, 4, 5)", "5"),
        ("round(2.567, 2)", "2.57"),
        (" pi ", "3.14159265359"),
        ("+-+3", "-3"),
    ],
)
def test_arithmetic(expression, result):
    assert calculator(expression) == result


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("1 / 0", "Division by zero"),
        ("5 % 0", "Division by zero"),
        ("2 +", "Cannot compute"),
        ("", "Cannot compute"),
        ("9 ** 9 ** 9", "too large"),
        ("9 ** 9 ** 9 ** 9", "too large"),
        ("10 ** (-1) ** 0.5", "not a real number"),
        ("1e308 * 10", "not a real number"),
        ("__import__('os').getcwd()", "not arithmetic"),
        ("(1).__class__", "not arithmetic"),
        ("[1] * 10 ** 9", "not arithmetic"),
        ("'a' * 3", "not arithmetic"),
        ("True + 1", "not arithmetic"),
        ("x + 1", "not arithmetic"),
        ("lambda: 1", "not arithmetic"),
        ("sqrt(-1)", "Cannot compute"),
        ("sqrt(1, 2)", "Cannot compute"),
        ("max()", "Cannot compute"),
        ("2x + 1", "operator"),
        ("2 (3)", "operator"),
        ("(1)(2)", "operator"),
        ("1" * 400, "characters"),
        ("(" * 290, "Cannot compute"),
        ("\x00", "Cannot compute"),
        ("\ud800", "Cannot compute"),
        ("1 if 1 else 2", "operator|not arithmetic"),
    ],
)
def test_anything_else_is_an_error_for_the_model_and_quick(expression, why):
    # Fails if the expression is evaluated before its size is bounded: 9 ** 9 ** 9 takes minutes.
    started = time.perf_counter()
    with pytest.raises(ToolError, match=why) as caught:
        calculator(expression)
    str(caught.value).encode()
    assert time.perf_counter() - started < 0.5


def test_whole_numbers_are_exact_up_to_the_bound():
    assert calculator("2 ** 1000 + 1") == str(2**1000 + 1)
    with pytest.raises(ToolError, match="too large"):
        calculator(f"2 ** {MAX_BITS}")


async def test_it_is_offered_to_the_model_with_its_description():
    tool = FunctionTool(calculator)
    assert tool.name == "calculator"
    assert (
        "parentheses"
        in tool.schema()["function"]["parameters"]["properties"]["expression"]["description"]
    )
    assert (await tool.call(tool.validate({"expression": "6 * 7"}), None)).text == "42"
    with pytest.raises(ToolError):
        tool.validate({"expr": "1"})
