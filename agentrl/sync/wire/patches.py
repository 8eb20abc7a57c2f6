"""Lossless patches: of each tensor only the elements whose bits have changed since the last send.

An optimizer step at a small learning rate moves most bfloat16 weights by less than their last bit,
so few change, and those mostly by one step. A patch of a tensor is

    u8 mode                 0: positions and steps; 1: the new bytes, where that is smaller
    u8 gap width, u64 count of gap codes, u64 count of changes, u64 count of wide steps
    gap codes               distance to the changed element before, less one; the largest code
                            means "that far, and no change there"
    i8 steps                new bits minus old bits as integers; -128 means "see the wide steps"
    wide steps              in the width of the element

It holds for exactly one base. The receiver keeps the base, and refuses a patch on another one. No
general compressor on top: at 100 MB/s it would cost more than the bytes it saves.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from agentrl.errors import SyncError
from agentrl.sync.wire.checksum import WeightDigest, check_all, tensor_digest
from agentrl.sync.wire.tensors import TensorRecord, WeightLayout, flat_bytes, record_of

_HEAD = struct.Struct("<BBQQQ")
_SPARSE, _WHOLE = 0, 1
_WIDE_STEP = -128


def make_patch(old: np.ndarray, new: np.ndarray, width: int) -> np.ndarray | None:
    """The patch that turns `old` into `new`; None if they are equal.

    Args:
        old: bytes.
        new: bytes, as many.
        width: bytes of an element; only 2 and 4 are taken apart.
    """
    if width not in (2, 4):
        return None if np.array_equal(old, new) else _whole(new)
    kind = np.dtype(f"<i{width}")
    before, after = old.view(kind), new.view(kind)
    positions = np.flatnonzero(before != after)
    if len(positions) == 0:
        return None
    if len(positions) * 2 >= len(new):
        return _whole(new)
    steps = after[positions] - before[positions]
    wide = (steps < -127) | (steps > 127)
    small = np.where(wide, _WIDE_STEP, steps).astype(np.int8)
    gaps = np.diff(positions, prepend=-1) - 1
    parts = [_gap_codes(gaps), small.view(np.uint8), steps[wide].view(np.uint8)]
    if _HEAD.size + sum(part.nbytes for part in parts) >= len(new):
        return _whole(new)
    codes = parts[0]
    head = _HEAD.pack(_SPARSE, codes.itemsize, len(codes), len(positions), int(wide.sum()))
    return np.concatenate([np.frombuffer(head, np.uint8), codes.view(np.uint8), *parts[1:]])


def apply_patch(data: np.ndarray, patch: np.ndarray, width: int) -> None:
    """Turn the bytes of the base into those of the new tensor, in place.

    Raises:
        SyncError: the patch does not fit the tensor.
    """
    try:
        mode, gap_width, num_codes, num_changes, num_wide = _HEAD.unpack_from(patch.data)
        body = patch[_HEAD.size :]
        if mode == _WHOLE:
            data[:] = body
            return
        kind = np.dtype(f"<i{width}")
        ends = np.cumsum([num_codes * gap_width, num_changes, num_wide * width])
        if ends[-1] != len(body):
            raise ValueError(f"{len(body)} bytes, expected {ends[-1]}")
        codes = body[: ends[0]].copy().view(np.dtype(f"<u{gap_width}"))
        skip = np.iinfo(codes.dtype).max
        here = codes != skip
        positions = np.cumsum(codes.astype(np.int64) + here)[here] - 1
        steps = body[ends[0] : ends[1]].view(np.int8).astype(kind)
        steps[steps == _WIDE_STEP] = body[ends[1] :].copy().view(kind)
        data.view(kind)[positions] += steps
    except (ValueError, IndexError, TypeError, struct.error) as error:
        raise SyncError(f"damaged patch: {error}") from error


def _whole(new: np.ndarray) -> np.ndarray:
    head = np.frombuffer(_HEAD.pack(_WHOLE, 0, 0, 0, 0), np.uint8)
    return np.concatenate([head, new])


def _gap_codes(gaps: np.ndarray) -> np.ndarray:
    """The gaps in whichever width takes the fewest bytes."""
    best: np.ndarray | None = None
    for dtype in (np.uint8, np.uint16, np.uint32):
        skip = np.iinfo(dtype).max
        skips = gaps // skip
        total = len(gaps) + int(skips.sum())
        if best is not None and best.nbytes <= total * np.dtype(dtype).itemsize:
            continue
        best = np.full(total, skip, dtype=dtype)
        best[np.cumsum(skips + 1) - 1] = gaps % skip
    assert best is not None
    return best


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchBase:
    """The version that a patch is applied to."""

    version: int
    """Version of the weights."""
    checksum: str
    """Checksum of the weights."""


Arrived = Callable[[], PatchBase]
"""Asked when a stream has ended: what it was, since its checksum is known only then."""


class PatchEncoder:
    """Turns a stream of weights into a stream of patches, or passes it through every so often."""

    def __init__(self, dense_every: int) -> None:
        """Start without a base.

        Args:
            dense_every: all weights go with every so many sends; 1 keeps no base.
        """
        self._dense_every = dense_every
        self._layout = WeightLayout()
        self._base: dict[str, Tensor] = {}
        self._have: PatchBase | None = None
        self._since_dense = 0
        self.checksum = ""
        """Of the weights last encoded, patched or not."""

    @property
    def base(self) -> PatchBase | None:
        """The version that the next stream is relative to; None if it will hold all weights."""
        return self._have if self._since_dense < self._dense_every else None

    def forget(self) -> None:
        """Send all weights next time."""
        self._have = None

    def encode(
        self, weights: Iterable[tuple[str, Tensor]], version: int
    ) -> Iterator[tuple[str, Tensor]]:
        """The pairs to move; complete when it ends.

        Raises:
            SyncError: the weights changed their layout.
        """
        base, self._have = self.base, None
        digest = WeightDigest()
        for record, tensor in self._layout.watch(weights):
            digest.add(replace(record, digest=tensor_digest(tensor)))
            if base is None:
                if self._dense_every > 1:
                    self._keep(record.name, tensor)
                yield record.name, tensor
                continue
            new, old = flat_bytes(tensor), self._base[record.name]
            patch = make_patch(old.numpy(), new.numpy(), tensor.element_size())
            if patch is not None:
                old.copy_(new)
                yield record.name, torch.from_numpy(patch)
        self.checksum = digest.hexdigest()
        self._since_dense = 1 if base is None else self._since_dense + 1
        if self._dense_every > 1:
            self._have = PatchBase(version=version, checksum=self.checksum)

    def _keep(self, name: str, tensor: Tensor) -> None:
        data = flat_bytes(tensor)
        if name in self._base:
            self._base[name].copy_(data)
        else:
            self._base[name] = data.clone()


class PatchDecoder:
    """The inverse of `PatchEncoder`; keeps the weights that the next patch will need."""

    def __init__(self) -> None:
        self._kept: dict[str, Tensor] = {}
        self._have: PatchBase | None = None

    @property
    def have(self) -> PatchBase | None:
        """The version that a patch could be applied to."""
        return self._have

    def forget(self) -> None:
        """Give the kept weights back."""
        self._kept, self._have = {}, None

    def expect(self, base: PatchBase) -> None:
        """Check that a patch of this base can be applied.

        Raises:
            SyncError: other weights are kept, or none.
        """
        if self._have != base:
            held = f"version {self._have.version}" if self._have else "none"
            raise SyncError(
                f"a patch of version {base.version} came, but this receiver holds {held}; it needs "
                "all weights"
            )

    def dense(
        self, weights: Iterable[tuple[str, Tensor]], arrived: Arrived, *, keep: bool
    ) -> Iterator[tuple[str, Tensor]]:
        """Pass all weights through, keeping a copy for the patches to come.

        Patches are applied by the processor, so the copies are in main memory.
        """
        self._have = None
        for name, tensor in weights:
            if keep:
                kept = self._kept.get(name)
                if kept is None or kept.shape != tensor.shape or kept.dtype != tensor.dtype:
                    self._kept[name] = tensor.detach().to("cpu", copy=True).contiguous()
                else:
                    kept.copy_(tensor)
            yield name, self._kept[name] if keep and tensor.device.type == "cpu" else tensor
        if keep:
            self._have = arrived()

    def apply(
        self, patches: Iterable[tuple[str, Tensor]], base: PatchBase, arrived: Arrived
    ) -> Iterator[tuple[str, Tensor]]:
        """Bring the kept weights up to date, check them, and yield them all.

        Raises:
            SyncError: the kept weights are not the base, or did not become the new ones.
        """
        self.expect(base)
        self._have = None
        for name, patch in patches:
            if name not in self._kept:
                raise SyncError(f"patch of {name!r}, a weight that was never sent")
            kept = self._kept[name]
            apply_patch(flat_bytes(kept).numpy(), patch.cpu().numpy(), kept.element_size())
        new = arrived()
        check_all(self._checksum(), new.checksum, new.version)
        self._have = new
        yield from self._kept.items()

    def _checksum(self) -> str:
        digest = WeightDigest()
        for name, tensor in self._kept.items():
            record: TensorRecord = record_of(name, tensor)
            digest.add(replace(record, digest=tensor_digest(tensor)))
        return digest.hexdigest()
