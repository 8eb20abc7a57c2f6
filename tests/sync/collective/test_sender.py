from __future__ import annotations

import json
import threading
import time

import pytest
import torch
import torch.distributed as dist

from agentrl.errors import SyncError
from agentrl.sync.collective.receiver import CollectiveReceiver
from agentrl.sync.collective.sender import CollectiveSender, drain
from tests.sync.sync_weights import nudged, weights
from tests.warm_processes import Program

RECEIVER = """
    import json, sys
    from tests.sync.sync_weights import assert_same, nudged, weights
    from agentrl.engine import WeightTicket
    from agentrl.sync.collective.receiver import CollectiveReceiver
    from agentrl.errors import SyncError
    receiver = CollectiveReceiver()
    sent = weights(0)
    for line in sys.stdin:
        order, value = json.loads(line)
        try:
            if order == "connect":
                receiver.connect(value)
                print("connected", flush=True)
                continue
            ticket = WeightTicket(backend="collective", version=value[0], info=value[1])
            sent = weights(0)
            for seed in range(value[0] - 1):
                sent = nudged(sent, seed)
            print("receiving", flush=True)
            if order == "stop":
                next(receiver.receive(ticket))
                continue
            if order == "die":
                next(receiver.receive(ticket))
                import os; os.kill(os.getpid(), 9)
            assert_same(receiver.receive(ticket), sent)
            print("same", flush=True)
        except SyncError as error:
            print("SyncError", error, flush=True)
"""


class Receivers:
    """Processes that receive, ordered about by lines."""

    def __init__(self, count: int) -> None:
        self.processes = [Program(RECEIVER, ()) for _ in range(count)]

    def order(self, index: int, order: str, value) -> None:
        stream = self.processes[index].stdin
        stream.write(json.dumps([order, value]) + "\n")
        stream.flush()

    def hear(self, index: int) -> str:
        stream = self.processes[index].stdout
        # gloo says on the standard output, too, that it has connected
        while (line := stream.readline()).startswith("[Gloo]"):
            pass
        return line.strip()

    def connect(self, sender: CollectiveSender, *indices: int) -> None:
        for index, info in zip(indices, sender.connect(len(indices)), strict=True):
            self.order(index, "connect", info)
            assert self.hear(index) == "connected"

    def receive(self, sender: CollectiveSender, version: int, *indices: int) -> None:
        ticket = sender.announce(version)
        for index in indices:
            self.order(index, "receive", [version, dict(ticket.info)])
            assert self.hear(index) == "receiving"

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()


@pytest.fixture
def receivers():
    made = Receivers(2)
    yield made
    made.close()


def test_two_processes_receive_and_the_default_group_is_untouched(receivers: Receivers) -> None:
    """Fails if the sender uses or makes the default group of torch.distributed."""
    sender = CollectiveSender(bucket_bytes=100_000, timeout_s=120)
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


def test_patches_go_until_the_fleet_changes(receivers: Receivers) -> None:
    """Fails if a new group does not begin with all weights."""
    sender = CollectiveSender(bucket_bytes=1 << 20, dense_every=9, timeout_s=120)
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
) -> None:
    """Fails if the sender waits for ever, or its group cannot be replaced."""
    sender = CollectiveSender(bucket_bytes=1000, timeout_s=20)
    receivers.connect(sender, 0, 1)
    ticket = sender.announce(1)
    receivers.order(0, "receive", [1, dict(ticket.info)])
    receivers.order(1, "die", [1, dict(ticket.info)])
    begun = time.monotonic()
    with pytest.raises(SyncError, match="weight group"):
        sender.send(weights(0), 1)
    assert receivers.processes[1].wait(20) == -9
    assert receivers.hear(0) == "receiving"
    assert receivers.hear(0).startswith("SyncError")
    assert time.monotonic() - begun < 3 * 20
    receivers.connect(sender, 0)
    receivers.receive(sender, 1, 0)
    sender.send(weights(0), 1)
    assert receivers.hear(0) == "same"
    sender.close()


def test_an_engine_that_stops_listening_ends_the_broadcast(receivers: Receivers) -> None:
    sender = CollectiveSender(bucket_bytes=1000, timeout_s=20)
    receivers.connect(sender, 0, 1)
    ticket = sender.announce(1)
    receivers.order(0, "receive", [1, dict(ticket.info)])
    receivers.order(1, "stop", [1, dict(ticket.info)])
    with pytest.raises(SyncError, match="weight group"):
        sender.send(weights(0), 1)
    assert receivers.hear(0) == "receiving"
    assert receivers.hear(0).startswith("SyncError")


def test_nobody_comes() -> None:
    sender = CollectiveSender(bucket_bytes=1000, timeout_s=1)
    with pytest.raises(SyncError, match="connect"):
        sender.send(weights(0), 1)
    sender.connect(1)
    with pytest.raises(
        SyncError, match="1 of 1 engines did not come to receive version 1 within 1 s"
    ):
        sender.send(weights(0), 1)


def test_an_abort_from_another_thread_ends_the_wait(receivers: Receivers) -> None:
    sender = CollectiveSender(bucket_bytes=1000, timeout_s=120)
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
    assert time.monotonic() - begun < 20
    timer.join()


def test_a_receiver_outside_the_group_says_so() -> None:
    receiver = CollectiveReceiver()
    sender = CollectiveSender(bucket_bytes=1000, timeout_s=5)
    sender.connect(1)
    with pytest.raises(SyncError, match="this engine is in none; prepare it first"):
        list(receiver.receive(sender.announce(1)))
    sender.close()
    with pytest.raises(SyncError, match="cannot reach the rendezvous"):
        receiver.connect({"host": "127.0.0.1", "port": 1, "timeout_s": 1})


def test_other_trainer_ranks_only_iterate() -> None:
    seen = []
    drain((name, seen.append(name) or torch.zeros(1)) for name in "abc")
    assert seen == ["a", "b", "c"]
