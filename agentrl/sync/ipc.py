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
from agentrl.sync.wire.tensors import TensorRecord, WeightLayout, record_of, torch_dtype


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
        """Return nothing to remember: a ticket names the device of its weights.

        Raises:
            ConfigError: more than one receiver: torch counts one reader of a handle.
        """
        if receivers != 1:
            raise ConfigError(
                f"sync.backend is 'ipc', which serves the one engine on the trainer's GPU, and "
                f"there are {receivers}; set `sync.backend: collective`"
            )
        return [{}]

    def announce(self, version: int) -> WeightTicket:
        """Not for a sender that stages."""
        raise SyncError("backend ipc stages its weights: send them, then give out the ticket")

    def send(self, weights: Weights, version: int) -> WeightTicket:
        """Put a handle of every tensor into the ticket.

        Raises:
            SyncError: a tensor is not on the GPU of the others, or the layout has changed.
        """
        alive: list[Tensor] = []
        rows: list[dict[str, Any]] = []
        summed: list[tuple[TensorRecord, Tensor]] = []
        for record, tensor in self._layout.watch(weights):
            expected = alive[0].device if alive else "CUDA"
            if not tensor.is_cuda or (alive and tensor.device != expected):
                raise SyncError(
                    f"weight {record.name!r} is on {tensor.device}, expected {expected}"
                )
            held = tensor.detach().contiguous()
            alive.append(held)
            rows.append({"name": record.name, **_handle(held)})
            summed.append((record, device_sums(held)))
        # Kernels of the last step may still be writing what the engines are about to read.
        if not alive:
            raise SyncError("backend ipc was given no weights to send")
        # The current device is that of a thread, and need not be theirs.
        device = alive[0].device
        torch.cuda.synchronize(device)
        self._alive = alive
        size = sum(tensor.nbytes for tensor in alive)
        return WeightTicket(
            backend="ipc",
            version=version,
            info={"handles": rows, "size_bytes": size, "device": _uuid(device)},
            checksum=_digest_of(summed),
        )

    def close(self) -> None:
        """Release the tensors. Idempotent."""
        self._alive = []


class IpcReceiver:
    """Opens CUDA handles; see `agentrl.sync.transfer.WeightReceiver`."""

    keeps = True
    """Tensors stay valid until the next ticket."""

    def __init__(self) -> None:
        need_cuda()

    def connect(self, info: Mapping[str, Any]) -> None:
        """Do nothing: a ticket has all that it takes."""

    def receive(self, ticket: WeightTicket) -> Generator[tuple[str, Tensor]]:
        """The trainer's own tensors.

        Raises:
            SyncError: this process does not see their GPU, or CUDA cannot open them.
        """
        summed: list[tuple[TensorRecord, Tensor]] = []
        index = _index_of(ticket.info["device"])
        for row in ticket.info["handles"]:
            tensor = _open(row, index)
            record = record_of(row["name"], tensor)
            summed.append((record, device_sums(tensor)))
            yield record.name, tensor
        check_all(_digest_of(summed), ticket.checksum, ticket.version)

    def close(self) -> None:
        """Do nothing: nothing is kept."""


def device_sums(tensor: Tensor) -> Tensor:
    """[2] int64 sums of a tensor's bits and of their positions, computed where it lies.

    To move it to the host for a better digest would cost more than the transfer that is saved, and
    so would waiting for the sums of each tensor: `_digest_of` reads all of them at once.
    """
    data = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    sums = torch.zeros(2, dtype=torch.int64, device=data.device)
    for start in range(0, len(data), _PART):
        part = data[start : start + _PART]
        words = torch.nn.functional.pad(part, (0, -len(part) % 8)).view(torch.int64)
        mixed = (words ^ (words >> 29)) * 0x5851F42D4C957F2D
        positions = torch.arange(start + 1, start + 1 + len(words), device=words.device)
        sums += torch.stack((mixed.sum(), (mixed * positions).sum()))
    return sums


def device_digest(tensor: Tensor) -> str:
    """The sums of a tensor as text."""
    return _text(device_sums(tensor).tolist())


def _text(sums: Sequence[int]) -> str:
    return "".join(f"{number % 2**64:016x}" for number in sums)


def _digest_of(summed: Sequence[tuple[TensorRecord, Tensor]]) -> str:
    """Digest of all tensors in their order."""
    digest = WeightDigest()
    if summed:
        numbers = torch.stack([sums for _, sums in summed]).tolist()
        for (record, _), sums in zip(summed, numbers, strict=True):
            digest.add(replace(record, digest=_text(sums)))
    return digest.hexdigest()


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


def _uuid(device: torch.device) -> str:
    return str(torch.cuda.get_device_properties(device).uuid)


def _index_of(uuid: str) -> int:
    """The index of a GPU here; it differs between processes that see different ones.

    Raises:
        SyncError: this process does not see it.
    """
    seen = [_uuid(torch.device("cuda", index)) for index in range(torch.cuda.device_count())]
    if uuid not in seen:
        raise SyncError(
            f"backend ipc: the trainer is on GPU {uuid}, this engine sees {', '.join(seen)}; put "
            "both on one device or set `sync.backend: collective`"
        )
    return seen.index(uuid)


def _open(row: Mapping[str, Any], device: int) -> Tensor:
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
        "device": device,
    }
    try:
        return rebuild_cuda_tensor(*(fields[name] for name in _FIELDS))
    except RuntimeError as error:
        raise SyncError(
            f"cannot open the CUDA memory of weight {row['name']!r}: {error}"
        ) from error
