"""Machines that are not here: `--target gpus=8x80GiB,nodes=4,host=1TiB`, and who goes where."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from agentrl.config.fleet import RuntimeSection
from agentrl.errors import ConfigError, choices
from agentrl.preflight.memory.estimate import GIB, ProcessMemory

EXAMPLE = "--target gpus=8x80GiB,nodes=4,host=1TiB"
_UNITS = {"M": 20, "G": 30, "T": 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([MGT])(i?)B", re.IGNORECASE)
_EXPECTED = {
    "gpus": "COUNTxSIZE of one node, as in gpus=8x80GiB (gpus=0 for none)",
    "nodes": "a number of nodes of at least 1, as in nodes=4",
    "host": "the main memory of one node with its unit, as in host=1TiB",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Machines that are all alike."""

    gpus: int
    """GPUs of a node."""
    card: int
    """Bytes of a GPU."""
    nodes: int = 1
    """Number of nodes."""
    host: int | None = None
    """Bytes of main memory of a node; None where it was not given."""

    def text(self) -> str:
        """As in `4 nodes of 8 GPUs with 80 GiB, 1024 GiB of main memory`."""
        nodes = f"{self.nodes} nodes of " if self.nodes > 1 else ""
        cards = f"{self.gpus} GPUs with {self.card / GIB:.4g} GiB" if self.gpus else "no GPU"
        host = "main memory not given"
        if self.host is not None:
            host = f"{self.host / GIB:.4g} GiB of main memory"
        return f"{nodes}{cards}, {host}"


def parse_target(text: str) -> Target:
    """The machines of a `--target`.

    Raises:
        ConfigError: what is wrong, what it got, what it expected, and an example.
    """
    given: dict[str, str] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = (part.strip() for part in entry.partition("="))
        if key not in _EXPECTED:
            raise _wrong(text, f"{key!r} is no part of a target: {choices(key, _EXPECTED)}")
        if not equals or key in given:
            why = "is there twice" if key in given else "has no value"
            raise _wrong(text, f"{key} {why}, expected {_EXPECTED[key]}")
        given[key] = value
    if not given.keys() & {"gpus", "host"}:
        raise _wrong(text, f"it names no memory, expected gpus or host: {_EXPECTED['gpus']}")
    gpus, card = _gpus(text, given.get("gpus", "0"))
    nodes = given.get("nodes", "1")
    if not nodes.isdecimal() or int(nodes) < 1:
        raise _refused(text, "nodes", nodes)
    host = given.get("host")
    if host is None and not gpus:
        raise _wrong(text, f"without GPUs it needs host, {_EXPECTED['host']}")
    return Target(
        gpus=gpus,
        card=card,
        nodes=int(nodes),
        host=None if host is None else _size(text, "host", host),
    )


def _gpus(text: str, value: str) -> tuple[int, int]:
    if value == "0":
        return 0, 0
    count, times, size = value.lower().partition("x")
    if not times or not count.strip().isdecimal() or int(count) < 1:
        raise _refused(text, "gpus", value)
    return int(count), _size(text, "gpus", size.strip(), whole=value)


