from __future__ import annotations

import gc
import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from agentrl.engine import WeightTicket
from agentrl.errors import SyncError
from agentrl.sync.shm.shm import ShmReceiver, ShmSender
from tests.sync.sync_weights import assert_same, weights
from tests.warm_processes import Program

SENDER = """
    import json, sys
    from tests.sync.sync_weights import weights
    from agentrl.sync.shm.shm import ShmSender
    sender = ShmSender()
    info = sender.connect(1)[0]
    ticket = sender.send(weights(int(sys.argv[1])), 1)
    print(json.dumps([info, ticket.version, ticket.info, ticket.checksum]), flush=True)
    sys.stdin.readline()
"""


def mapped_here() -> int:
    return Path("/proc/self/maps").read_text().count("agentrl-weights")


def ticket_from(line: str) -> tuple[dict, WeightTicket]:
    info, version, place, checksum = json.loads(line)
    return info, WeightTicket(backend="shm", version=version, info=place, checksum=checksum)


@pytest.mark.parametrize("as_stream", [False, True], ids=["known size", "stream"])
def test_weights_arrive_bit_for_bit_over_many_versions(as_stream: bool) -> None:
    sender, receiver = ShmSender(), ShmReceiver()
    receiver.connect(sender.connect(2)[1])
    for version in range(1, 6):
        sent = weights(version)
        ticket = sender.send(iter(sent) if as_stream else sent, version)
        json.dumps(dict(ticket.info))
        assert_same(receiver.receive(ticket), sent)
    receiver.close()
    sender.close()
    sender.close()


def test_a_late_joiner_takes_the_newest_and_a_slow_one_keeps_the_one_before() -> None:
    """Fails if there is one segment only."""
    sender, slow = ShmSender(), ShmReceiver()
    first = sender.send(weights(1), 1)
    stream = slow.receive(first)
    begun = [next(stream)]
    second = sender.send(weights(2), 2)
    assert_same([*begun, *stream], weights(1))
    assert_same(ShmReceiver().receive(second), weights(2))
    sender.close()


def test_a_receiver_two_versions_late_is_told() -> None:
    """Fails if the header is not read again when all tensors have been used."""
    sender, slow = ShmSender(), ShmReceiver()
    first = sender.send(weights(1), 1)
    stream = slow.receive(first)
    for _ in range(len(weights())):
        next(stream)
    sender.send(weights(2), 2)
    sender.send(weights(3), 3)
    with pytest.raises(SyncError, match=r"holds version 3.*take the newest"):
        next(stream)
    with pytest.raises(SyncError, match="holds version 3"):
        list(slow.receive(first))
    sender.close()


def test_a_torn_copy_is_found() -> None:
    """Fails if the receiver does not hash what it maps: one bit of one tensor is enough."""
    sender = ShmSender()
    ticket = sender.send(weights(1), 1)
    sender._segments[0].data[4096 + 700 * 300 * 4 + 100] ^= 1
    with pytest.raises(SyncError, match=r"'model\.up' arrived damaged"):
        list(ShmReceiver().receive(ticket))
    good = sender.send(weights(2), 2)
    with pytest.raises(SyncError, match="checksum"):
        list(ShmReceiver().receive(replace(good, checksum="0" * 32)))
    sender.close()


def test_a_reader_cannot_change_what_others_read() -> None:
    sender = ShmSender()
    ticket = sender.send(weights(1), 1)
    dict(ShmReceiver().receive(ticket))["model.embed"].zero_()
    assert_same(ShmReceiver().receive(ticket), weights(1))
    sender.close()


def test_too_little_memory_is_said_before_anything_is_written() -> None:
    """Fails if the sender allocates first, or looks at one of its two segments only."""
    free = 2 << 20
    sender = ShmSender(available=lambda: free)
    sender.send([("a", torch.zeros(100_000))], 1)
    with pytest.raises(SyncError, match=r"need 3\.1 MiB more.* 2\.0 MiB are available.*disk"):
        ShmSender(available=lambda: free).send([("a", torch.zeros(400_000))], 1)
    with pytest.raises(SyncError, match=r"sync\.backend: disk"):
        ShmSender(available=lambda: free).send(iter([("a", torch.zeros(800_000))]), 1)
    sender.close()


def test_a_changed_layout_is_refused_and_the_older_version_stays() -> None:
    sender = ShmSender()
    ticket = sender.send(weights(1), 1)
    with pytest.raises(SyncError, match="changed their layout"):
        sender.send(weights(2)[1:], 2)
    assert_same(ShmReceiver().receive(ticket), weights(1))
    sender.close()


def test_another_process_reads_it_and_kill_9_leaves_nothing() -> None:
    """Fails with a named segment, which nobody unlinks when its owner is killed."""
    gc.collect()  # what earlier tests mapped
    before = mapped_here()
    process = Program(SENDER, ["7"])
    info, ticket = ticket_from(process.stdout.readline())
    receiver = ShmReceiver()
    receiver.connect(info)
    assert_same(receiver.receive(ticket), weights(7))
    assert mapped_here() == before + 1
    process.kill()
    process.wait()
    process.stdout.close()
    process.stdin.close()
    deadline = time.monotonic() + 120
    while mapped_here() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert mapped_here() == before
    assert not list(Path("/dev/shm").glob("*agentrl*"))
    with pytest.raises(SyncError, match=r"has ended.*disk"):
        list(ShmReceiver().receive(ticket))
    with pytest.raises(SyncError, match="has ended"):
        ShmReceiver().connect(info)


def test_a_stranger_or_another_host_is_not_taken_for_the_sender() -> None:
    sender = ShmSender()
    ticket = sender.send(weights(1), 1)
    info = dict(ticket.info)
    with pytest.raises(SyncError, match="no longer the trainer"):
        ShmReceiver().connect({**info, "nonce": "00" * 16})
    with pytest.raises(SyncError, match=r"another host.*collective"):
        ShmReceiver().connect({**info, "host": "elsewhere"})
    sender.close()
    with pytest.raises(SyncError):
        list(ShmReceiver().receive(ticket))
    with pytest.raises(SyncError, match="closed"):
        sender.send(weights(1), 2)
