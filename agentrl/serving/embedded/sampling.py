"""Drawing tokens from logits, and the log-probability of what was drawn.

A token is drawn by inverting the cumulative distribution at one uniform number per row. The
uniform comes from the request's own generator, so a seeded request draws the same tokens whatever
else shares its batch. The sum runs in float64: in float32 the tail of a 50k vocabulary is lost.

Legend: `_N` rows, `_V` vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

_BLOCK = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenDraw:
    """Sampling of one row: temperature, nucleus bound and its uniform draw."""

    temperature: float
    """Divides the logits; 0 takes the largest."""
    top_p: float
    """Nucleus bound in (0, 1]."""
    uniform: float
    """In [0, 1)."""


def sample(logits_NV: torch.Tensor, draws: Sequence[TokenDraw]) -> tuple[list[int], list[float]]:
    """Draw one token per row.

    Args:
        logits_NV: [N, V] in any floating type.
        draws: N of them.

    Returns:
        N token ids, and N natural log-probabilities under softmax(logits / temperature) over the
        whole vocabulary: the number the trainer computes, whatever `top_p` left out. A greedy row
        reports temperature 1.
    """
    # In whole blocks: exponentials of what is left of a vector are computed otherwise, and where
    # it ends would hang on the number of rows.
    size = logits_NV.shape[1]
    mass_NV = logits_NV.new_empty((len(draws), size + -size % _BLOCK), dtype=torch.float32)
    mass_NV[:, :size] = logits_NV
    mass_NV[:, size:] = float("-inf")
    # In place from here on: a new tensor of this size costs more in page faults than its sums.
    temperatures = [draw.temperature or 1.0 for draw in draws]
    temperatures_N1 = mass_NV.new_tensor(temperatures)[:, None]
    if any(value != 1.0 for value in temperatures):
        mass_NV /= temperatures_N1
    peak_N, best_N = mass_NV.max(dim=-1)
    mass_NV.sub_(peak_N[:, None]).exp_()
    total_N = mass_NV.sum(dim=-1)
    ids_N = best_N
    drawn = [row for row, draw in enumerate(draws) if draw.temperature > 0]
    if len(drawn) == len(draws):
        ids_N = _invert(mass_NV, draws)
    elif drawn:
        ids_N[drawn] = _invert(mass_NV[drawn], [draws[row] for row in drawn])
    drawn_N = (logits_NV.gather(1, ids_N[:, None]).float() / temperatures_N1).squeeze(1)
    numbers = zip(drawn_N.tolist(), peak_N.tolist(), total_N.tolist(), strict=True)
    # One by one: torch's logarithm of several at once may differ from that of one.
    return ids_N.tolist(), [drawn - peak - math.log(total) for drawn, peak, total in numbers]


def _invert(mass_NV: torch.Tensor, draws: Sequence[TokenDraw]) -> torch.Tensor:
    """The token at which the running sum of `mass` first exceeds uniform * total.

    Two levels, blocks and then tokens of one block: the float64 sums touch a hundredth of the
    vocabulary.
    """
    narrow = [row for row, draw in enumerate(draws) if draw.top_p < 1]
    if narrow:
        bounds = mass_NV.new_tensor([draws[row].top_p for row in narrow])
        mass_NV = mass_NV.index_copy(
            0,
            torch.tensor(narrow, device=mass_NV.device),
            _nucleus(mass_NV[narrow], bounds),
        )
    blocks_NBW = mass_NV.unflatten(1, (-1, _BLOCK))
    ends_NB = blocks_NBW.sum(dim=-1).double().cumsum(dim=-1)
    uniform_N = ends_NB.new_tensor([draw.uniform for draw in draws])
    target_N1 = (uniform_N * ends_NB[:, -1])[:, None]
    block_N1 = _first_above(ends_NB, target_N1)
    before_N1 = torch.where(block_N1 > 0, ends_NB.gather(1, (block_N1 - 1).clamp_min(0)), 0.0)
    rows_N = torch.arange(len(draws), device=mass_NV.device)
    inner_NW = blocks_NBW[rows_N, block_N1.squeeze(1)].double().cumsum(dim=-1)
    return (block_N1 * _BLOCK + _first_above(inner_NW, target_N1 - before_N1)).squeeze(1)


def _first_above(cumulative: torch.Tensor, target_N1: torch.Tensor) -> torch.Tensor:
    """First index whose running sum exceeds the target; never one without mass of its own.

    Rounding may put the target at the very end; the answer is then the last index with mass.
    """
    found = torch.searchsorted(cumulative, target_N1, right=True)
    last = torch.searchsorted(cumulative, cumulative[:, -1:].contiguous())
    return torch.minimum(found, last)


def _nucleus(mass_NV: torch.Tensor, top_p_N: torch.Tensor) -> torch.Tensor:
    """Zero everything outside the smallest set of tokens whose share of the mass reaches top-p."""
    ordered_NV, order_NV = mass_NV.sort(dim=-1, descending=True)
    before_NV = ordered_NV.cumsum(dim=-1) - ordered_NV
    bound_N1 = (top_p_N * mass_NV.sum(dim=-1))[:, None]
    ordered_NV = torch.where(before_NV < bound_N1, ordered_NV, 0.0)
    return torch.zeros_like(mass_NV).scatter(1, order_NV, ordered_NV)