def _size(text: str, key: str, value: str, *, whole: str = "") -> int:
    found = _SIZE.fullmatch(value)
    if found is None or float(found[1]) == 0:
        raise _refused(text, key, whole or value)
    power = _UNITS[found[2].upper()]
    return int(float(found[1]) * (2**power if found[3] else 1000 ** (power // 10)))


def _refused(text: str, key: str, value: str) -> ConfigError:
    return _wrong(text, f"{key} is {value!r}, expected {_EXPECTED[key]}")


def _wrong(text: str, what: str) -> ConfigError:
    return ConfigError(f"--target {text!r}: {what}; an example: {EXAMPLE}")


@dataclass(slots=True)
class Device:
    """One GPU and who is on it."""

    free: float = 1.0
    """Share that may still be given."""
    held: list[ProcessMemory] = field(default_factory=list[ProcessMemory])
    """Processes that each hold their parts here."""

    def peak(self, *, sleeps: bool) -> int:
        """Most bytes at once.

        Args:
            sleeps: whether servers and trainers of one device take turns: who does not work keeps
                no weights, cache, optimizer or gradients here.
        """
        if not sleeps or len(self.held) < 2:
            return sum(process.size for process in self.held)
        away = [sum(p.size for p in process.parts if not p.rests) for process in self.held]
        return max(
            process.size + sum(away) - own for process, own in zip(self.held, away, strict=True)
        )


@dataclass(slots=True)
class Node:
    """One machine and who is on it."""

    devices: list[Device]
    """Its GPUs."""
    host: list[ProcessMemory] = field(default_factory=list[ProcessMemory])
    """Processes that hold their parts in main memory."""

    @property
    def host_bytes(self) -> int:
        """Main memory of all of them."""
        return sum(process.size for process in self.host)


def place(
    target: Target, runtime: RuntimeSection, processes: Sequence[ProcessMemory]
) -> list[Node]:
    """Every process on a node, and those of GPUs on devices, as a run begins them.

    Args:
        target: the machines.
        runtime: shares of devices, and whether engines lie on those of trainer ranks.
        processes: of `estimate`; those on the host of a GPU process follow it.

    Raises:
        ConfigError: there are fewer GPUs than the run asks for.
    """
    nodes = [Node([Device() for _ in range(target.gpus)]) for _ in range(target.nodes)]
    beside = {p.name.removesuffix(" on the host"): p for p in processes if not p.on_gpu}
    shared = (
        runtime.placement == "colocated" if runtime.kind == "ray" else runtime.colocated is True
    )
    ranks: list[Device] = []
    for process in (p for p in processes if p.on_gpu):
        server = process.name == "vLLM server"
        share = float(process.devices)
        if runtime.kind == "ray" and process.devices == 1:
            share = min(1.0, runtime.gpus_per_engine if server else runtime.gpus_per_trainer)
        host = beside.pop(process.name, None)
        for index in range(process.count):
            if server and (shared or runtime.kind == "local"):
                found = _beside(nodes, ranks, process, index, shared=shared)
            else:
                found = _first_fit(nodes, process.devices, min(share, 1.0))
            if found is None:
                asked = sum(p.count * p.devices for p in processes if p.on_gpu)
                raise ConfigError(
                    f"{process.count} x {process.name} with {process.devices} GPUs each on one "
                    f"node do not fit: the run asks for {asked} GPUs in all, and the target has "
                    f"{target.nodes} x {target.gpus}"
                )
            node, devices = found
            for device in devices:
                device.held.append(process)
            ranks += [] if server else devices
            node.host += [host] if host is not None else []
    for process in beside.values():
        for index in range(process.count):
            nodes[index % target.nodes].host.append(process)
    return nodes


def _first_fit(
    nodes: Sequence[Node], devices: int, share: float
) -> tuple[Node, list[Device]] | None:
    """The first node with room, as Ray packs."""
    for node in nodes:
        found = [device for device in node.devices if device.free >= share - 1e-9][:devices]
        if len(found) == devices:
            for device in found:
                device.free -= share
            return node, found
    return None


def _beside(
    nodes: Sequence[Node],
    ranks: Sequence[Device],
    process: ProcessMemory,
    index: int,
    *,
    shared: bool,
) -> tuple[Node, list[Device]] | None:
    """Devices of a server: those of a rank, or of one machine those that the trainer leaves."""
    if shared:
        rank = ranks[index] if index < len(ranks) else None
        return next(((n, [d]) for n in nodes for d in n.devices if d is rank), None)
    node, needed = nodes[0], process.count * process.devices
    free = [device for device in node.devices if device not in ranks]
    own = free if len(free) >= needed else node.devices
    found = own[index * process.devices : (index + 1) * process.devices]
    return (node, found) if len(found) == process.devices else None
