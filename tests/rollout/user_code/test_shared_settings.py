"""Variables, locale and zone that user code changes for the whole process, named once each."""

from __future__ import annotations

import contextlib
import locale
import os
import time
from collections.abc import Callable
from typing import Any

import pytest

from agentrl.plugins.own_threads import own_thread
from tests.rollout.rollout_fakes import Bench, Talk

HERE = __file__


def change() -> None:
    os.environ["ODD_ZONE"] = str(int(os.environ.get("ODD_ZONE", "0")) + 1)
    with contextlib.suppress(KeyError):  # another thread may take it out meanwhile
        del os.environ["ODD_OTHER"]
    os.environ["TZ"] = "Asia/Tokyo"
    time.tzset()
    locale.setlocale(locale.LC_NUMERIC, "C.UTF-8")


class Here(Talk):
    async def step(self, action: Any) -> Any:
        change()
        return await super().step(action)


class InAThread(Talk):
    async def step(self, action: Any) -> Any:
        await own_thread(change)
        return await super().step(action)


class InTheConstructor(Talk):
    def __init__(self) -> None:
        super().__init__()
        change()


@pytest.mark.parametrize("cls", [Here, InAThread, InTheConstructor])
async def test_who_changes_what_all_share_is_named_once(
    bench: Callable[..., Bench],
    cls: type,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Fails if another rollout may be paid otherwise for a variable without a word."""
    monkeypatch.setattr("agentrl.plugins.shared_settings._named", set())
    monkeypatch.setenv("ODD_OTHER", "1")
    monkeypatch.setenv("ODD_ZONE", "0")
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    before = locale.setlocale(locale.LC_NUMERIC, "C")
    try:
        group = await bench(["a"], cls).group(3)
    finally:
        monkeypatch.undo()
        time.tzset()
        locale.setlocale(locale.LC_NUMERIC, before)
    assert {str(row.termination) for row in group.trajectories} == {"env_done"}
    said = [row.getMessage() for row in caplog.records if "whole process" in row.getMessage()]
    assert len(said) == len(set(said)) == 5, said
    for what in ("ODD_ZONE", "ODD_OTHER", "'TZ'", "the time zone", "the locale to 'C.UTF-8'"):
        assert any(what in line for line in said), what
    assert all(line.startswith(f"change at {HERE}:") for line in said)
