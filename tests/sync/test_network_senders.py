"""Both senders of `collective`: a process group, and a relay over TCP."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist

from agentrl.errors import SyncError
from agentrl.sync.collective.sender import GroupSender, drain
from agentrl.sync.network_receiver import NetworkReceiver
from agentrl.sync.relay.sender import RelaySender
from tests.sync.receiving_processes import Receivers
from tests.sync.sync_weights import nudged, weights


@pytest.fixture(params=[GroupSender, RelaySender])
def make(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def receivers():
    made = Receivers(2)
    yield made
    made.close()


def test_two_processes_receive_and_the_default_group_is_untouched(
    receivers: Receivers, make: Any
) -> None:
    """Fails if the sender uses or makes the default group of torch.distributed."""
    sender = make(bucket_bytes=100_000, timeout_s=120)
    receivers.connect(sender, 0, 1)
    sent = weights(0)
    for version in range(1, 4):
        receivers.receive(sender, version, 0, 1)
        ticket = sender.send(iter(sent), version)
        assert ticket.info["size_bytes"] > 840_000
        assert [receivers.hear(0), receivers.hear(1)] == ["same", "same"]
        sent = nudged(sent, version - 1)
    assert not dist.is_initialized()
    sender.close()
    sender.close()


def test_the_first_sync_of_a_run_is_version_zero(receivers: Receivers, make: Any) -> None:
    """Fails if our keys are those of gloo's own rendezvous, `0/RANK`: 21 of 25 tries did."""
    for _ in range(5):
        sender = make(bucket_bytes=100_000, timeout_s=120)
        receivers.connect(sender, 0, 1)
        for version in (0, 1):
            receivers.receive(sender, version, 0, 1)
            sender.send(weights(0), version)
            assert [receivers.hear(0), receivers.hear(1)] == ["same", "same"]
        sender.close()


def test_patches_go_until_the_fleet_changes(receivers: Receivers, make: Any) -> None:
    """Fails if a new group does not begin with all weights."""
    sender = make(bucket_bytes=1 << 20, dense_every=9, timeout_s=120)
    receivers.connect(sender, 0)
    sent, sizes = weights(0), []
    for version in range(1, 6):
        members = (0,) if version < 4 else (0, 1)
        if version == 4:
            receivers.connect(sender, *members)
        receivers.receive(sender, version, *members)
        sizes.append(sender.send(sent, version).info["size_bytes"])
        assert {receivers.hear(index) for index in members} == {"same"}
        sent = nudged(sent, version - 1)
    assert sizes[0] == sizes[3] > 100 * max(sizes[1], sizes[2], sizes[4])
    sender.close()


def test_a_dead_receiver_is_an_error_in_time_and_the_others_meet_again(
    receivers: Receivers,
    make: Any,
) -> None:
    """Fails if the sender waits for ever, or its group cannot be replaced."""
    sender = make(bucket_bytes=1000, timeout_s=120)
    receivers.connect(sender, 0, 1)
    ticket = sender.announce(1)
    receivers.order(0, "receive", [1, dict(ticket.info)])
    receivers.order(1, "die", [1, dict(ticket.info)])
    begun = time.monotonic()
    with pytest.raises(SyncError, match=r"weight group|not sent whole"):
        sender.send(weights(0), 1)
    assert receivers.processes[1].wait(120) == -9
    assert receivers.hear(0) == "receiving"
    # All of the weights or none of them.
    assert receivers.hear(0).startswith(("SyncError", "same"))
    assert time.monotonic() - begun < 3 * 20
    receivers.connect(sender, 0)
    receivers.receive(sender, 1, 0)
    sender.send(weights(0), 1)
    assert receivers.hear(0) == "same"
    sender.close()


def test_an_engine_that_stops_listening_ends_the_broadcast(receivers: Receivers, make: Any) -> None:
    sender = make(bucket_bytes=1000, timeout_s=120)
    receivers.connect(sender, 0, 1)
    ticket = sender.announce(1)
    receivers.order(0, "receive", [1, dict(ticket.info)])
    receivers.order(1, "stop", [1, dict(ticket.info)])
    with pytest.raises(SyncError, match=r"weight group|not sent whole"):
        sender.send(weights(0), 1)
    assert receivers.hear(0) == "receiving"
    assert receivers.hear(0).startswith(("SyncError", "same"))


def test_nobody_comes(make: Any) -> None:
    sender = make(bucket_bytes=1000, timeout_s=1)
    with pytest.raises(SyncError, match="connect"):
        sender.send(weights(0), 1)
    sender.connect(1)
    with pytest.raises(
        SyncError, match="1 of 1 engines did not come to receive version 1 within 1 s"
    ):
        sender.send(weights(0), 1)


def test_an_abort_from_another_thread_ends_the_wait(receivers: Receivers, make: Any) -> None:
    sender = make(bucket_bytes=1000, timeout_s=600)
    receivers.connect(sender, 0)
    receivers.receive(sender, 1, 0)
    sender.send(weights(0), 1)
    assert receivers.hear(0) == "same"
    sender.announce(2)
    timer = threading.Timer(0.5, sender.abort)
    timer.start()
    begun = time.monotonic()
    with pytest.raises(SyncError):
        sender.send(weights(0), 2)
    assert time.monotonic() - begun < 120
    timer.join()


def test_a_receiver_outside_the_group_says_so(make: Any) -> None:
    receiver = NetworkReceiver()
    sender = make(bucket_bytes=1000, timeout_s=5)
    (info,) = sender.connect(1)
    with pytest.raises(SyncError, match=r"this engine is\W+in none; prepare it first"):
        list(receiver.receive(sender.announce(1)))
    sender.close()
    with pytest.raises(SyncError, match="cannot reach"):
        receiver.connect({"kind": info["kind"], "host": "127.0.0.1", "port": 1, "timeout_s": 1})


def test_other_trainer_ranks_only_iterate() -> None:
    seen = []
    drain((name, seen.append(name) or torch.zeros(1)) for name in "abc")
    assert seen == ["a", "b", "c"]


def test_tickets_name_the_backend_of_a_subclass(make: Any) -> None:
    """Fails if an engine is prepared for a user's own backend and then asked for another."""
    sender = make(bucket_bytes=1000, timeout_s=5)
    sender.backend = "mine.py:Mine"
    sender.connect(1)
    assert sender.announce(0).backend == "mine.py:Mine"
    sender.close()
