"""Sums of gradients on a CPU lie where they have always lain."""

from __future__ import annotations

import pytest
import torch

from agentrl.train.optim.gradient_sums import GradientSums


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sums_keep_their_memory_from_the_first_pass_on(dtype: torch.dtype) -> None:
    """Fails if a sum stays among the activations of the pass that made it, or if a second model
    writes into the sums of the first."""
    params = {"w": torch.nn.Parameter(torch.randn(4, 3).to(dtype))}
    others = {"w": torch.nn.Parameter(torch.randn(4, 3).to(dtype))}
    sums, beside = GradientSums(params), GradientSums(others)
    places = [kept.data_ptr() for kept in (*sums._sums.values(), *beside._sums.values())]
    for _ in range(3):
        for inputs in (1.0, 2.0):
            (params["w"] * inputs).sum().backward()
            (others["w"] * 10 * inputs).sum().backward()
        sums.add(beside)
        assert list(beside) == []
        ((_, total),) = sums
        assert torch.equal(total, torch.full((4, 3), 33.0))
        assert total.data_ptr() == places[0]
        sums.clear()
        assert list(sums) == []
        # Another order: the sum of the other model comes first.
        others["w"].sum().backward()
        sums.add(beside)
        params["w"].sum().backward()
        others["w"].sum().backward()
        ((_, total),), ((_, rest),) = sums, beside
        assert torch.equal(total, torch.full((4, 3), 2.0))
        assert torch.equal(rest, torch.ones(4, 3))
        assert [total.data_ptr(), rest.data_ptr()] == places
        sums.clear()
        beside.clear()
