"""JSON objects in what a model wrote."""

from __future__ import annotations

import time

import pytest

from agentrl.served.objects import LONGEST_TEXT, json_objects


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", []), ("{}", [{}]), ('x { "a": 1 } y {"b": {"a": 2}}', [{"a": 1}, {"b": {"a": 2}}]),
        ("{" * 5000 + '{"a": 1}', [{"a": 1}]), ('{"a": 1, "a": 2}', []), ('{"a": NaN}', []),
        ('{"a": "{\\"b\\": 1}"}', [{"a": '{"b": 1}'}]), ('{"a": ', []), ("{a: 1}", []),
    ],
)  # fmt: skip
def test_outermost_objects_in_order(text: str, found: list[object]) -> None:
    assert list(json_objects(text)) == found


@pytest.mark.parametrize(
    "piece", ['{"a":', '{"a":[', '{"', '{"a":1,', '{ "x{', "{\n", '{"a":{}', "[{"]
)
def test_no_text_takes_long(piece: str) -> None:
    began = time.process_time()  # of this process alone: others may have the processor
    list(json_objects(piece * (2 * LONGEST_TEXT // len(piece))))
    assert time.process_time() - began < 2
