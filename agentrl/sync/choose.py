"""Which backend moves the weights, and its two halves.

Nothing of torch is imported before a half is made, so a driver without tensors can ask.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from agentrl.config.fleet import AutoSync, DirectSync, DiskSync, SyncSection
from agentrl.errors import ConfigError, SyncError, choices
from agentrl.sync.transfer import WeightReceiver, WeightSender

BACKENDS = ("inprocess", "shm", "disk", "collective", "ipc", "nccl")
BUCKET_BYTES = 64 << 20
"""Of one transfer buffer of `collective` and `nccl`; there are two."""


def resolve_backend(
    section: SyncSection,
    *,
    engine_kind: Literal["embedded", "vllm"],
    same_host: bool,
    shared_weights: bool,
    cuda: bool,
) -> str:
    """The backend that `sync.backend` means here.

    Args:
        section: the config.
        engine_kind: what samples.
        same_host: whether trainer and all engines run on one kernel.
        shared_weights: whether the engine samples from the trainer's own parameters.
        cuda: whether trainer and engines have CUDA devices.

    Raises:
        ConfigError: the one that was asked for cannot reach the engines.
    """
    asked = section.backend
    if asked == "auto":
        return _fastest(section, same_host=same_host, shared_weights=shared_weights, cuda=cuda)
    reasons = {
        "inprocess": "" if shared_weights else "the engines do not share the trainer's weights",
        "shm": "" if same_host else "trainer and engines run on different hosts",
        "disk": "" if _directory(section) or same_host else "the hosts need a `sync.directory`",
        "collective": "",
        "ipc": _ipc_hinders(same_host=same_host, cuda=cuda),
        "nccl": _nccl_hinders(engine_kind=engine_kind, cuda=cuda),
    }
    if shared_weights and asked != "inprocess":
        why = "the embedded engine samples from the trainer's own weights and receives none"
    else:
        why = reasons[asked]
    if why:
        raise ConfigError(
            f"sync.backend is {asked!r}, but {why}; set it to 'auto', which takes "
            f"{_fastest(section, same_host=same_host, shared_weights=shared_weights, cuda=cuda)!r}"
        )
    return asked


def _fastest(section: SyncSection, *, same_host: bool, shared_weights: bool, cuda: bool) -> str:
    if shared_weights:
        return "inprocess"
    if same_host and not cuda:
        return "shm"
    # On GPUs a broadcast from device to device beats the way through the host's memory; a folder
    # only where the user has named one that all hosts see.
    return "disk" if _directory(section) and not cuda else "collective"


def _directory(section: SyncSection) -> str | None:
    """Folder that every engine can read, where the section has one."""
    return section.directory if isinstance(section, AutoSync | DiskSync) else None


def _dense_every(section: SyncSection) -> int:
    """Syncs from one with all weights to the next."""
    return 1 if isinstance(section, DirectSync) else section.dense_every


def _ipc_hinders(*, same_host: bool, cuda: bool) -> str:
    if not cuda:
        return "CUDA handles need CUDA devices and there are none"
    return "" if same_host else "CUDA handles do not leave their host"


def _nccl_hinders(*, engine_kind: str, cuda: bool) -> str:
    if not cuda:
        return "NCCL needs CUDA devices and there are none"
    return "" if engine_kind == "vllm" else "it is vLLM's own engine, and the embedded one has none"


def make_sender(
    section: SyncSection,
    *,
    backend: str,
    directory: Path | None = None,
    address: str = "127.0.0.1",
    cuda: bool = False,
    workers: int = 1,
    describe: Callable[[], Sequence[tuple[str, str, Sequence[int]]]] | None = None,
    timeout_s: float = 120.0,
) -> WeightSender:
    """The trainer's half.

    Args:
        section: folder, and how often all weights are sent.
        backend: from `resolve_backend`.
        directory: of the `disk` backend, where `sync.directory` names none.
        address: of this host as the engines reach it, for `collective` and `nccl`.
        cuda: whether `collective` uses NCCL.
        workers: processes of each engine that receive, for `collective` and `nccl`.
        describe: name, dtype and shape of every weight, for `nccl`.
        timeout_s: for a meeting, or a bucket.

    Raises:
        ConfigError: something is missing, or cannot work here.
    """
    if backend == "inprocess":
        from agentrl.sync.inprocess import InProcessSender

        return InProcessSender()
    if backend == "shm":
        from agentrl.sync.shm.shm import ShmSender

        return ShmSender()
    if backend == "disk":
        from agentrl.sync.disk.disk import DiskSender

        named = _directory(section)
        folder = Path(named) if named else directory
        if folder is None:
            raise ConfigError("sync.backend is 'disk': set `sync.directory` to a shared folder")
        return DiskSender(folder, dense_every=_dense_every(section))
    if backend == "collective":
        from agentrl.sync.collective.sender import CollectiveSender

        return CollectiveSender(
            bucket_bytes=BUCKET_BYTES,
            dense_every=_dense_every(section),
            address=address,
            kind="nccl" if cuda else "gloo",
            workers=workers,
            timeout_s=timeout_s,
        )
    if backend == "ipc":
        from agentrl.sync.ipc import IpcSender

        return IpcSender()
    if backend == "nccl":
        from agentrl.sync.vllm.nccl_sender import NcclSender

        return NcclSender(describe, address=address, bucket_bytes=BUCKET_BYTES, workers=workers)
    raise ConfigError(f"unknown weight backend: {choices(backend, BACKENDS)}")


def make_receiver(backend: str) -> WeightReceiver:
    """The engine's half.

    Raises:
        SyncError: there is none of that name, or it cannot work here.
    """
    if backend == "inprocess":
        from agentrl.sync.inprocess import InProcessReceiver

        return InProcessReceiver()
    if backend == "shm":
        from agentrl.sync.shm.shm import ShmReceiver

        return ShmReceiver()
    if backend == "disk":
        from agentrl.sync.disk.disk import DiskReceiver

        return DiskReceiver()
    if backend == "collective":
        from agentrl.sync.collective.receiver import CollectiveReceiver

        return CollectiveReceiver()
    if backend == "ipc":
        from agentrl.sync.ipc import IpcReceiver

        return IpcReceiver()
    if backend == "nccl":
        raise SyncError(
            "backend nccl is received by vLLM itself: start the server with "
            '--weight-transfer-config \'{"backend": "nccl"}\''
        )
    raise SyncError(f"unknown weight backend: {choices(backend, BACKENDS)}")
