"""A relay whose members die, hang, stop or are strangers, in every phase of a sync."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from agentrl.engine import WeightTicket
from agentrl.errors import SyncError
from agentrl.sync.collective.sender import GroupSender
from agentrl.sync.network_receiver import NetworkReceiver
from agentrl.sync.relay.links import reach
from agentrl.sync.relay.sender import RelaySender
from agentrl.sync.transfer import NotAllCame, SendFailed
from tests.sync.receiving_processes import Receivers
from tests.sync.sync_weights import assert_same, weights
from tests.warm_processes import Program

pytestmark = pytest.mark.slow

SENDER = """
    import json, os, signal, sys, time, torch
    from agentrl.sync.relay.sender import RelaySender
    sender = RelaySender(bucket_bytes=1 << 20, timeout_s=2)
    print(json.dumps([dict(info) for info in sender.connect(1)]), flush=True)
    def stream(how):
        for index in range(64):
            if index == 8 and how != "well":
                os.kill(os.getpid(), signal.SIGKILL if how == "kill" else signal.SIGSTOP)
            yield f"w{index}", torch.full((1 << 18,), float(index))
    for line in sys.stdin:
        version, how = json.loads(line)
        ticket = sender.announce(version)
        print(json.dumps(dict(ticket.info)), flush=True)
        if how == "away":
            continue
        sender.send(stream(how), version)
        print("sent", flush=True)
"""


def large() -> list[tuple[str, torch.Tensor]]:
    """More than the buffers of all connections hold, so that a member that stops is noticed."""
    return [(f"w{index}", torch.full((1 << 18,), float(index))) for index in range(96)]


@pytest.fixture
def receivers() -> Iterator[Receivers]:
    made = Receivers(3)
    yield made
    made.close()


@contextmanager
def relay(receivers: Receivers, **options: Any) -> Iterator[RelaySender]:
    """A sender that has met all three; no thread and no socket of it is left behind."""
    sender = RelaySender(bucket_bytes=1 << 20, **options)
    receivers.connect(sender, 0, 1, 2)
    before = threading.active_count()
    yield sender
    sender.close()
    assert threading.active_count() == before


def orders(receivers: Receivers, sender: RelaySender, *wanted: str) -> None:
    ticket = sender.announce(0)
    for index, order in enumerate(wanted):
        if order != "away":
            receivers.order(index, order, [0, dict(ticket.info), 60])
            assert receivers.hear(index) == "receiving"


@pytest.mark.parametrize("index", [0, 1, 2])
def test_a_receiver_that_dies_is_named_at_once_and_all_notice(
    receivers: Receivers, index: int
) -> None:
    """Fails if a death is only noticed by the time limit, or a healthy member is blamed for it."""
    with relay(receivers, timeout_s=600) as sender:
        wanted = ["receive"] * 3
        wanted[index] = "die"
        orders(receivers, sender, *wanted)
        begun = time.monotonic()
        with pytest.raises(
            SendFailed, match=rf"version 0 was not sent whole.*rank {index + 1} is"
        ) as caught:
            sender.send(large(), 0)
        assert time.monotonic() - begun < 120
        assert caught.value.culprits == [index]
        healthy = [other for other in range(3) if other != index]
        assert {receivers.hear(other).split()[0] for other in healthy} == {"SyncError"}
        receivers.connect(sender, *healthy)
        receivers.receive(sender, 1, *healthy)
        sender.send(weights(0), 1)
        assert {receivers.hear(other) for other in healthy} == {"same"}


@pytest.mark.parametrize(("order", "index"), [("freeze", 1), ("hang", 0), ("hang", 2)])
def test_a_receiver_that_stops_is_named_at_the_limit(
    receivers: Receivers, order: str, index: int
) -> None:
    """Fails if a stopped process or an engine that takes no weights hangs the sync, or is not the
    one that is blamed."""
    with relay(receivers, timeout_s=2) as sender:
        wanted = ["receive"] * 3
        wanted[index] = order
        orders(receivers, sender, *wanted)
        begun = time.monotonic()
        with pytest.raises(
            SendFailed, match=rf"sync.timeout_s: 2\): .*rank {index + 1} "
        ) as caught:
            sender.send(large(), 0)
        assert time.monotonic() - begun > 2
        assert caught.value.culprits == [index]
        said = "does not answer" if order == "freeze" else "has not used a bucket"
        assert said in str(caught.value)
        healthy = [other for other in range(3) if other != index]
        assert {receivers.hear(other).split()[0] for other in healthy} == {"SyncError"}


def test_a_receiver_that_does_not_come_is_named(receivers: Receivers) -> None:
    """Fails if the meeting has no limit, or bytes are sent before all listen."""
    with relay(receivers, timeout_s=1) as sender:
        orders(receivers, sender, "receive", "away", "receive")
        with pytest.raises(NotAllCame, match=r"1 of 3 .* version 0 within 1 s: rank 2") as caught:
            sender.send(large(), 0)
        assert caught.value.culprits == [1]
        assert {receivers.hear(index).split()[0] for index in (0, 2)} == {"SyncError"}


@pytest.mark.parametrize("order", ["away", "freeze", "hang"])
def test_an_abort_ends_a_send_in_any_phase(receivers: Receivers, order: str) -> None:
    """Fails if a stuck send ends only at its limit, or its thread lives on."""
    with relay(receivers, timeout_s=3600) as sender:
        orders(receivers, sender, "receive", "receive", order)
        timer = threading.Timer(1.0, sender.abort)
        timer.start()
        begun = time.monotonic()
        with pytest.raises(SyncError, match="given up"):
            sender.send(large(), 0)
        assert time.monotonic() - begun < 120
        timer.join()
        assert {receivers.hear(index).split()[0] for index in (0, 1)} == {"SyncError"}


def test_weights_that_fail_at_the_trainer_end_the_sync(receivers: Receivers) -> None:
    """Fails if a gather that raises leaves engines waiting, or blames one of them."""

    def broken() -> Iterator[tuple[str, torch.Tensor]]:
        yield from large()[:20]
        raise ZeroDivisionError

    with relay(receivers, timeout_s=3600) as sender:
        orders(receivers, sender, "receive", "receive", "receive")
        with pytest.raises(ZeroDivisionError):
            sender.send(broken(), 0)
        assert {receivers.hear(index).split()[0] for index in range(3)} == {"SyncError"}


class FarSender:
    """A sender in a process of its own, for one receiver here."""

    def __init__(self) -> None:
        self.program = Program(SENDER, ())
        (self.info,) = self._read()
        self.receiver = NetworkReceiver()
        self.receiver.connect(self.info)

    def _read(self) -> Any:
        import json

        return json.loads(self.program.stdout.readline())

    def begin(self, version: int, how: str) -> WeightTicket:
        self.program.stdin.write(f'[{version}, "{how}"]\n')
        self.program.stdin.flush()
        return WeightTicket(backend="collective", version=version, info=self._read())

    def close(self) -> None:
        self.receiver.close()
        self.program.kill()
        self.program.communicate()


@pytest.fixture
def far() -> Iterator[FarSender]:
    made = FarSender()
    yield made
    made.close()


@pytest.mark.parametrize(("how", "said"), [("kill", "is gone"), ("stop", "got no byte")])
def test_a_sender_that_dies_or_stops_in_mid_stream_is_noticed(
    far: FarSender, how: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if an engine waits for ever for a trainer that is gone, or takes half of a model."""
    monkeypatch.setattr("agentrl.sync.relay.receiver.ANSWER_S", 0.5)
    taken = []
    with pytest.raises(SyncError, match=said):
        taken.extend(name for name, _ in far.receiver.receive(far.begin(0, how)))
    assert len(taken) <= 8
    assert threading.active_count() == 1 or not any(
        thread.name.startswith("weight") for thread in threading.enumerate()
    )


