"""The program inside the sandbox: what it costs to start, and its JSON."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from types import SimpleNamespace

import pytest
from agentrl_envs.code import harness
from agentrl_envs.code.runner import HARNESS

PLAIN = [
    None,
    True,
    [],
    {},
    [1, -2.5, 1e300, 10**40, "", 'é\ud800\n"\\\x00', [None, {"a": {"b": [1.0]}}]],
    [math.inf, -math.inf],
]


@pytest.fixture(params=["accelerated", "plain"])
def loads_dumps(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch):
    if request.param == "plain":
        monkeypatch.setitem(sys.modules, "_json", None)
    return harness.json_functions()


@pytest.mark.parametrize("value", PLAIN)
def test_json_is_that_of_the_standard_library(loads_dumps, value: object) -> None:
    loads, dumps = loads_dumps
    assert json.loads(dumps(value)) == value
    assert loads(f" {json.dumps(value)}\n".encode()) == value
    assert math.isnan(loads(dumps(math.nan).encode()))


@pytest.mark.parametrize(
    "data", [b"", b"\n", b"[1", b"1 2", b"{'a': 1}", b"\xff", b"nope", b"[1]]"]
)
def test_what_is_no_json_is_a_value_error(loads_dumps, data: bytes) -> None:
    """Fails if a broken line of the tested code ends the judge."""
    loads, _ = loads_dumps
    with pytest.raises(ValueError):  # noqa: PT011 - each of the readers says it in its own words
        loads(data)


def test_what_is_no_json_is_a_value_error_where_json_is_not_loaded() -> None:
    """Fails on Python 3.10 and 3.11 if the judge dies of their SystemError."""
    tries = """
for data in (b"[1", b"{'a': 1}", b'"\x01"', b"nope", b"1 2", b"[" * 100000):
    try:
        print("read", loads(data))
    except (ValueError, RecursionError):
        print("refused")
"""
    found = in_a_bare_interpreter(tries)
    assert found.split() == ["refused"] * 6


@pytest.mark.parametrize("wrong", [TypeError, AttributeError])
def test_accelerators_that_have_changed_are_not_used(
    wrong: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def make_scanner(context: object) -> None:
        raise wrong("it takes something else now")

    changed = SimpleNamespace(
        make_scanner=make_scanner, make_encoder=None, encode_basestring_ascii=None
    )
    monkeypatch.setitem(sys.modules, "_json", changed)
    assert harness.json_functions() == (json.loads, json.dumps)


def in_a_bare_interpreter(statements: str) -> str:
    """What `statements` print after the harness, in an interpreter as the sandbox starts it."""
    code = f"{HARNESS.partition('if __name__')[0]}\n{statements}"
    command = [sys.executable, "-I", "-S", "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_it_starts_without_the_slow_half_of_the_library() -> None:
    """Fails if an import that costs as much as the interpreter itself comes back."""
    loaded = in_a_bare_interpreter("import sys\nprint(*sys.modules)").split()
    assert "_json" in loaded
    assert not {"re", "signal", "enum", "json", "functools"} & set(loaded)
