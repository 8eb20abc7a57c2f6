"""Weights on one GPU, shared between processes: handles move, the bytes stay where they are.

Needs CUDA, and trainer and engine on the same device. A handle is sent as its plain fields and not
as a pickle, so that a server that takes tickets over HTTP need not trust who sends them with code.
The sender keeps the tensors of the last send alive; an engine copies them while it loads.
"""

from __future__ import annotations

import base64
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from agentrl.engine import WeightTicket
from agentrl.errors import ConfigError, SyncError
from agentrl.sync.transfer import Weights
from agentrl.sync.wire.checksum import WeightDigest, check_all
from agentrl.sync.wire.tensors import WeightLayout, record_of, torch_dtype


def need_cuda() -> None:
    """Check that there is a device to share.

    Raises:
        ConfigError: there is none.
    """
    if not torch.cuda.is_available():
        raise ConfigError(
            "sync.backend is 'ipc', which shares the memory of one CUDA device, but torch sees no "
            "CUDA device here; set `sync.backend: shm`"
        )


class IpcSender:
    """Gives out CUDA handles; see `agentrl.sync.transfer.WeightSender`."""

    backend = "ipc"
    streams = False

    def __init__(self) -> None:
        need_cuda()
        self._layout = WeightLayout()
        self._alive: list[Tensor] = []

    def connect(self, receivers: int) -> Sequence[Mapping[str, Any]]:
        """Return the name of the device.

        Raises:
            ConfigError: more than one receiver: torch counts one reader of a handle.
        """
        if receivers != 1:
            raise ConfigError(
                f"sync.backend is 'ipc', which serves the one engine on the trainer's GPU, and "
                f"there are {receivers}; set `sync.backend: collective`"
            )
        device = str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)
        return [{"device": device}] * receivers

    def announce(self, version: int) -> WeightTicket:
        """Not for a sender that stages."""
        raise SyncError("backend ipc stages its weights: send them, then give out the ticket")

    def send(self, weights: Weights, version: int) -> WeightTicket:
        """Put a handle of every tensor into the ticket.

        Raises:
            SyncError: a tensor is not on the GPU, or the layout has changed.
        """
        alive: list[Tensor] = []
        rows: list[dict[str, Any]] = []
        digest = WeightDigest()
        for record, tensor in self._layout.watch(weights):
            if not tensor.is_cuda:
                raise SyncError(f"weight {record.name!r} is on {tensor.device}, expected CUDA")
            held = tensor.detach().contiguous()
            alive.append(held)
            rows.append({"name": record.name, **_handle(held)})
            digest.add(replace(record, digest=device_digest(held)))
        # Kernels of the last step may still be writing what the engines are about to read.
        torch.cuda.synchronize()
        self._alive = alive
        size = sum(tensor.nbytes for tensor in alive)
        return WeightTicket(
            backend="ipc",
            version=version,
            info={"handles": rows, "size_bytes": size},
            checksum=digest.hexdigest(),
        )

    def close(self) -> None:
        """Let go of the tensors. Idempotent."""
        self._alive = []


class IpcReceiver:
    """Opens CUDA handles; see `agentrl.sync.transfer.WeightReceiver`."""

    keeps = True
    """Tensors stay valid until the next ticket."""

    def __init__(self) -> None:
        need_cuda()

    def connect(self, info: Mapping[str, Any]) -> None:
        """Check that the engine is on the trainer's device."""
        mine = str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)
        if mine != info["device"]:
            raise SyncError(
                f"backend ipc: the trainer is on GPU {info['device']}, this engine on {mine}; put "
                "both on one device or set `sync.backend: collective`"
            )

    def receive(self, ticket: WeightTicket) -> Generator[tuple[str, Tensor]]:
        """The trainer's own tensors."""
        digest = WeightDigest()
        for row in ticket.info["handles"]:
            tensor = _open(row)
            record = record_of(row["name"], tensor)
            digest.add(replace(record, digest=device_digest(tensor)))
            yield record.name, tensor
        check_all(digest.hexdigest(), ticket.checksum, ticket.version)

    def close(self) -> None:
        """Do nothing: nothing is kept."""


def device_digest(tensor: Tensor) -> str:
    """Sums of a tensor's bits and of their positions, computed where it lies.

    To move it to the host for a better digest would cost more than the transfer that is saved.
    """
    data = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    total = placed = 0
    for start in range(0, len(data), _PART):
        part = data[start : start + _PART]
        words = torch.nn.functional.pad(part, (0, -len(part) % 8)).view(torch.int64)
        mixed = (words ^ (words >> 29)) * 0x5851F42D4C957F2D
        positions = torch.arange(start + 1, start + 1 + len(words), device=words.device)
        total += int(mixed.sum())
        placed += int((mixed * positions).sum())
    return f"{total % 2**64:016x}{placed % 2**64:016x}"


_PART = 64 << 20
"""Bytes summed at a time; the sums need four times as much for a moment."""
_FIELDS = (
    "tensor_cls", "size", "stride", "offset", "storage_cls", "dtype", "device", "handle",
    "storage_size_bytes", "storage_offset_bytes", "requires_grad", "ref_counter_handle",
    "ref_counter_offset", "event_handle", "event_sync_required",
)  # fmt: skip
"""The arguments of torch's `rebuild_cuda_tensor`, in their order."""
_BYTES = ("handle", "ref_counter_handle", "event_handle")


def _handle(tensor: Tensor) -> dict[str, Any]:
    from torch.multiprocessing.reductions import reduce_tensor

    fields: dict[str, Any] = dict(zip(_FIELDS, reduce_tensor(tensor)[1], strict=True))
    del fields["tensor_cls"], fields["storage_cls"]
    fields["dtype"] = str(fields["dtype"]).removeprefix("torch.")
    for name in _BYTES:
        # An empty tensor has no handles.
        fields[name] = None if fields[name] is None else base64.b64encode(fields[name]).decode()
    return {**fields, "size": list(fields["size"]), "stride": list(fields["stride"])}


def _open(row: Mapping[str, Any]) -> Tensor:
    from torch.multiprocessing.reductions import rebuild_cuda_tensor

    fields = {name: row.get(name) for name in _FIELDS}
    for name in _BYTES:
        fields[name] = None if fields[name] is None else base64.b64decode(row[name])
    fields |= {
        "tensor_cls": torch.Tensor,
        "storage_cls": torch.storage.TypedStorage,
        "dtype": torch_dtype(row["dtype"]),
        "size": torch.Size(row["size"]),
        "stride": tuple(row["stride"]),
        # The index of a device differs between processes that see different ones.
        "device": torch.cuda.current_device(),
    }
    try:
        return rebuild_cuda_tensor(*(fields[name] for name in _FIELDS))
    except RuntimeError as error:
        raise SyncError(
            f"cannot open the CUDA memory of weight {row['name']!r}: {error}"
        ) from error
