"""The program inside the sandbox: what it costs to start, and its JSON."""

from __future__ import annotations

import json
import math
import subprocess
import sys

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


def test_it_starts_without_the_slow_half_of_the_library() -> None:
    """Fails if an import that costs as much as the interpreter itself comes back."""
    code = f"{HARNESS.partition('if __name__')[0]}\nimport sys\nprint(*sys.modules)"
    command = [sys.executable, "-I", "-S", "-c", code]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert "_json" in loaded
    assert not {"re", "signal", "enum", "json", "functools"} & set(loaded)
