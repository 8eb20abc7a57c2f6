"""The thread that stages weights: what it holds, and what a failure in it leaves."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from agentrl.engine import WeightTicket
from agentrl.errors import SyncError
from agentrl.sync.vllm.staging import SpareModel, Staging, StagingWorker


def ticket(version: int) -> WeightTicket:
    return WeightTicket(backend="shm", version=version, info={"size_bytes": 4}, checksum="aa")


def test_what_is_staged_is_held_once_and_for_its_ticket_only() -> None:
    staging, loaded = Staging(), []
    assert not staging.holds(ticket(1))
    staging.begin(ticket(1), loaded.append)
    assert staging.holds(ticket(1))
    assert not staging.holds(ticket(1)), "a swap gives the old weights to the spare model"
    staging.begin(ticket(2), loaded.append)
    assert not staging.holds(ticket(3))
    assert [one.version for one in loaded] == [1, 2]


def test_the_update_waits_for_the_thread() -> None:
    """Fails if weights count as not staged, or a second thread begins, while one is at work."""
    staging, go, threads = Staging(), threading.Event(), []

    def load(wanted: WeightTicket) -> None:
        go.wait(60)
        threads.append(threading.current_thread())

    staging.begin(ticket(1), load)
    assert staging.running
    threading.Timer(0.05, go.set).start()
    staging.begin(ticket(2), load)
    assert staging.holds(ticket(2))
    assert len(threads) == 2
    assert not staging.running


def test_a_failure_leaves_nothing_staged() -> None:
    staging = Staging()

    def load(wanted: WeightTicket) -> None:
        raise SyncError("arrived damaged")

    staging.begin(ticket(1), load)
    assert not staging.holds(ticket(1))


def test_a_worker_with_an_engine_of_vllm_stages_nothing() -> None:
    worker = StagingWorker()
    worker.weight_transfer_engine = None
    assert worker.stage_weights({"backend": "nccl", "version": 1}) == {"done": True}


def test_a_second_copy_is_made_once_when_it_is_asked_for() -> None:
    calls: list[int] = []
    twin: Any = object()

    def make() -> Any:
        calls.append(1)
        return twin

    spare = SpareModel(make)
    assert calls == []
    assert spare.get() is spare.get() is twin
    assert calls == [1]


def test_a_copy_that_cannot_be_made_costs_no_sync(caplog: pytest.LogCaptureFixture) -> None:
    """Fails if what only saves time fails a run, says nothing, or is tried at every sync."""
    calls: list[int] = []

    def make() -> None:
        calls.append(1)
        raise RuntimeError("a layer that none knows")

    spare = SpareModel(make)
    assert spare.get() is None
    assert spare.get() is None
    assert calls == [1]
    assert "a layer that none knows" in caplog.text
    nothing = SpareModel(lambda: calls.append(2))
    assert nothing.get() is nothing.get() is None
    assert calls == [1, 2]
