"""Answers of a served model that no parser takes."""

from __future__ import annotations

import pytest

from agentrl.served.settings import ServedSettings
from agentrl.served.turns import read_served_turn


def test_arguments_that_are_nested_too_deep_are_no_answer() -> None:
    """Fails if such an answer ends what asked, which takes ValueError for a reason to ask again."""
    function = {"name": "f", "arguments": '{"a":' * 20_000}
    message = {"content": "", "tool_calls": [{"id": "1", "function": function}]}
    answer = {"choices": [{"message": message, "finish_reason": "tool_calls"}], "usage": {}}
    settings = ServedSettings(url="http://localhost:1/v1", model="m")
    with pytest.raises(ValueError, match="arguments of a call are nested too deep"):
        read_served_turn(settings, answer)
