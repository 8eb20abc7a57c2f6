"""Ways in which a model reads the rows of a micro-batch: packed, or one after the other.

Packed rows need an attention function of ours, and layers that look back through it alone. Which
models have that is not asked of their names: a few tokens are read once, as two rows, and compared
with what the model itself makes of each. Layers that hand nothing on but their mask get the layout
as their mask, also where they call torch's attention by themselves. A model that reads anything
else out of packed rows has its rows read one by one, by its own attention, with a warning.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import replace
from enum import Enum
from functools import cache
from typing import Any

import torch
from torch import Tensor

from agentrl.errors import ConfigError, TrainError
from agentrl.models.attention_layers import CarryingMask, reach_own_attention
from agentrl.models.logit_map import body_of
from agentrl.models.vision.reader import reader_of
from agentrl.train.model.kernels.choose import kernel_of
from agentrl.train.model.segments import Segments
from agentrl.train.model.stateful_layers import other_layers

logger = logging.getLogger(__name__)

ATTENTION = "agentrl_packed_rows"
"""Name of the attention over packed rows in transformers' `AttentionInterface`."""
_KEPT = "agentrl_reading"
_LENGTHS = (3, 4)
"""Tokens of the two rows that are tried."""
_FAR = 0.05
"""Share of the largest number that no rounding explains, of a few tokens in any dtype."""
_CALLS: ContextVar[list[Any] | None] = ContextVar("_CALLS", default=None)


class Reading(Enum):
    """Ways to read the rows of a micro-batch."""

    PACKED = "packed"
    """Side by side; layers pass the segments on to the attention function."""
    MASK = "mask"
    """Side by side; the segments come as the mask, the one thing that its layers pass on."""
    TORCH = "sdpa"
    """As `MASK`; the mask meets torch's own function, which the layers call by themselves."""
    ROWS = "rows"
    """One by one, with the attention of the model itself."""

    @property
    def implementation(self) -> str:
        """Value of `config._attn_implementation` for packed rows."""
        return self.value if self is Reading.TORCH else ATTENTION


def layout_in(segments: Segments | None, module: Any) -> None:
    """Note that an attention layer was reached, and refuse it where it has no segments.

    Raises:
        TrainError: they were lost on the way.
    """
    calls = _CALLS.get()
    if calls is not None:
        calls.append(module)
    if segments is None:
        raise TrainError(
            f"{type(module).__name__} does not hand keyword arguments on to its attention "
            "function, so rows cannot be packed with this model"
        )


def arguments(reading: Reading, ids_T: Tensor, positions_T: Tensor, segments: Segments) -> Any:
    """Keyword arguments of a body for packed tokens, or for one row."""
    given: dict[str, Any] = {"input_ids": ids_T[None], "use_cache": False}
    if reading is Reading.ROWS:
        return given  # its positions are those that every model counts by itself
    given["position_ids"] = positions_T[None]
    if reading is not Reading.PACKED:
        return {**given, "attention_mask": CarryingMask.of(segments, ids_T.device, ATTENTION)}
    return {**given, "segments": segments}


Switched = Callable[..., AbstractContextManager[None]]
"""A block inside which a model has the attention function that is named."""


def reading_of(model: Any, switched: Switched) -> Reading:
    """The way of a model, found the first time, on a model that is whole; it costs a few tokens.

    Args:
        model: a `transformers` language model, or a critic.
        switched: see `Switched`.
    """
    body = body_of(model)
    found = body.__dict__.get(_KEPT)
    if found is not None:
        return found
    kinds = other_layers(model)
    if kinds:
        _warn(
            type(model).__name__,
            f"layers ({', '.join(kinds)}) that rows side by side would leak through",
        )
        found = Reading.ROWS
    elif reader_of(model) is not None:
        found = Reading.PACKED
    elif next(body.parameters()).is_meta:
        return Reading.PACKED  # without numbers nothing can be tried; asked again later
    else:
        found = _tried(model, body, switched)
    setattr(body, _KEPT, found)
    return found


@torch.no_grad()
def _tried(model: Any, body: Any, switched: Switched) -> Reading:
    device = next(body.parameters()).device
    segments = replace(Segments.of_rows(_LENGTHS), kernel=kernel_of(model))
    ids_T = torch.arange(1, 1 + segments.num_tokens, device=device)
    positions_T = torch.cat([torch.arange(length, device=device) for length in _LENGTHS])
    # What a family does to its scores stands in its plain attention; a fused one may leave it out.
    plain = getattr(body, "_supports_attention_backend", False)
    with switched(model, "eager") if plain else nullcontext():
        own = torch.cat(
            [
                body(**arguments(Reading.ROWS, part, part, segments)).last_hidden_state[0]
                for part in ids_T.split(_LENGTHS)
            ]
        )
    why = "an attention of their own"
    reach_own_attention(model)
    for reading in (Reading.PACKED, Reading.MASK, Reading.TORCH):
        calls: list[Any] = []
        token = _CALLS.set(calls)
        try:
            with switched(model, reading.implementation):
                out = body(**arguments(reading, ids_T, positions_T, segments))
        except ConfigError:
            raise  # the kernel that was asked for does not compute this model
        except Exception as error:  # any code of any model, with arguments that it may not know
            why = str(error).partition(", ")[0] if isinstance(error, TrainError) else why
            continue
        finally:
            _CALLS.reset(token)
        far = (out.last_hidden_state[0] - own).abs().max() > _FAR * own.abs().max()
        if calls and not far:
            return reading
    _warn(type(model).__name__, f"layers with {why}")
    return Reading.ROWS


@cache
def _warn(model: str, what: str) -> None:
    logger.warning(
        "%s has %s: rows are not packed, prefixes not shared, and each row is read alone",
        model,
        what,
    )
