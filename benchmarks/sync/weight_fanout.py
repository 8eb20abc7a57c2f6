"""A weight update to N servers over equal links: a relay and gloo's broadcast, against one copy.

    .venv/bin/python benchmarks/sync/weight_fanout.py          # Linux, root or user namespaces
    .venv/bin/python benchmarks/sync/weight_fanout.py --quick  # a smoke test: 1 and 4 servers

Every host is a process in a network namespace of its own, with one link to a switch (a veth pair to
a bridge); the kernel limits each direction of each link to the same rate (`tc`, token bucket). The
links are slow, so that the machine is not the limit; what counts is the ratio.

    one copy    the same bytes through one plain TCP connection, from the trainer to one server
    relay       agentrl's `collective` without GPUs: from server to server
    gloo        one broadcast of a process group per bucket, by the same two-buffer scheme

A time is that from the start of the send until the last server has checked the last tensor. The
weights travel in eight buckets, as 512 MB do in buckets of 64 MiB. Repeats are interleaved; printed
are medians with their range. The issue asks for at most 2 copies. gloo runs up to 16 servers.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

sys.path.append(str(Path(__file__).parents[1]))

from harness import options as command_options
from harness import spread

from agentrl.engine import WeightTicket
from agentrl.sync.collective.sender import GroupSender
from agentrl.sync.network_receiver import NetworkReceiver
from agentrl.sync.relay.sender import RelaySender

BUCKETS = 8
TENSORS = 32
CLONE_NEWNET = 0x40000000
INSIDE = "AGENTRL_FANOUT_NAMESPACE"
WAYS: dict[str, Callable[..., Any]] = {"relay": RelaySender, "gloo": GroupSender}
PORT = 9999
GLOO_MOST = 16
"""Servers up to which gloo runs: it connects all with all, and the neighbours of 65 hosts are more
than Linux remembers for all namespaces together."""


def run(*words: object) -> None:
    subprocess.run([str(word) for word in words], check=True)


def limit(device: str, rate: float) -> None:
    """Let a device send so many bytes a second."""
    bits = f"{int(rate * 8)}bit"
    run("tc", "qdisc", "add", "dev", device, "root", "tbf", "rate", bits, "burst", "32kb",
        "latency", "100ms")  # fmt: skip


def address(host: int) -> str:
    return f"10.77.{host // 250}.{host % 250 + 1}"


class Host:
    """A process with a network of its own, behind one link."""

    def __init__(self, number: int, rate: float) -> None:
        context = multiprocessing.get_context("fork")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, number, rate), daemon=True)
        self.process.start()
        pid = self.pipe.recv()
        device = f"v{number}"
        run("ip", "link", "add", device, "type", "veth", "peer", "name", "eth0", "netns", pid)
        run("ip", "link", "set", device, "master", "br0", "up")
        limit(device, rate)
        self.ask("link")

    def tell(self, order: str, *values: Any) -> None:
        self.pipe.send((order, values))

    def answer(self) -> Any:
        result = self.pipe.recv()
        if isinstance(result, Exception):
            raise result
        return result

    def ask(self, order: str, *values: Any) -> Any:
        self.tell(order, *values)
        return self.answer()


def serve(pipe: Connection, number: int, rate: float) -> None:
    """Obey orders in a namespace of its own."""
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "unshare")
    pipe.send(os.getpid())
    orders = Orders(number, rate)
    while True:
        order, values = pipe.recv()
        try:
            pipe.send(getattr(orders, order)(*values))
        except Exception as error:  # shown by the process that asked
            pipe.send(RuntimeError(f"{order} on host {number}: {error!r}"))


class Orders:
    """What a host does: it is the trainer, or one of the servers."""

    def __init__(self, number: int, rate: float) -> None:
        self._number, self._rate = number, rate
        self._senders: dict[str, Any] = {}
        self._receivers: dict[str, NetworkReceiver] = {}

    def link(self) -> None:
        run("ip", "link", "set", "lo", "up")
        run("ip", "addr", "add", f"{address(self._number)}/16", "dev", "eth0")
        run("ip", "link", "set", "eth0", "up")
        limit("eth0", self._rate)

    def connect(self, way: str, servers: int, size: int) -> Any:
        if way not in self._senders:
            self._senders[way] = WAYS[way](
                bucket_bytes=size // BUCKETS, address=address(0), timeout_s=300
            )
        return self._senders[way].connect(servers)

    def announce(self, way: str, version: int) -> WeightTicket:
        return self._senders[way].announce(version)

    def send(self, way: str, version: int, size: int) -> float:
        weights = [(f"w{i}", torch.full((size // TENSORS // 4,), float(i))) for i in range(TENSORS)]
        began = time.monotonic()
        self._senders[way].send(weights, version)
        return began

    def meet(self, way: str, info: Any) -> None:
        receiver = self._receivers.setdefault(way, NetworkReceiver())
        receiver.connect(info)

    def receive(self, way: str, ticket: WeightTicket) -> float:
        count = sum(1 for _ in self._receivers[way].receive(ticket))
        assert count == TENSORS
        return time.monotonic()

    def take_copy(self, size: int) -> float:
        with socket.create_server((address(self._number), PORT)) as server:
            connection, _ = server.accept()
            with connection:
                buffer = bytearray(1 << 20)
                while size > 0:
                    got = connection.recv_into(buffer)
                    assert got
                    size -= got
        return time.monotonic()

    def give_copy(self, size: int, to: int) -> float:
        deadline = time.monotonic() + 20
        while True:
            try:
                connection = socket.create_connection((address(to), PORT), timeout=300)
                break
            except ConnectionRefusedError:
                assert time.monotonic() < deadline
                time.sleep(0.01)
        with connection:
            began = time.monotonic()
            connection.sendall(bytes(size))
        return began

    def close(self) -> None:
        for part in (*self._senders.values(), *self._receivers.values()):
            part.close()
        self._senders.clear()
        self._receivers.clear()


def one_copy(hosts: Sequence[Host], size: int) -> float:
    hosts[1].tell("take_copy", size)
    began = hosts[0].ask("give_copy", size, 1)
    return hosts[1].answer() - began


def one_update(hosts: Sequence[Host], way: str, version: int, size: int) -> float:
    servers = hosts[1:]
    ticket = hosts[0].ask("announce", way, version)
    for server in servers:
        server.tell("receive", way, ticket)
    began = hosts[0].ask("send", way, version, size)
    return max(server.answer() for server in servers) - began


def measure(hosts: Sequence[Host], size: int, repeats: int, ways: Sequence[str]) -> None:
    """Print one line a way for the trainer, host 0, and all other hosts as servers."""
    for way in ways:
        infos = hosts[0].ask("connect", way, len(hosts) - 1, size)
        for server, info in zip(hosts[1:], infos, strict=True):
            server.tell("meet", way, info)
        for server in hosts[1:]:
            server.answer()
        one_update(hosts, way, 0, size)  # the group meets, the buffers are touched
    copies: list[float] = []
    times: dict[str, list[float]] = {way: [] for way in ways}
    for repeat in range(1, repeats + 1):
        copies.append(one_copy(hosts, size))
        for way in ways:
            times[way].append(one_update(hosts, way, repeat, size))
    copy = statistics.median(copies)
    print(f"  {len(hosts) - 1:3d} servers  one copy {copy:6.2f} s", flush=True)
    for way, seconds in times.items():
        ratios = spread([value / copy for value in seconds])
        print(f"{way:>22s} {statistics.median(seconds):6.2f} s = {ratios} copies", flush=True)
    for host in hosts:
        host.ask("close")


def main() -> None:
    options = command_options(
        __doc__, quick=False, servers=[1, 4, 16, 64], rate=4.0, size=8, repeats=3, ways=[*WAYS]
    )
    if INSIDE not in os.environ:
        os.environ[INSIDE] = "1"
        user = [] if os.geteuid() == 0 else ["--map-root-user"]
        os.execvp("unshare", ["unshare", "--net", *user, sys.executable, *sys.argv])
    if options.quick:
        options.servers, options.repeats, options.size = [1, 4], 1, 4
    torch.set_num_threads(1)
    run("ip", "link", "add", "br0", "type", "bridge")
    run("ip", "link", "set", "br0", "up")
    size, rate = options.size << 20, options.rate * 1e6
    print(
        f"{options.size} MiB in {BUCKETS} buckets, links of {options.rate:g} MB/s each way "
        f"(namespaces, tc tbf), {os.cpu_count()} cores, medians of {options.repeats} [min-max]",
        flush=True,
    )
    hosts: list[Host] = []
    for servers in sorted(options.servers):
        while len(hosts) < servers + 1:
            hosts.append(Host(len(hosts), rate))
        ways = [way for way in options.ways if way != "gloo" or servers <= GLOO_MOST]
        measure(hosts[: servers + 1], size, options.repeats, ways)
    for host in hosts:
        host.process.terminate()
        host.process.join(10)


if __name__ == "__main__":
    main()
