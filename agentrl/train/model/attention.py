"""Attention over packed rows: every row attends causally to itself and to nothing else.

Tokens of an image attend to each other in both directions where the model reads it as a whole.

Registered with transformers' `AttentionInterface` under a name of our own, so that no model file is
touched. Rows are distinguished by their segments, not by a [T, T] mask; rows with a common prefix
share its keys and values. `model.attention` says which kernel computes it; `auto` takes on a GPU
FlexAttention, all rows in one kernel, and where it has none torch's fused kernels, row by row; on a
CPU plain batched matrix products (`cpu_rows.py`).

Legend: `H` query heads, `K` key heads, `T` packed tokens, `D` head dimension.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from agentrl.errors import ConfigError, TrainError
from agentrl.models.attention_layers import (
    CarryingMask,
    ScoreChanges,
    Window,
    at_positions,
    first_seen,
    layer_window,
    unsupported,
    window_size,
)
from agentrl.models.fused_attention import formed_attention, without_plans
from agentrl.models.vision.embed import language_model
from agentrl.models.vision.reader import reader_of
from agentrl.train.model.cpu_rows import CpuRows
from agentrl.train.model.flex import flexible_attention
from agentrl.train.model.kernels.choose import (
    AUTO,
    WRITTEN_OUT,
    AttentionCall,
    chosen,
    kernel_of,
    note_used,
)
from agentrl.train.model.kernels.varlen import flash_rows, torch_rows, varlen_attention
from agentrl.train.model.reading import ATTENTION, Reading, layout_in, reading_of
from agentrl.train.model.segments import (
    Segments,
    mutual_within,
    path_ranges,
    positions,
    starts,
)

_NO_CHANGES = ScoreChanges()
_ROWS_KERNELS = {"torch_varlen": torch_rows, "flash": flash_rows}


@contextmanager
def packed_attention(model: Any) -> Iterator[None]:
    """Inside the block the model runs on packed rows; the engine's own choice comes back after.

    Forward and backward both belong inside: with gradient checkpointing the backward pass runs the
    attention again. A model that reads its rows one by one does so with its own attention.

    Raises:
        ConfigError: `model.attention` names a kernel, and that of the model itself is used.
    """
    reading = reading_of_model(model)
    if reading is Reading.ROWS and kernel_of(model) != AUTO:
        raise ConfigError(
            f"model.attention is {kernel_of(model)}, but {type(model).__name__} reads its rows one "
            "by one, with an attention of its own; valid here: auto"
        )
    if reading is not Reading.ROWS:
        with _switched(model, reading.implementation):
            yield
    elif getattr(model.config.get_text_config(), "attn_logit_softcapping", None) is not None:
        # Torch's fused kernel leaves the cap out without a word.
        with _switched(model, "eager"):
            yield
    else:
        yield


def reading_of_model(model: Any) -> Reading:
    """The way in which a model reads the rows of a micro-batch."""
    return reading_of(model, _switched)


@contextmanager
def _switched(model: Any, to: str) -> Iterator[None]:
    configs = _attention_configs(model)
    before = [config._attn_implementation for config in configs]
    for config in configs:
        config._attn_implementation = to
    try:
        yield
    finally:
        for config, name in zip(configs, before, strict=True):
            config._attn_implementation = name


def _attention_configs(model: Any) -> list[Any]:
    """Every distinct config in the model; all its attention layers read one of them.

    Of a vision-language model those of the language part alone: the tower attends to all of an
    image, and to one image at a time.
    """
    part = model if reader_of(model) is None else language_model(model)
    configs = {id(part.config): part.config}
    for module in part.modules():
        config = getattr(module, "config", None)
        if config is not None and hasattr(config, "_attn_implementation"):
            configs[id(config)] = config
    return list(configs.values())


def _packed_rows(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    segments: Segments | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The attention function that transformers calls.

    Args:
        module: the attention layer; its dropout is not applied, because the log-probabilities of
            the trainer and of the sampler must be those of one function.
        query: [1, H, T, D].
        key: [1, K, T, D].
        value: [1, K, T, D].
        attention_mask: None; packed rows need none. A layer that hands nothing else on gets its
            segments here, in a `CarryingMask`.
        scaling: factor on the scores; default 1 / sqrt(D).
        sliding_window: keys a query may look back on, itself included.
        segments: what the T tokens are.
        softcap: bound of the scores.
        s_aux: [H] scores of sinks.
        kwargs: what else the model passes; features that change the scores are refused.

    Returns:
        [1, T, H, D], and None for the attention weights.
    """
    if isinstance(attention_mask, CarryingMask):
        segments, attention_mask = attention_mask.content, None
    layout_in(segments, module)
    assert segments is not None
    used = unsupported(kwargs)
    if used or attention_mask is not None:
        raise TrainError(
            f"{type(module).__name__} uses {used or ['attention_mask']}, which attention over "
            "packed rows does not implement"
        )
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if getattr(module, "attn_temperature_tuning", False):
        query = at_positions(module, query, torch.tensor(positions(segments), device=query.device))
    window = layer_window(module, sliding_window)
    if window is not None and window_size(window) >= segments.num_tokens:
        window = None
    call = AttentionCall(
        device=query.device,
        dtype=query.dtype,
        key_width=query.shape[-1],
        value_width=value.shape[-1],
        softcap=softcap is not None,
        sinks=s_aux is not None,
        mutual=bool(segments.mutual),
    )
    kernel = chosen(segments.kernel, call)
    note_used(kernel)
    given = (query, key, value, segments, window, scale)
    if kernel == WRITTEN_OUT:
        return CpuRows.apply(*given, softcap, s_aux), None
    if kernel in _ROWS_KERNELS:
        return varlen_attention(_ROWS_KERNELS[kernel], *given, softcap), None
    changes = ScoreChanges(softcap=softcap, sinks=s_aux)
    if kernel == "flex":
        return flexible_attention(*given, changes), None
    without_plans(query.device)
    return fused_attention(*given, changes), None


