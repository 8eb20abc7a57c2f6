"""Chooses the backend that moves the weights, by what each declares, and makes its two halves.

Nothing of torch is imported before a half is made, so a driver without tensors can ask.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from agentrl.config.fleet import SyncSection
from agentrl.errors import ConfigError, SyncError
from agentrl.plugins.imports import import_string_of
from agentrl.plugins.registry import Registry
from agentrl.sync.built_in import (
    CollectiveTransfer,
    DiskTransfer,
    InProcessTransfer,
    IpcTransfer,
    NcclTransfer,
    ShmTransfer,
)
from agentrl.sync.transfer import WeightReceiver, WeightSender
from agentrl.sync.transfer_kind import SenderSetup, TransferRoute, WeightTransfer

AUTO = "auto"
"""Value of `sync.backend` that takes the fastest kind."""
OWN_TRANSFER = "AGENTRL_WEIGHT_TRANSFER"
"""Environment variable of an engine: the import string of the user's own backend that it may load.
Tickets come over HTTP, and their sender must not choose what code a server runs."""


def _entry(name: str, value: Any) -> WeightTransfer:
    if not (isinstance(value, type) and issubclass(value, WeightTransfer)):
        raise ConfigError(
            f"sync.backend {name!r} names {value!r}, expected a subclass of "
            "agentrl.sync.WeightTransfer"
        )
    if value.__abstractmethods__:
        missing = ", ".join(sorted(value.__abstractmethods__))
        raise ConfigError(f"sync.backend {name!r} does not define {missing}")
    return value()


TRANSFERS = Registry[WeightTransfer](
    "sync.backend", own="a backend of your own", entry=_entry, words=(AUTO,)
)
for kind in (
    InProcessTransfer,
    ShmTransfer,
    DiskTransfer,
    CollectiveTransfer,
    IpcTransfer,
    NcclTransfer,
):
    TRANSFERS.add(kind.name, kind(), source=kind)


def find_transfer(name: str, *, base: Path | None = None) -> WeightTransfer | None:
    """The kind that `sync.backend` names; None for `auto`.

    Args:
        name: registered, or an import string of a `WeightTransfer`.
        base: folder that relative file paths start from; needed at the first time only.

    Raises:
        ConfigError: there is no such kind; lists those there are.
    """
    return None if name == AUTO else TRANSFERS.find(name, base=base)


def resolve_backend(
    section: SyncSection,
    *,
    engine_kind: Literal["embedded", "vllm"],
    same_host: bool,
    shared_weights: bool,
    cuda: bool,
) -> str:
    """The backend that `sync.backend` means here, as every process can find it.

    Args:
        section: the config.
        engine_kind: what samples.
        same_host: whether trainer and all engines run on one kernel.
        shared_weights: whether the engine samples from the trainer's own parameters.
        cuda: whether trainer and engines have CUDA devices.

    Raises:
        ConfigError: the one that was asked for cannot reach the engines.
    """
    route = TransferRoute(
        engine_kind=engine_kind,
        same_host=same_host,
        shared_weights=shared_weights,
        cuda=cuda,
        shared_folder=bool(section.directory),
    )
    kind = find_transfer(section.backend)
    if kind is None:
        return _fastest(route)
    why = kind.hindrance(route)
    if shared_weights and not kind.for_shared_weights:
        why = "the embedded engine samples from the trainer's own weights and receives none"
    if why:
        raise ConfigError(
            f"sync.backend is {section.backend!r}, but {why}; set it to 'auto', which takes "
            f"{_fastest(route)!r}"
        )
    # A user's file is named from another folder in the engine's process.
    return import_string_of(type(kind)) if ":" in section.backend else section.backend


def _fastest(route: TransferRoute) -> str:
    kinds = {name: TRANSFERS.find(name) for name in TRANSFERS}
    return next(name for name, kind in kinds.items() if kind.preferred(route))


def make_sender(
    section: SyncSection,
    *,
    backend: str,
    directory: Path | None = None,
    address: str = "127.0.0.1",
    cuda: bool = False,
    workers: int = 1,
    describe: Callable[[], Sequence[tuple[str, str, Sequence[int]]]] | None = None,
) -> WeightSender:
    """Make the trainer's half of a backend.

    Args:
        section: folder, limit, and how often all weights are sent.
        backend: from `resolve_backend`.
        directory: see `SenderSetup`, as the others.
        address: of this host as the engines reach it.
        cuda: whether trainer and engines have CUDA devices.
        workers: processes of each engine that receive.
        describe: name, dtype and shape of every weight.

    Raises:
        ConfigError: something is missing, or cannot work here.
    """
    sender = TRANSFERS.find(backend).sender(
        SenderSetup(
            section=section,
            directory=directory,
            address=address,
            cuda=cuda,
            workers=workers,
            describe=describe,
        )
    )
    sender.backend = backend
    return sender


def make_receiver(backend: str) -> WeightReceiver:
    """Make the engine's half of a backend.

    Raises:
        SyncError: there is none of that name, it cannot work here, or it is code that this engine
            was not started with.
    """
    if ":" in backend and os.environ.get(OWN_TRANSFER) != backend:
        raise SyncError(
            f"weights come by {backend!r}, which this engine may not load; start it with "
            f"{OWN_TRANSFER}={backend} in its environment"
        )
    try:
        kind = TRANSFERS.find(backend)
    except ConfigError as error:
        raise SyncError(str(error)) from error
    return kind.receiver()
