from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.errors import SyncError
from agentrl.sync.wire.patches import PatchBase, PatchDecoder, PatchEncoder, apply_patch, make_patch


@settings(deadline=None, max_examples=200)
@given(
    st.sampled_from([1, 2, 4, 8]),
    st.integers(0, 3000),
    st.floats(0, 1),
    st.sampled_from([1, 2, 40000]),
    st.integers(0, 99),
)
def test_a_patch_gives_back_every_bit(
    width: int, length: int, share: float, step: int, seed: int
) -> None:
    """Fails if a gap of exactly 255, a step of -128 or a wrap around is lost."""
    rng = np.random.default_rng(seed)
    old = rng.integers(0, 256, length * width, dtype=np.uint8)
    new = old.copy()
    places = np.flatnonzero(rng.random(length) < share**3)
    if width in (2, 4):
        new.view(f"<i{width}")[places] += rng.integers(-step, step + 1, len(places)).astype(
            f"i{width}"
        )
    else:
        new[places] ^= 1
    patch = make_patch(old, new, width)
    if patch is None:
        assert np.array_equal(old, new)
        return
    assert patch.nbytes <= new.nbytes + 64
    apply_patch(old, patch, width)
    assert np.array_equal(old, new)


@pytest.mark.parametrize("gap", [0, 1, 254, 255, 256, 510, 65534, 65535, 65536, 200_000])
@pytest.mark.parametrize("step", [1, -1, 127, -127, -128, 128, 32767])
def test_gaps_and_steps_at_the_edges_of_their_codes(gap: int, step: int) -> None:
    old = np.zeros(2 * (gap + 2 + 100_000), dtype=np.uint8)
    new = old.copy()
    new.view("<i2")[[gap, gap + 1, len(new) // 2 - 1]] += np.int16(step)
    patch = make_patch(old, new, 2)
    assert patch is not None
    assert patch.nbytes < 2000
    apply_patch(old, patch, 2)
    assert np.array_equal(old, new)


def weights(seed: int) -> list[tuple[str, torch.Tensor]]:
    torch.manual_seed(seed)
    return [("a", torch.randn(300, 7).bfloat16()), ("n", torch.tensor(3.0)), ("z", torch.zeros(0))]


def nudged(old, places: int) -> list[tuple[str, torch.Tensor]]:
    out = [(name, tensor.clone()) for name, tensor in old]
    out[0][1].view(torch.int16).view(-1)[:places] += 1
    return out


def test_patches_between_dense_sends() -> None:
    encoder, decoder = PatchEncoder(3), PatchDecoder()
    now, sizes = weights(0), []
    before: PatchBase | None = None
    for version in range(1, 8):
        base = encoder.base
        assert base == (None if version in (1, 4, 7) else before)
        moved = [(n, t.clone()) for n, t in encoder.encode(iter(now), version)]
        sizes.append(sum(t.nbytes for _, t in moved))
        new = PatchBase(version=version, checksum=encoder.checksum)
        if base is None:
            got = list(decoder.dense(moved, lambda new=new: new, keep=True))
        else:
            got = list(decoder.apply(moved, base, lambda new=new: new))
        assert [name for name, _ in got] == ["a", "n", "z"]
        assert all(torch.equal(g, w) for (_, g), (_, w) in zip(got, now, strict=True))
        before, now = new, nudged(now, 5 * version)
    assert sizes[0] == sizes[3] == sizes[6] > 10 * max(sizes[1], sizes[2])


def test_a_patch_on_another_base_is_refused() -> None:
    """Fails if the decoder applies a patch to whatever it has."""
    encoder, decoder = PatchEncoder(9), PatchDecoder()
    first = list(encoder.encode(weights(0), 1))
    one = PatchBase(version=1, checksum=encoder.checksum)
    two = list(encoder.encode(nudged(weights(0), 3), 2))
    after = PatchBase(version=2, checksum=encoder.checksum)
    other = PatchBase(version=1, checksum="other")
    with pytest.raises(SyncError, match="holds none"):
        list(decoder.apply(two, one, lambda: after))
    list(decoder.dense(first, lambda: other, keep=True))
    with pytest.raises(SyncError, match="holds version 1"):
        list(decoder.apply(two, one, lambda: after))


def test_a_damaged_patch_is_found_and_the_base_not_used_again() -> None:
    encoder, decoder = PatchEncoder(9), PatchDecoder()
    one = PatchBase(version=1, checksum="one")
    list(decoder.dense(encoder.encode(weights(0), 1), lambda: one, keep=True))
    patches = [(n, t.clone()) for n, t in encoder.encode(nudged(weights(0), 3), 2)]
    patches[0][1][-1] ^= 3
    new = PatchBase(version=2, checksum=encoder.checksum)
    with pytest.raises(SyncError, match="checksum"):
        list(decoder.apply(patches, one, lambda: new))
    assert decoder.have is None
    patches[0] = (patches[0][0], patches[0][1][:-1])
    list(decoder.dense(weights(0), lambda: one, keep=True))
    with pytest.raises(SyncError, match="damaged patch"):
        list(decoder.apply(patches, one, lambda: new))
