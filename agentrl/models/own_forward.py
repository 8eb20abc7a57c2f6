"""A model's own forward pass over a few short rows: the numbers that every other pass must give.

The trainer packs rows, the embedded engine decodes from a cache, and both put an attention of their
own in the place of the model's. A family of which they leave something out would be trained as
another model without a sound, so no model is used before its numbers on these rows are compared.

Legend: `_N` rows, `_L` tokens of each, `_E` width of the hidden states.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agentrl.machine.free_memory import available_bytes
from agentrl.models.rotary import rotary_limit
from agentrl.models.vision.reader import VisionReader, reader_of
from agentrl.types import ImageSpan

ROW_TOKENS = 24
"""Most tokens of a row of text."""
NARROW = 5
"""Tokens that a layer looks back on where its own window is longer than the rows."""
_SHARED = 0.3
"""Part of a row that the first rows have in common."""
_LENGTHS = (1.0, 0.75, 0.4, 0.6)
"""Lengths of the rows that are packed, as parts of the longest; all but the last share a prefix."""
_WINDOWS = ("sliding_window", "attention_chunk_size")
"""Names under which configs and layers keep how far a layer looks back."""
NARROW_DTYPES = (torch.bfloat16, torch.float16)
"""Dtypes whose rounding hides faults."""
_MOST_WIDENED = 4 * 1024**3
"""Bytes of a model in float32, beside its own weights, up to which it is compared in it too."""
_KINDS_OF_TOKENS = ("mm_token_type_ids", "token_type_ids")


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnRows:
    """Rows of one length for the own forward of a model."""

    ids_NL: Tensor
    """[N, L] int64, on the device of the model."""
    image: ImageSpan | None = None
    """In the only row, where there is one."""
    shaken: bool = False
    """Whether the embeddings are changed in their last bits, which shows what rounding does."""


def probe_ids(model: Any, rows: int = len(_LENGTHS)) -> np.ndarray:
    """[N, L] token ids without any that the config names; all rows but the last share a prefix.

    Args:
        model: whole; short rows where it reads no longer ones.
        rows: N.
    """
    text = model.config.get_text_config()
    bounds = (rotary_limit(model.config), getattr(text, "max_position_embeddings", None))
    length = min([ROW_TOKENS, *(bound for bound in bounds if type(bound) is int and bound > 1)])
    embeddings = model.get_input_embeddings()
    known = getattr(embeddings, "num_embeddings", None) or text.vocab_size
    ids = np.setdiff1d(np.arange(known), _named_ids(model.config))
    found = np.random.default_rng(0).choice(ids if len(ids) > 8 else known, (rows, length))
    shared = max(1, int(length * _SHARED))
    found[:-1, :shared] = found[0, :shared]
    return found


def probe_lengths(length: int) -> list[int]:
    """Tokens of each row that are packed, of `length` in all."""
    return [max(2, round(part * length)) for part in _LENGTHS]


def image_row(
    reader: VisionReader, ids: np.ndarray, *, config: Any
) -> tuple[np.ndarray, ImageSpan]:
    """Token ids with a small image among them, which is kept in no folder, and where it stands.

    Args:
        reader: of the model.
        ids: at least 12 tokens of text.
        config: of the model.
    """
    picture = reader.probes()[1]  # of several features in both directions
    grid = reader.expand(picture).grid
    # Some find their images by the token before.
    marker = getattr(config, "vision_start_token_id", None)
    before = [*ids[:4], *([] if marker is None else [marker])]
    features = int(np.prod(grid))
    row = np.array([*before, *([reader.placeholder_id] * features), *ids[4:12]], dtype=np.int64)
    span = ImageSpan(digest=picture.digest, start=len(before), tokens=features, grid=grid)
    return row, span


def _named_ids(config: Any) -> list[int]:
    """Ids of tokens that mean something to the model: padding, ends, images."""
    found: list[int] = []
    below = [value for value in vars(config).values() if hasattr(value, "get_text_config")]
    for part in (config, *below):
        for name, value in vars(part).items():
            if "token" in name and name.endswith(("_id", "_ids", "_index")):
                several = value if isinstance(value, list | tuple) else (value,)
                found += [number for number in several if type(number) is int]
    return found


@torch.no_grad()
def own_numbers(model: Any, rows: OwnRows) -> Tensor:
    """Numbers of a model's own forward pass, without packing, cache or attention of ours.

    Args:
        model: a language model; or one with a `value_head`, of which the body is read.
        rows: where they are read.

    Returns:
        [N, L - 1] log-probability of each token but the first; [N, L, E] hidden states of a body.
    """
    head = not hasattr(model, "value_head")
    part = model if head else model.body
    arguments: dict[str, Any] = {"input_ids": rows.ids_NL}
    known = inspect.signature(part.forward).parameters
    # Many pass it on to their body with others; a cache knows no model without attention.
    if "use_cache" in known or any(k.kind is k.VAR_KEYWORD for k in known.values()):
        arguments["use_cache"] = False
    reader = reader_of(model)
    if rows.image is not None and reader is not None:
        arguments |= _seen(reader, rows, known, rows.image)
    with _as_made(part), _shaken(part, on=rows.shaken):
        out = part(**arguments)
    if not head:
        return out.last_hidden_state.float()
    kind = torch.promote_types(out.logits.dtype, torch.float32)
    # Row by row: a float32 copy of all logits of a large vocabulary is large.
    found = [
        torch.log_softmax(logits_LV[:-1].to(kind), -1).gather(-1, ids_L[1:, None])[:, 0]
        for logits_LV, ids_L in zip(out.logits, rows.ids_NL, strict=True)
    ]
    return torch.stack(found)


def _seen(
    reader: VisionReader, rows: OwnRows, known: Mapping[str, Any], span: ImageSpan
) -> dict[str, Any]:
    """Pixels of the image, and which tokens are its own, for models that ask."""
    device = rows.ids_NL.device
    pixels = {name: value.to(device) for name, value in reader.read(span.digest).pixels.items()}
    kinds = torch.zeros_like(rows.ids_NL)
    kinds[:, span.start : span.end] = 1
    return {**pixels, **{name: kinds for name in _KINDS_OF_TOKENS if name in known}}


@contextmanager
def _as_made(model: Any) -> Iterator[None]:
    """Inside, the model has the plain attention of its family, and drops nothing out."""
    training = model.training
    configs = {
        id(module.config): module.config
        for module in model.modules()
        if hasattr(getattr(module, "config", None), "_attn_implementation")
    }
    before = [(config, config._attn_implementation) for config in configs.values()]
    model.eval()
    # What a family does to its scores stands in its plain attention; a fused one may leave it out.
    if getattr(model, "_supports_attention_backend", False):
        for config in configs.values():
            config._attn_implementation = "eager"
    try:
        yield
    finally:
        for config, name in before:
            config._attn_implementation = name
        model.train(training)


@contextmanager
def _shaken(model: Any, *, on: bool) -> Iterator[None]:
    """Inside, embeddings are larger or smaller by the last bit of their dtype, or of float32.

    Layers compute norms and probabilities in float32, also where weights are float64.
    """
    if not on:
        yield
        return

    def change(module: Any, args: Any, out: Tensor) -> Tensor:
        signs = np.random.default_rng(1).choice((-1.0, 1.0), tuple(out.shape))
        wide = torch.promote_types(out.dtype, torch.float32)
        factor = 1.0 + rounding(out.dtype) * torch.as_tensor(signs, dtype=wide, device=out.device)
        return (out.to(wide) * factor).to(out.dtype)

    hook = model.get_input_embeddings().register_forward_hook(change)
    try:
        yield
    finally:
        hook.remove()


def is_widened(model: Any) -> bool:
    """True if `widened` changes a model.

    Not where no weight has 16 bits, or copies need more than `_MOST_WIDENED` bytes or than the GPU
    or main memory has left, or a weight is quantised or divided among ranks.
    """
    weights, narrow = list(model.parameters()), _narrow_tensors(model)
    size = sum(4 * each.numel() for each in narrow)
    whole = all(type(each) is torch.nn.Parameter and each.is_floating_point() for each in weights)
    whole = whole and all(each.numel() and not each.is_meta for each in weights)
    if not (narrow and whole and size <= _MOST_WIDENED):
        return False
    cuda = weights[0].is_cuda
    free = torch.cuda.mem_get_info(weights[0].device)[0] if cuda else available_bytes()
    return free is None or size < free


def _narrow_tensors(model: Any) -> list[Tensor]:
    return [each for each in (*model.parameters(), *model.buffers()) if each.dtype in NARROW_DTYPES]


@contextmanager
def widened(model: Any) -> Iterator[None]:
    """Inside, weights of 16 bits are float32, in copies; the same tensors are back afterwards."""
    before = [(each, each.data) for each in _narrow_tensors(model)]
    try:
        for each, data in before:
            each.data = data.float()
        yield
    finally:
        for each, data in before:
            each.data = data


def rounding(dtype: torch.dtype) -> float:
    """Relative size of a last bit, of float32 for wider dtypes."""
    return max(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps)


@contextmanager
def narrowed(model: Any, window: int | None) -> Iterator[None]:
    """Inside, no layer with a window looks further back than `window`; None changes nothing.

    The mask of the own forward reads the config, and our attention what a layer passes: both are
    changed, so that rows need not be longer than the window for it to matter.
    """
    found = [] if window is None else _windows(model, longer_than=window)
    try:
        for owner, name, _ in found:
            setattr(owner, name, window)
        yield
    finally:
        for owner, name, value in found:
            setattr(owner, name, value)


def hides_nothing(model: Any, length: int) -> bool:
    """True if layers of the model have a window, and rows of `length` do not reach its end."""
    return bool(_windows(model, longer_than=length - 1))


def _windows(model: Any, *, longer_than: int) -> list[tuple[Any, str, int]]:
    owners: dict[int, Any] = {}
    for module in model.modules():
        owners[id(module)] = module
        config = getattr(module, "config", None)
        if config is not None and hasattr(config, "get_text_config"):
            owners.setdefault(id(config), config)
            text = config.get_text_config()
            owners.setdefault(id(text), text)
    return [
        (owner, name, value)
        for owner in owners.values()
        for name in _WINDOWS
        if type(value := getattr(owner, name, None)) is int and value > longer_than
    ]
