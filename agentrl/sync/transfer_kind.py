"""The contract of a weight-transfer backend: what it can do, and its two halves.

A kind is asked on machines without tensors, so its module imports torch inside `sender` and
`receiver` only. A user's kind is named by an import string in `sync.backend`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from agentrl.config.fleet import SyncSection
from agentrl.sync.transfer import WeightReceiver, WeightSender

BUCKET_BYTES = 64 << 20
"""Of one transfer buffer; a sender that fills one while another travels has two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferRoute:
    """The way that weights have to go, from the trainer to the engines.

    Example:
        Two vLLM servers on the trainer's own machine, without GPUs.

        >>> route = TransferRoute(engine_kind="vllm", same_host=True, shared_weights=False,
        ...                       cuda=False)
        >>> route.shared_folder
        False
    """

    engine_kind: Literal["embedded", "vllm"]
    """The engine that samples."""
    same_host: bool
    """Whether trainer and all engines run on one kernel."""
    shared_weights: bool
    """Whether the engine samples from the trainer's own parameters."""
    cuda: bool
    """Whether trainer and engines have CUDA devices."""
    shared_folder: bool = False
    """Whether `sync.directory` names a folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SenderSetup:
    """Everything a sender may need to know of its run."""

    section: SyncSection
    """Folder, limit, and how often all weights are sent."""
    directory: Path | None = None
    """Folder of this run for files, where `sync.directory` names none."""
    address: str = "127.0.0.1"
    """Address of this host as the engines reach it."""
    cuda: bool = False
    """Whether trainer and engines have CUDA devices."""
    workers: int = 1
    """Processes of each engine that receive."""
    describe: Callable[[], Sequence[tuple[str, str, Sequence[int]]]] | None = None
    """Name, dtype and shape of every weight."""

    @property
    def bucket_bytes(self) -> int:
        """Size of one transfer buffer."""
        return BUCKET_BYTES


class WeightTransfer(ABC):
    """One way to move weights; other code asks these declarations and never the name."""

    name: str
    """Name in `sync.backend`."""
    reads: tuple[str, ...] = ("dense_every", "directory", "timeout_s")
    """Keys of `sync` that have an effect."""
    merges_adapters: bool = True
    """Whether its receiver can merge adapters into the engine's own weights."""
    shares_device: bool = False
    """Whether trainer and engine are on one CUDA device."""
    needs_cuda: bool = False
    """Whether it moves weights between CUDA devices only."""
    server_plugin: str = "agentrl"
    """`--weight-transfer-config` backend of a vLLM server that can receive."""
    plain_server: bool = False
    """Whether a vLLM server without any such backend can receive, too."""
    for_shared_weights: bool = False
    """Whether it serves engines that sample from the trainer's own weights."""

    def hindrance(self, route: TransferRoute) -> str:
        """Why it cannot reach the engines; empty if it can."""
        return ""

    def preferred(self, route: TransferRoute) -> bool:
        """Return true if `auto` takes it where no kind registered before it is preferred."""
        return False

    @abstractmethod
    def sender(self, setup: SenderSetup) -> WeightSender:
        """Make the trainer's half; its tickets carry `sender.backend`.

        Raises:
            ConfigError: something is missing, or cannot work here.
        """

    @abstractmethod
    def receiver(self) -> WeightReceiver:
        """Make the engine's half.

        Raises:
            SyncError: it cannot work here.
        """
