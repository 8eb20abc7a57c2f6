from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping

import pytest

from agentrl.metrics import MetricsLog
from agentrl.metrics.guard import SinkGuard


class Slow:
    """A sink that waits until it is let go."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.steps: list[int] = []
        self.closed = 0

    def write(self, step: int, wall_time_s: float, values: Mapping[str, float]) -> None:
        self.go.wait(120)
        if "bad" in values:
            raise ConnectionError("no such host")
        self.steps.append(step)

    def truncate_after(self, step: int) -> None:
        self.steps = [kept for kept in self.steps if kept <= step]

    def close(self) -> None:
        self.closed += 1


def test_a_slow_sink_does_not_hold_up_the_run_and_gets_everything_in_order() -> None:
    sink = Slow()
    log = MetricsLog([], slow=[sink])
    began = time.perf_counter()
    for step in range(1, 6):
        log.log(step, {"reward": 0.0})
    log.truncate_after(3)
    log.log(4, {"reward": 0.0})
    assert time.perf_counter() - began < 60
    sink.go.set()
    log.close()
    log.close()
    assert sink.steps == [1, 2, 3, 4]
    assert sink.closed == 1
    assert log.failures == {}


def test_what_a_slow_sink_fails_at_is_said_once_and_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sink = Slow()
    sink.go.set()
    log = MetricsLog([], slow=[sink])
    for step in range(1, 4):
        log.log(step, {"bad": 1.0})
    log.log(4, {"good": 1.0})
    log.close()
    assert log.failures == {"Slow": 3}
    assert sink.steps == [4]
    assert len(caplog.records) == 1
    assert "Slow failed to write: ConnectionError: no such host" in caplog.text


def test_a_sink_that_hangs_keeps_neither_the_run_nor_its_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sink = Slow()
    guard = SinkGuard(sink, slow=True, limit_s=0.2)
    with caplog.at_level(logging.WARNING):
        for step in range(400):
            guard.call("write", step, 0.0, {})
        began = time.perf_counter()
        guard.close()
    assert time.perf_counter() - began < 60
    assert guard.failures > 400 - 256 - 2
    assert "still works on what it got" in caplog.text
    sink.go.set()


def test_values_that_change_after_they_were_logged_are_written_as_they_were() -> None:
    class Keeps(Slow):
        def write(self, step: int, wall_time_s: float, values: Mapping[str, float]) -> None:
            self.go.wait(120)
            self.kept = dict(values)

    sink = Keeps()
    log = MetricsLog([], slow=[sink])
    values = {"reward": 1.0}
    log.log(1, values)
    values["reward"] = 2.0
    sink.go.set()
    log.close()
    assert sink.kept == {"reward": 1.0}
