from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.errors import SyncError
from agentrl.sync.wire.buckets import BucketHeader, pack, unpack
from agentrl.sync.wire.checksum import WeightDigest, described
from agentrl.sync.wire.tensors import ALIGNMENT, WeightLayout

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool]
shapes = st.lists(st.integers(0, 7), max_size=3).map(tuple)
layouts = st.lists(st.tuples(st.sampled_from(DTYPES), shapes), max_size=12)


def make(layout, seed: int) -> list[tuple[str, torch.Tensor]]:
    torch.manual_seed(seed)
    return [
        (f"layer.{i}", torch.randint(0, 100, shape).to(dtype))
        for i, (dtype, shape) in enumerate(layout)
    ]


def moved(weights, size: int, count: int = 2):
    """Every bucket through the wire, and its buffer overwritten as soon as it may be."""
    buffers = [torch.full((size,), 255, dtype=torch.uint8) for _ in range(count)]
    for buffer, header in pack(weights, buffers):
        yield buffer.clone(), BucketHeader.from_json(header.to_json())


@settings(deadline=None)
@given(layouts, st.integers(1, 400), st.integers(0, 3))
def test_what_is_packed_comes_out_bit_for_bit(layout, size: int, seed: int) -> None:
    """Fails if a split tensor loses the byte at a bucket's edge, or an empty one is dropped."""
    weights = make(layout, seed)
    out = [(n, t.clone()) for n, t in unpack(moved(weights, size), version=1)]
    assert [name for name, _ in out] == [name for name, _ in weights]
    for (_, sent), (_, got) in zip(weights, out, strict=True):
        assert got.dtype == sent.dtype
        assert got.shape == sent.shape
        assert torch.equal(got, sent)


@settings(deadline=None)
@given(layouts, st.integers(1, 400))
def test_buckets_are_bounded_aligned_and_ended_once(layout, size: int) -> None:
    headers = [header for _, header in moved(make(layout, 0), size)]
    assert [header.last for header in headers] == [False] * (len(headers) - 1) + [True]
    for header in headers:
        assert header.size_bytes <= size
        assert all(piece.record.offset % ALIGNMENT == 0 for piece in header.pieces)


def test_a_flipped_byte_is_named_before_its_tensor_is_used() -> None:
    """Fails if `unpack` trusts the bytes, or looks only when the stream has ended."""
    weights = make([(torch.float32, (5,)), (torch.float32, (6,))], 0)
    buckets = list(moved(weights, 4096))
    buckets[0][0][ALIGNMENT] ^= 1
    stream = unpack(buckets, version=3)
    assert next(stream)[0] == "layer.0"
    with pytest.raises(SyncError, match=r"'layer\.1' arrived damaged"):
        next(stream)


def test_a_stream_cut_short_is_no_stream() -> None:
    weights = make([(torch.float32, (50,)), (torch.float32, (60,))], 0)
    buckets = list(moved(weights, 128))
    with pytest.raises(SyncError, match="without a last bucket"):
        list(unpack(buckets[:-1], version=3))
    with pytest.raises(SyncError, match="begins at byte"):
        list(unpack(buckets[:1] + buckets[2:], version=3))


def test_the_checksum_sees_names_shapes_dtypes_order_and_bytes() -> None:
    def checksum(*pairs) -> str:
        digest = WeightDigest()
        for name, tensor in pairs:
            digest.add(described(name, tensor))
        return digest.hexdigest()

    one, two = torch.zeros(4), torch.ones(4)
    different = {
        checksum(("a", one), ("b", two)),
        checksum(("b", two), ("a", one)),
        checksum(("a", two), ("b", one)),
        checksum(("a", one), ("c", two)),
        checksum(("a", one.view(2, 2)), ("b", two)),
        checksum(("a", one.view(torch.int32)), ("b", two)),
        checksum(("a", one)),
        checksum(),
    }
    assert len(different) == 8


def test_a_changed_layout_is_named() -> None:
    layout = WeightLayout()
    weights = [("a", torch.zeros(2)), ("b", torch.zeros(3))]
    assert len(list(layout.watch(weights))) == 2
    with pytest.raises(SyncError, match=r"place 1: got 'b' float32 \(4,\)"):
        list(layout.watch([weights[0], ("b", torch.zeros(4))]))
    with pytest.raises(SyncError, match="end before 'b'"):
        list(layout.watch(weights[:1]))
    with pytest.raises(SyncError, match=r"'c'.* had nothing"):
        list(layout.watch([*weights, ("c", torch.zeros(1))]))
    with pytest.raises(SyncError, match="sent before"):
        list(WeightLayout().watch([weights[0], weights[0]]))
