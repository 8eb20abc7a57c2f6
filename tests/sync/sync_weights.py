"""Small weights."""

from __future__ import annotations

import torch

Weights = list[tuple[str, torch.Tensor]]


def weights(seed: int = 0) -> Weights:
    """Several dtypes, an empty tensor, a scalar, and one that is not contiguous."""
    torch.manual_seed(seed)
    return [
        ("model.embed", torch.randn(700, 300)),
        ("model.up", torch.randn(64, 33).bfloat16()),
        ("model.down", torch.randn(40, 50).t()),
        ("model.none", torch.zeros(0, 4)),
        ("model.scale", torch.tensor(1.5 + seed)),
        ("model.ids", torch.arange(999)),
    ]


def nudged(old: Weights, seed: int) -> Weights:
    """The same with a few bits changed."""
    torch.manual_seed(seed)
    out = []
    for name, tensor in old:
        new = tensor.clone()
        if new.dtype == torch.bfloat16:
            new.view(torch.int16)[torch.rand(new.shape) < 0.01] += 1
        out.append((name, new))
    return out


def assert_same(got, sent) -> None:
    got = [(name, tensor.clone()) for name, tensor in got]
    assert [name for name, _ in got] == [name for name, _ in sent]
    for (name, ours), (_, theirs) in zip(got, sent, strict=True):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape), name
        assert torch.equal(ours, theirs), name
