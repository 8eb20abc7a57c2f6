"""Weights through a folder that trainer and engines share: slow, and open to any engine.

    DIRECTORY/sender-5c1e.../owner.json
                             version-00000012/   weights.json  00000.safetensors  ...

The newest two versions stay, and those that their patches are based on; an engine that joins late
reads the chain from the last version that holds all weights. Every sender has a folder of its own,
so that runs may share a directory; it goes with the sender, or with the next one if that was
killed.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import socket
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
from torch import Tensor

from agentrl.engine import WeightTicket
from agentrl.errors import SyncError
from agentrl.sync.disk.shards import FolderWriter, Manifest, read_manifest, read_tensors
from agentrl.sync.shm.segment import host_identity
from agentrl.sync.transfer import Weights
from agentrl.sync.wire.checksum import WeightDigest, check_all
from agentrl.sync.wire.patches import PatchBase, PatchDecoder, PatchEncoder

OWNER = "owner.json"
"""Names whose folder it is."""
KEPT = 2
"""Versions that can be taken at any time."""


class DiskSender:
    """Stages weights in a folder; see `agentrl.sync.transfer.WeightSender`."""

    backend = "disk"
    streams = False

    def __init__(self, directory: Path, *, dense_every: int = 1) -> None:
        """Make a folder of its own, and remove those of senders that were killed on this host.

        Args:
            directory: of all senders; engines see it under the same name.
            dense_every: all weights go with every so many sends, between them patches.

        Raises:
            SyncError: the folder cannot be written.
        """
        root = directory.absolute()
        self._directory = root / f"sender-{secrets.token_hex(8)}"
        try:
            root.mkdir(parents=True, exist_ok=True)
            for folder in root.glob("sender-*"):
                if _owner_ended(folder):
                    shutil.rmtree(folder)
            self._directory.mkdir()
            (self._directory / OWNER).write_bytes(orjson.dumps(_owner(os.getpid())))
        except OSError as error:
            raise SyncError(f"sync.directory {directory}: {error.strerror or error}") from error
        self._encoder = PatchEncoder(dense_every)
        self._dense_every = dense_every

    def connect(self, receivers: int) -> Sequence[Mapping[str, Any]]:
        """Name the folder; the same for every receiver."""
        return [{"directory": str(self._directory)}] * receivers

    def announce(self, version: int) -> WeightTicket:
        """Not for a sender that stages."""
        raise SyncError("backend disk stages its weights: send them, then give out the ticket")

    def send(self, weights: Weights, version: int) -> WeightTicket:
        """Write a version, then remove those no longer needed.

        Raises:
            SyncError: the disk is full or the layout has changed; nothing half-written is left.
        """
        folder = self._directory / f"version-{version:08d}"
        base = self._encoder.base
        if base is not None and base.version >= version:
            # Sent once more: a patch on itself would replace what it is based on.
            self._encoder.forget()
            base = None
        writer = FolderWriter(folder)
        try:
            writer.write(self._encoder.encode(weights, version))
            size = writer.publish(version=version, checksum=self._encoder.checksum, base=base)
        except BaseException:
            # The encoder's base may be a version that cannot be read.
            self._encoder.forget()
            raise
        self._remove_old()
        info = {
            "directory": str(self._directory),
            "folder": folder.name,
            "patches_follow": self._dense_every > 1,
            "size_bytes": size,
        }
        if base is None:
            # A whole checkpoint, which also a server without our receiver can read.
            info["path"] = str(folder)
        return WeightTicket(
            backend="disk", version=version, info=info, checksum=self._encoder.checksum
        )

    def close(self) -> None:
        """Remove the versions: what a run keeps are its checkpoints. Idempotent."""
        shutil.rmtree(self._directory, ignore_errors=True)

    def _versions(self) -> dict[int, Path]:
        found = (re.fullmatch(r"version-(\d{8,})", path.name) for path in self._directory.iterdir())
        return {int(m[1]): self._directory / m[0] for m in found if m}

    def _remove_old(self) -> None:
        versions = self._versions()
        needed = set(sorted(versions)[-KEPT:])
        for kept in sorted(needed):
            version = kept
            while (base := read_manifest(versions[version]).base) is not None:
                if base.version >= version:
                    break  # no chain of ours, and without an end
                if base.version not in versions:
                    # It cannot be read, so the next one must not be a patch of it either.
                    shutil.rmtree(versions[kept], ignore_errors=True)
                    self._encoder.forget()
                    raise SyncError(
                        f"version {base.version}, which version {version} is a patch of, is gone "
                        f"from {self._directory}; let nobody else write there"
                    )
                version = base.version
                needed.add(version)
        for version in versions.keys() - needed:
            shutil.rmtree(versions[version], ignore_errors=True)


class DiskReceiver:
    """Reads versions from the folder; see `agentrl.sync.transfer.WeightReceiver`."""

    keeps = True
    """Tensors stay valid until the next ticket."""

    def __init__(self) -> None:
        self._decoder = PatchDecoder()

    def connect(self, info: Mapping[str, Any]) -> None:
        """Check that the folder is seen from here."""
        directory = Path(info["directory"])
        if not directory.is_dir():
            raise SyncError(
                f"{directory} is no folder on this engine's host; set `sync.directory` to one that "
                "trainer and engines share"
            )

    def receive(self, ticket: WeightTicket) -> Generator[tuple[str, Tensor]]:
        """The weights of a version, from its base if it holds patches."""
        directory = Path(ticket.info["directory"])
        folder = directory / ticket.info["folder"]
        manifest = read_manifest(folder)
        if (manifest.version, manifest.checksum) != (ticket.version, ticket.checksum):
            raise SyncError(
                f"{folder} holds version {manifest.version} with checksum {manifest.checksum}, "
                f"expected {ticket.version} with {ticket.checksum}"
            )
        keep = bool(ticket.info["patches_follow"])
        if not keep:
            self._decoder.forget()
        yield from self._read(folder, manifest, keep=keep)

    def _read(
        self, folder: Path, manifest: Manifest, *, keep: bool
    ) -> Iterator[tuple[str, Tensor]]:
        new = PatchBase(version=manifest.version, checksum=manifest.checksum)
        if manifest.base is None:
            yield from self._decoder.dense(_checked(folder, manifest), lambda: new, keep=keep)
            return
        if self._decoder.have != manifest.base:
            before = folder.parent / f"version-{manifest.base.version:08d}"
            for _ in self._read(before, read_manifest(before), keep=True):
                pass
        patches = ((record.name, tensor) for record, tensor in read_tensors(folder, manifest))
        yield from self._decoder.apply(patches, manifest.base, lambda: new)

    def close(self) -> None:
        """Release the kept weights. Idempotent."""
        self._decoder.forget()


def _checked(folder: Path, manifest: Manifest) -> Iterator[tuple[str, Tensor]]:
    digest = WeightDigest()
    for record, tensor in read_tensors(folder, manifest):
        digest.add(record)
        yield record.name, tensor
    check_all(digest.hexdigest(), manifest.checksum, manifest.version)


def _owner(pid: int) -> list[str | int | None]:
    """Names the owner of a folder; no other process has the same name."""
    return [socket.gethostname(), host_identity(), pid, _began(pid)]


def _owner_ended(folder: Path) -> bool:
    """Whether a sender of this host was killed; of other hosts, and without a name, unknown."""
    try:
        host, since, pid, began = orjson.loads((folder / OWNER).read_bytes())
    except (OSError, ValueError, TypeError):
        return False
    if host != socket.gethostname():
        return False
    return since != host_identity() or _began(pid) != began


def _began(pid: int) -> str | None:
    """When a process began, in ticks since this host did; None if there is no such process."""
    try:
        # After the name, which may hold anything.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return None
