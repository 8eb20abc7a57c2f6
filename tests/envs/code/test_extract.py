from __future__ import annotations

import time

import pytest
from agentrl_envs.code.extract import MAX_CODE_CHARS, extract_code

from agentrl.types import ToolCall


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("```python\ndef f(x):\n    return 1\n```", "def f(x):\n    return 1\n"),
        ("Here:\n```\ndef f(x): return 1\n```\nbye", "def f(x): return 1\n"),
        ("```py\ndef f(x): return 1", "def f(x): return 1"),
        ("```python\ndef f(): 1\n```\n```python\ndef f(): 2\n```", "def f(): 2\n"),
        ("```python\ndef f(): 1\n```\nUse it:\n```python\nprint(f())\n```", "def f(): 1\n"),
        ("```python\nx = 1\n```\n```python\ny = 2\n```", "y = 2\n"),
        ("def f(x):\n    return 1", "def f(x):\n    return 1"),
        ("def g(x):\n    return 1", None),
        ("def f(x) is a function", None),
        ("I cannot", None),
        ("", None),
        ("```", None),
        ("def f(): '\ud800'", "def f(): '\ud800'"),
        # Cut off in the middle of a second thought: the first answer stands.
        ("```python\ndef f(): 1\n```\nOr:\n```python\ndef f(:", "def f(): 1\n"),
    ],
)
def test_the_block_that_defines_the_function_wins(text, expected):
    if "\ud800" in text:
        expected = None  # not valid Python, and not fenced
    assert extract_code(text, (), "f") == expected


def test_a_tool_call_carries_code_too():
    call = ToolCall(id="0", name="python", arguments={"code": "def f(): 3"}, raw="")
    assert extract_code("I call a tool", (call,), "f") == "def f(): 3"
    broken = ToolCall(id="0", name="python", arguments={"code": 3}, raw="")
    assert extract_code("I call a tool", (broken,), "f") is None


def test_a_megabyte_is_refused_quickly():
    for text in ("```" * 400_000, "a" * 2**20, "```python\n" + "x\n" * 500_000):
        started = time.thread_time()
        assert len(text) > MAX_CODE_CHARS
        assert extract_code(text, (), "f") is None
        assert time.thread_time() - started < 0.5


def test_what_a_model_wrote_prints_no_warning(recwarn):
    text = "def f(x):\n    return x is 2 or 1if x else '\\d'"
    assert extract_code(text, (), "f") == text
    assert not list(recwarn)
