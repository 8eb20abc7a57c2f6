"""Waits between attempts, as pure numbers."""

from __future__ import annotations

from email.utils import formatdate

import pytest
from multidict import CIMultiDict

from agentrl.served.backoff import backoff_s, is_transient, retry_after_s


def test_waits_grow_are_spread_and_have_a_bound() -> None:
    assert [backoff_s(n, 1.0) for n in range(7)] == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 20.0]
    assert backoff_s(10_000, 0.0) == 10.0


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("0", 0.0), ("1.5", 1.5), ("-3", 0.0), ("soon", None), ("", None), ("nan", None),
     ("inf", None), (formatdate(1000.0, usegmt=True), 400.0), (formatdate(5.0), 0.0)],
)  # fmt: skip
def test_retry_after(value: str, seconds: float | None) -> None:
    assert retry_after_s(CIMultiDict({"retry-after": value}), now=600.0) == seconds
    assert retry_after_s({}, now=600.0) is None


def test_what_may_pass() -> None:
    passing = [status for status in range(100, 600) if is_transient(status)]
    assert passing == [408, 409, 425, 429, *range(500, 600)]
