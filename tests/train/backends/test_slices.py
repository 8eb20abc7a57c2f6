"""What `slices` asks of torch's FSDP2, where torch may not have it yet."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from agentrl.errors import ConfigError
from agentrl.train.backends.slices import _sum_unused


class LoneExpert(nn.Linear):
    """One expert among others, with a matrix of its own."""


class OldPart(nn.Module):
    """A part as an older torch makes it: it has no setter for parameters that nothing used."""

    def __init__(self, *children: nn.Module) -> None:
        super().__init__()
        self.children_ = nn.ModuleList(children)


class NewPart(OldPart):
    """The same of a newer torch."""

    told: bool = False

    def set_reduce_scatter_unused_params(self, value: bool) -> None:
        self.told = value


def test_an_older_torch_is_refused_only_where_a_rank_may_use_no_expert():
    """Fails if FSDP2 asks an older torch for what it has not, or trains experts there."""
    dense: Any = OldPart(nn.Linear(2, 2))
    sparse: Any = OldPart(LoneExpert(2, 2), LoneExpert(2, 2))
    _sum_unused(dense, 2)
    _sum_unused(sparse, 1)
    with pytest.raises(ConfigError, match=r"experts one by one.*deepspeed"):
        _sum_unused(sparse, 2)


def test_a_newer_torch_sums_what_nothing_used():
    sparse: Any = NewPart(LoneExpert(2, 2))
    _sum_unused(sparse, 2)
    assert sparse.told
