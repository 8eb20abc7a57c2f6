"""Source that others wrote, parsed in our process; warnings are errors in these tests."""

from __future__ import annotations

import ast

import pytest
from agentrl_envs.code.extract import parses
from agentrl_envs.code.parse import parsed
from agentrl_envs.code.runner import examples_of

DOUBTFUL = [r"x = '\d'", "x = 1 if 1else 2", "assert (1, 'x')", "1 is 1"]


@pytest.mark.parametrize("source", DOUBTFUL)
def test_doubtful_source_is_no_affair_of_the_terminal(source: str) -> None:
    # Fails if Python's warnings get out: here as errors, in a run as lines between the metrics.
    assert parses(source)
    assert parsed(r"f('\d')", expression=True) is not None
    assert examples_of(r">>> f('\d')" + "\n'\\d'\n", "f")[0].args == ("\\d",)


def test_what_is_no_python_is_none() -> None:
    for source in ("def f(:", "\0", "'\ud800'", "(" * 5000, "x = 1", "-" * 100_000 + "1"):
        assert parsed(source, expression=True) is None
    assert isinstance(parsed("1 + 1", expression=True), ast.Expression)