def test_a_sender_that_does_not_begin_or_ends_first_is_noticed(
    far: FarSender, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if an engine waits for ever in the meeting."""
    monkeypatch.setattr("agentrl.sync.relay.receiver.ANSWER_S", 0.5)
    with pytest.raises(SyncError, match="did not begin within 3 s"):
        list(far.receiver.receive(far.begin(0, "away")))
    far.receiver.connect(far.info)
    ticket = far.begin(1, "away")
    far.program.kill()
    with pytest.raises(SyncError, match=r"gone|cannot reach"):
        list(far.receiver.receive(ticket))


def test_a_port_takes_no_weights_from_strangers_and_gives_them_none() -> None:
    """Fails if one that is not of the group is let in, or delays those that are."""
    sender, receiver = RelaySender(bucket_bytes=100_000, timeout_s=120), NetworkReceiver()
    (info,) = sender.connect(1)
    address = (info["host"], info["port"])
    receiver.connect(info)
    ticket = sender.announce(0)
    forged = b'{"token":"0","epoch":1,"version":0,"rank":1,"listens":["127.0.0.1",1],"holds":null}'
    old = forged.replace(b'"token":"0"', f'"token":"{info["token"]}"'.encode())
    words = [b"", b"GET / HTTP/1.1\r\n\r\n", b"\x02\x00\x00\x00[]", b"\xff\xff\xff\xff", forged,
             old.replace(b'"version":0', b'"version":7')]  # fmt: skip
    strangers = [socket.create_connection(address) for _ in words]
    for stranger, text in zip(strangers, words, strict=True):
        framed = text if text[:1] != b"{" else len(text).to_bytes(4, "little") + text
        stranger.sendall(framed)
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(sender.send, weights(0), 0)
        assert_same(receiver.receive(ticket), weights(0))
        assert sending.result().checksum
    for stranger in strangers:
        stranger.settimeout(10)
        assert stranger.recv(1) == b""
        stranger.close()
    sender.close()


def test_many_strangers_do_not_keep_a_member_out() -> None:
    """Fails if connections that say nothing use up the room for those of the group."""
    sender, receiver = RelaySender(bucket_bytes=100_000, timeout_s=120), NetworkReceiver()
    (info,) = sender.connect(1)
    receiver.connect(info)
    ticket = sender.announce(0)
    address = (info["host"], info["port"])
    strangers = [socket.create_connection(address) for _ in range(200)]
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(sender.send, weights(0), 0)
        assert_same(receiver.receive(ticket), weights(0))
        sending.result()
    for stranger in strangers:
        stranger.close()
    sender.close()


def test_an_engine_that_lost_its_base_gets_all_weights() -> None:
    """Fails if a patch goes to an engine that does not hold what it is a patch of."""
    sender, receiver = RelaySender(bucket_bytes=100_000, dense_every=9, timeout_s=120), None
    sizes = []
    (info,) = sender.connect(1)
    for version in range(4):
        if version in (0, 2):
            receiver = NetworkReceiver()
            receiver.connect(info)
        assert receiver is not None
        ticket = sender.announce(version)
        with ThreadPoolExecutor(1) as pool:
            sending = pool.submit(sender.send, weights(0), version)
            assert_same(receiver.receive(ticket), weights(0))
            sizes.append(sending.result().info["size_bytes"])
    assert sizes[0] == sizes[2] > 0 == sizes[1] == sizes[3]
    sender.close()


def test_one_that_stops_and_goes_on_within_the_limit_is_no_failure(receivers: Receivers) -> None:
    """Fails if a short pause of a process, about which all are asked, quarantines its engine."""
    pid = receivers.processes[1]._process.pid
    assert pid is not None
    timer = threading.Timer(4.0, os.kill, (pid, signal.SIGCONT))

    def stopped() -> Iterator[tuple[str, torch.Tensor]]:
        """Weights that are asked for once all have met."""
        os.kill(pid, signal.SIGSTOP)
        timer.start()
        yield from weights(0)

    # All are asked after three seconds, and have three more to answer.
    with relay(receivers, timeout_s=3) as sender:
        receivers.receive(sender, 0, 0, 1, 2)
        sender.send(stopped(), 0)
        timer.join()
        assert [receivers.hear(index) for index in range(3)] == ["same"] * 3


def test_a_slow_trainer_is_nobodys_fault(
    receivers: Receivers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if a gather that takes longer than the limit makes engines give up."""
    sender, receiver = RelaySender(bucket_bytes=1000, timeout_s=1), NetworkReceiver()
    monkeypatch.setattr("agentrl.sync.relay.receiver.ANSWER_S", 0.5)
    (info,) = sender.connect(1)
    receiver.connect(info)
    ticket = sender.announce(0)

    def gathered() -> Iterator[tuple[str, torch.Tensor]]:
        for name in "abc":
            yield name, torch.zeros(400)
            time.sleep(2)

    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(sender.send, gathered(), 0)
        assert [name for name, _ in receiver.receive(ticket)] == ["a", "b", "c"]
        sending.result()
    sender.close()


def test_one_that_gives_up_in_the_meeting_is_named_at_once(receivers: Receivers) -> None:
    """Fails if its reason is not read before all others have come."""
    sender = RelaySender(bucket_bytes=1000, timeout_s=600)
    infos = sender.connect(2)
    sender.announce(0)
    info = infos[1]
    link = reach(info["host"], info["port"], who="the sender", timeout_s=5)
    hello = {key: info[key] for key in ("token", "epoch", "rank")}
    link.say(**hello, version=0, listens=["127.0.0.1", 1], holds=None)
    link.say(gave_up="no room")
    begun = time.monotonic()
    with pytest.raises(NotAllCame, match="rank 2 gave up before version 0: no room") as caught:
        sender.send(weights(0), 0)
    assert caught.value.culprits == [1]
    assert time.monotonic() - begun < 120
    link.close()


@pytest.mark.parametrize("kind", [RelaySender, GroupSender])
def test_a_send_that_hangs_keeps_the_next_from_beginning(kind: Any) -> None:
    """Fails if two sends share buffers, or the next one revives one that was aborted."""
    sender, receiver = kind(bucket_bytes=1000, timeout_s=120), NetworkReceiver()
    (info,) = sender.connect(1)
    receiver.connect(info)
    ticket = sender.announce(0)
    gathers, go = threading.Event(), threading.Event()

    def hangs() -> Iterator[tuple[str, torch.Tensor]]:
        yield "a", torch.zeros(400)
        gathers.set()
        go.wait(60)

    with ThreadPoolExecutor(2) as pool:
        receiving = pool.submit(lambda: list(receiver.receive(ticket)))
        sending = pool.submit(sender.send, hangs(), 0)
        assert gathers.wait(60)
        sender.abort()
        for begin in (lambda: sender.announce(1), lambda: sender.connect(1)):
            with pytest.raises(SyncError, match="has not ended"):
                begin()
        go.set()
        sending.exception()
        receiving.exception()
    sender.connect(1)
    sender.announce(1)
    sender.close()
