"""Attention on a CPU that gives a token the same bits in any company.

Which requests are computed together hangs on timing, and a matrix product rounds by its shape. In
float32, MKL takes other kernels below 4 and below 16 columns, and adds long sums in blocks that
depend on their length. So here all float32 products over keys have one shape: the queries of one
token, padded to a multiple of `FEW`, and `TILE` keys after `TILE` keys. Keys behind a token weigh
exactly 0, so a wider row changes nothing. Products of narrow dtypes (bfloat16 with AVX-512) have
the same bits in every shape of at least two rows whose sums are of at most 1024 numbers; longer
ones are added in blocks of those.

Legend: `_B` products side by side, `_C` queries, `_T` keys, `_D` head size.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from agentrl.serving.cache_room import TILE

FEW = 4
"""Fewest rows of a product that has the bits of larger ones."""
_NARROW = 1024
"""Keys of a product of a narrow dtype: oneDNN takes another kernel for longer sums."""


def row_attention(
    query_BCD: Tensor,
    keys_BTD: Tensor,
    values_BTD: Tensor,
    mask: Tensor,
    *,
    softcap: float | None = None,
    sinks_BC: Tensor | None = None,
) -> Tensor:
    """Attention [B, C, D] of C queries each to the keys that their mask leaves.

    torch's fused kernel for a CPU is made for many queries, and for one takes twice as long. Keys
    stand to the left of their product, which is 2.5 times as fast as the other way round.

    Args:
        query_BCD: multiplied with the scale already.
        keys_BTD: T is a multiple of `TILE`.
        values_BTD: finite also where the mask hides them.
        mask: 0 or -inf, [B, 1, T] or [1, C, T], in float32 or wider.
        softcap: bound of the scores.
        sinks_BC: scores of keys without a value, behind all others.
    """
    wide = mask.dtype == query_BCD.dtype
    count = query_BCD.shape[1]
    missing = -count % FEW if wide else max(0, 2 - count)
    if missing:
        query_BCD = pad(query_BCD, (0, 0, 0, missing))
    scores = torch.bmm(keys_BTD, query_BCD.transpose(1, 2)).transpose(1, 2)[:, :count]
    scores = scores.to(mask.dtype, memory_format=torch.contiguous_format)
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    masked = scores.add_(mask)
    if sinks_BC is None:
        probs = torch.softmax(masked, dim=-1).to(query_BCD.dtype)
    else:
        masked = torch.cat([masked, sinks_BC.to(mask.dtype)[..., None]], dim=-1)
        probs = torch.softmax(masked, dim=-1)[..., :-1].to(query_BCD.dtype)
    if missing:
        probs = pad(probs, (0, 0, 0, missing))
    if not wide:
        out = torch.bmm(probs[:, :, :_NARROW], values_BTD[:, :_NARROW])
        if values_BTD.shape[1] > _NARROW:
            total = out.to(mask.dtype)
            for start in range(_NARROW, values_BTD.shape[1], _NARROW):
                tile = slice(start, start + _NARROW)
                total += torch.bmm(probs[:, :, tile], values_BTD[:, tile])
            out = total.to(out.dtype)
        return out[:, :count]
    out = torch.bmm(probs[:, :, :TILE], values_BTD[:, :TILE])
    for start in range(TILE, values_BTD.shape[1], TILE):
        tile = slice(start, start + TILE)
        out.baddbmm_(probs[:, :, tile], values_BTD[:, tile])
    return out[:, :count]
