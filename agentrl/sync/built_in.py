"""The weight-transfer backends of agentrl, fastest first: what each can do, and where it is.

The halves that need torch or vllm are imported when they are made.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agentrl.errors import ConfigError, SyncError
from agentrl.sync.inprocess import InProcessReceiver, InProcessSender
from agentrl.sync.transfer import WeightReceiver, WeightSender
from agentrl.sync.transfer_kind import SenderSetup, TransferRoute, WeightTransfer


class InProcessTransfer(WeightTransfer):
    """The embedded engine samples from the trainer's own weights; nothing moves."""

    name = "inprocess"
    reads = ()
    merges_adapters = False
    for_shared_weights = True

    def hindrance(self, route: TransferRoute) -> str:
        """Return why it cannot reach the engines; see `WeightTransfer.hindrance`."""
        return "" if route.shared_weights else "the engines do not share the trainer's weights"

    def preferred(self, route: TransferRoute) -> bool:
        """Return true where `auto` takes it; see `WeightTransfer.preferred`."""
        return route.shared_weights

    def sender(self, setup: SenderSetup) -> WeightSender:
        """Make the trainer's half; see `WeightTransfer.sender`."""
        return InProcessSender()

    def receiver(self) -> WeightReceiver:
        """Make the engine's half; see `WeightTransfer.receiver`."""
        return InProcessReceiver()


class ShmTransfer(WeightTransfer):
    """Shared memory of one host."""

    name = "shm"
    reads = ()

    def hindrance(self, route: TransferRoute) -> str:
        """Return why it cannot reach the engines; see `WeightTransfer.hindrance`."""
        return "" if route.same_host else "trainer and engines run on different hosts"

    def preferred(self, route: TransferRoute) -> bool:
        """On GPUs a broadcast from device to device beats the way through the host's memory."""
        return route.same_host and not route.cuda

    def sender(self, setup: SenderSetup) -> WeightSender:
        """Make the trainer's half; see `WeightTransfer.sender`."""
        from agentrl.sync.shm.shm import ShmSender

        return ShmSender()

    def receiver(self) -> WeightReceiver:
        """Make the engine's half; see `WeightTransfer.receiver`."""
        from agentrl.sync.shm.shm import ShmReceiver

        return ShmReceiver()


class DiskTransfer(WeightTransfer):
    """A folder that trainer and engines share."""

    name = "disk"
    reads = ("dense_every", "directory")
    plain_server = True

    def hindrance(self, route: TransferRoute) -> str:
        """Return why it cannot reach the engines; see `WeightTransfer.hindrance`."""
        reached = route.shared_folder or route.same_host
        return "" if reached else "the hosts need a `sync.directory`"

    def preferred(self, route: TransferRoute) -> bool:
        """Only where the user has named a folder that all hosts see."""
        return route.shared_folder and not route.cuda

    def sender(self, setup: SenderSetup) -> WeightSender:
        """Make the trainer's half; see `WeightTransfer.sender`."""
        from agentrl.sync.disk.disk import DiskSender

        section = setup.section
        folder = Path(section.directory) if section.directory else setup.directory
        if folder is None:
            raise ConfigError("sync.backend is 'disk': set `sync.directory` to a shared folder")
        return DiskSender(folder, dense_every=section.dense_every)

    def receiver(self) -> WeightReceiver:
        """Make the engine's half; see `WeightTransfer.receiver`."""
        from agentrl.sync.disk.disk import DiskReceiver

        return DiskReceiver()


class CollectiveTransfer(WeightTransfer):
    """From engine to engine over TCP, or one broadcast over NCCL between GPUs."""

    name = "collective"
    reads = ("dense_every", "timeout_s")

    def preferred(self, route: TransferRoute) -> bool:
        """It reaches every engine."""
        return True

    def sender(self, setup: SenderSetup) -> WeightSender:
        """Make the trainer's half; see `WeightTransfer.sender`."""
        from agentrl.sync.collective.sender import GroupSender
        from agentrl.sync.relay.sender import RelaySender

        settings: dict[str, Any] = {
            "bucket_bytes": setup.bucket_bytes,
            "dense_every": setup.section.dense_every,
            "address": setup.address,
            "workers": setup.workers,
            "timeout_s": setup.section.timeout_s,
        }
        return GroupSender(kind="nccl", **settings) if setup.cuda else RelaySender(**settings)

    def receiver(self) -> WeightReceiver:
        """Make the engine's half; see `WeightTransfer.receiver`."""
        from agentrl.sync.network_receiver import NetworkReceiver

        return NetworkReceiver()


class IpcTransfer(WeightTransfer):
    """CUDA handles between processes on one device."""

    name = "ipc"
    reads = ()
    shares_device = True
    needs_cuda = True

    def hindrance(self, route: TransferRoute) -> str:
        """Return why it cannot reach the engines; see `WeightTransfer.hindrance`."""
        if not route.cuda:
            return "CUDA handles need CUDA devices and there are none"
        return "" if route.same_host else "CUDA handles do not leave their host"

    def sender(self, setup: SenderSetup) -> WeightSender:
        """Make the trainer's half; see `WeightTransfer.sender`."""
        from agentrl.sync.ipc import IpcSender

        return IpcSender()

    def receiver(self) -> WeightReceiver:
        """Make the engine's half; see `WeightTransfer.receiver`."""
        from agentrl.sync.ipc import IpcReceiver

        return IpcReceiver()


class NcclTransfer(WeightTransfer):
    """vLLM's own NCCL engine."""

    name = "nccl"
    reads = ("timeout_s",)
    merges_adapters = False
    needs_cuda = True
    server_plugin = "nccl"

    def hindrance(self, route: TransferRoute) -> str:
        """Return why it cannot reach the engines; see `WeightTransfer.hindrance`."""
        if not route.cuda:
            return "NCCL needs CUDA devices and there are none"
        own = route.engine_kind == "vllm"
        return "" if own else "it is vLLM's own engine, and the embedded one has none"

    def sender(self, setup: SenderSetup) -> WeightSender:
        """Make the trainer's half; see `WeightTransfer.sender`."""
        from agentrl.sync.vllm.nccl_sender import NcclSender

        return NcclSender(
            setup.describe,
            address=setup.address,
            bucket_bytes=setup.bucket_bytes,
            workers=setup.workers,
        )

    def receiver(self) -> WeightReceiver:
        """See `WeightTransfer.receiver`; there is none of ours."""
        raise SyncError(
            "backend nccl is received by vLLM itself: start the server with "
            '--weight-transfer-config \'{"backend": "nccl"}\''
        )
