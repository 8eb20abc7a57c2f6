"""The side channel of a broadcast's members: a small store that the sender serves.

The process group keeps its own addresses in the same store, under keys such as `0/1`, so every key
of ours begins with `agentrl/VERSION/`:

base          what the coming stream is a patch to            sender
ready/RANK    this receiver listens                           receivers
go            whether the broadcast begins                    sender
bucket/I      header of bucket I                              sender
checksum      of all weights, with the last bucket            sender
left/RANK     this receiver gave up for a reason of its own   receivers
"""

from __future__ import annotations

import socket
from datetime import timedelta
from typing import Any

import orjson
from torch.distributed import TCPStore  # type: ignore[attr-defined] - a re-export

from agentrl.errors import SyncError
from agentrl.sync.wire.patches import PatchBase

GO = b"go"
"""The value of `VERSION/go` if all came."""


def make_store(host: str, port: int, *, is_master: bool, timeout_s: float) -> TCPStore:
    """Serve or reach the store at which the group meets; port 0 takes a free one.

    Raises:
        SyncError: the address is not of this host, the port is in use, or no member answers.
    """
    options: dict[str, Any] = {}
    try:
        if is_master:
            # A store that opens its port itself listens at every address of this host.
            family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            listener = socket.create_server(address[:2], family=family)
            port = listener.getsockname()[1]
            options["master_listen_fd"] = listener.detach()
        return TCPStore(
            host,
            port,
            is_master=is_master,
            wait_for_workers=False,
            timeout=timedelta(seconds=timeout_s),
            **options,
        )
    except (OSError, RuntimeError, ValueError) as error:
        what = "serve" if is_master else "reach"
        raise SyncError(f"cannot {what} the rendezvous at {host}:{port}: {error}") from error


def say(store: TCPStore, key: str, value: bytes = b"") -> None:
    """Write a key for the others."""
    store.set(key, value)  # type: ignore[arg-type] - the stub forgets bytes


def sync_key(version: int, name: str) -> str:
    """Key of one sync in the store; no key of the process group begins as these do."""
    return f"agentrl/{version}/{name}"


def ready_key(version: int, rank: int) -> str:
    """Written by a receiver that listens."""
    return sync_key(version, f"ready/{rank}")


def left_key(version: int, rank: int) -> str:
    """Written by a receiver that gives up."""
    return sync_key(version, f"left/{rank}")


def bucket_key(version: int, index: int) -> str:
    """Written by the sender before it moves a bucket."""
    return sync_key(version, f"bucket/{index}")


def base_to_json(base: PatchBase | None) -> bytes:
    """Make JSON of it for the wire."""
    return orjson.dumps([base.version, base.checksum] if base else None)


def base_from_json(data: bytes) -> PatchBase | None:
    """The inverse of `base_to_json`."""
    row = orjson.loads(data)
    return PatchBase(version=row[0], checksum=row[1]) if row else None


def own_address(host: str, port: int) -> str:
    """The address of this host from which `host` is reached."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        # Connecting a datagram socket sends nothing; it only chooses a route.
        probe.connect((host, port))
        return probe.getsockname()[0]
