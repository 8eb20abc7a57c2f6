from __future__ import annotations

import asyncio
import time

import pytest
from agentrl_tools.calculator import _FUNCTIONS, MAX_BITS, calculator, computed, evaluate

from agentrl.errors import ToolError
from agentrl.machine.processes.shared_host import HostFailed, HostLimitReached, SharedHost
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
    assert computed(expression) == result


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
        ("round(7, -10000000)", "at most 400"),
        ("round(7, 10**300)", "at most 400"),
        ("round(-7.5, -(10**9))", "at most 400"),
        ("round(7, 1.0)", "whole number"),
        ("round(1, 2, 3)", "Cannot compute"),
        ("round(7, -4" + "0" * 200 + ")", "at most 400"),
    ],
)
def test_anything_else_is_an_error_for_the_model_and_quick(expression, why):
    # Fails if the expression is evaluated before its size is bounded: 9 ** 9 ** 9 takes minutes.
    started = time.process_time()
    with pytest.raises(ToolError, match=why) as caught:
        computed(expression)
    str(caught.value).encode()
    assert time.process_time() - started < 0.5


def test_whole_numbers_are_exact_up_to_the_bound():
    assert computed("2 ** 1000 + 1") == str(2**1000 + 1)
    with pytest.raises(ToolError, match="too large"):
        computed(f"2 ** {MAX_BITS}")


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


NUMBERS = ("7", "-7", "0", "0.5", "1e300", "10**300", "-(10**300)", "10**9", "-10000000", "2**1000")


@pytest.mark.parametrize("name", sorted(_FUNCTIONS))
def test_no_function_takes_long_whatever_it_is_given(name):
    """Fails if a function computes with its argument as a size, as `round(7, -10000000)` does."""
    for first in NUMBERS:
        for text in (f"{name}({first})", *(f"{name}({first}, {other})" for other in NUMBERS)):
            started = time.thread_time()
            try:
                value = evaluate(text)
            except ToolError:
                value = 0
            assert time.thread_time() - started < 0.2, text
            assert not isinstance(value, int) or value.bit_length() < 2 * MAX_BITS, text


async def test_the_event_loop_goes_on_while_it_computes():
    """Fails if it runs on the event loop: the ticks would come after it."""
    await calculator("1 + 1")
    ticks = 0

    async def tick():
        nonlocal ticks
        while True:
            await asyncio.sleep(0)
            ticks += 1

    beside = asyncio.create_task(tick())
    assert await calculator("7 * 6") == "42"
    with pytest.raises(ToolError, match="at most 400"):
        await calculator("round(7, -10000000)")
    beside.cancel()
    assert ticks > 2


async def test_what_takes_too_long_all_the_same_is_stopped_and_said():
    """The next operation somebody adds without a bound costs its call and nothing else."""
    host = SharedHost(
        "tests.machine.processes.children:PowerHost",
        what="it",
        cpu_s=1,
        memory_bytes=1 << 29,
        wall_s=60,
    )
    try:
        with pytest.raises(HostLimitReached, match="took too long"):
            await asyncio.to_thread(host.ask, "power", {"base": 7, "exponent": 10**8})
        assert await asyncio.to_thread(host.ask, "power", {"base": 7, "exponent": 2}) == 49
        with pytest.raises(HostFailed, match="it failed: ValueError"):
            host.ask("other", {})
    finally:
        host.close()