AttentionInterface.register(ATTENTION, _packed_rows)


def fused_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    segments: Segments,
    sliding_window: Window | None,
    scale: float,
    changes: ScoreChanges = _NO_CHANGES,
) -> Tensor:
    """[1, T, H, D] through torch's fused kernels, segment by segment.

    These know neither sinks nor a soft cap: with them all scores of a segment are formed.
    """
    share = query.shape[1] // key.shape[1]
    outputs = []
    for segment, (start, length) in enumerate(zip(starts(segments), segments.lengths, strict=True)):
        ranges = path_ranges(segments, segment)
        k, v = (
            torch.cat([tensor[:, :, begin:end] for begin, end in ranges], dim=2)
            for tensor in (key, value)
        )
        mask = None
        mutual = mutual_within(segments, start, start + length)
        # The last key is the last query's own.
        depth = k.shape[2] - length
        if sliding_window is not None or depth or mutual or not changes.is_plain:
            mask = torch.ones(length, k.shape[2], dtype=torch.bool, device=query.device).tril(depth)
            for begin, end in mutual:
                mask[begin:end, depth + begin : depth + end] = True
            if sliding_window is not None:
                at = torch.arange(k.shape[2], device=query.device)
                mask &= at >= first_seen(at[depth:], sliding_window)[:, None]
        if mask is not None and not changes.is_plain:
            k, v = (tensor.repeat_interleave(share, dim=1) for tensor in (k, v))
            outputs.append(
                formed_attention(query[:, :, start : start + length], k, v, mask, scale, changes)
            )
            continue
        # Of torch's kernels for a GPU only the one for narrow dtypes without a mask knows groups:
        # for all others repeated heads cost less than scores of every pair.
        grouped = share == 1 or (mask is None and query.dtype in (torch.bfloat16, torch.float16))
        if not grouped:
            k, v = (tensor.repeat_interleave(share, dim=1) for tensor in (k, v))
        outputs.append(
            scaled_dot_product_attention(
                query[:, :, start : start + length],
                k,
                v,
                attn_mask=mask,
                is_causal=mask is None,
                scale=scale,
                enable_gqa=grouped and share > 1,
            )
        )
    return torch.cat(outputs, dim=2).transpose(1, 2)
