"""Which kernel computes attention over packed rows: `model.attention`, or what fits a call.

A kernel that cannot compute a call of the model is refused, never replaced in silence. What is
refused for its device or dtype is known before there is a model; soft caps, sinks, images that are
read as a whole and the width of heads show in the first call, which the proof of the model makes.
"""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from agentrl.errors import ConfigError
from agentrl.models.logit_map import body_of

AUTO = "auto"
WRITTEN_OUT = "written_out"
"""Batched products and a softmax, for CPUs (`cpu_rows`); what `auto` takes there."""
KERNELS = ("torch_varlen", "flash", "flex", "sdpa")
"""Kernels that can be asked for."""
NARROW = ("torch_varlen", "flash")
"""Those that compute in 16 bits alone."""
_KEPT = "agentrl_attention"
_NARROW_DTYPES = (torch.bfloat16, torch.float16)
_FLEX_DTYPES = (*_NARROW_DTYPES, torch.float32)
_FLEX_HEAD = 16
"""Head dimension below which FlexAttention has no product."""
_FLASH_HEAD = 256
"""Largest head dimension of flash attention."""
_USED: ContextVar[set[str] | None] = ContextVar("_USED", default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCall:
    """The work of a kernel in one call, as far as it is known."""

    device: torch.device
    """Device of the tensors."""
    dtype: torch.dtype
    """Their dtype."""
    key_width: int = 64
    """Dimension of the heads of queries and keys."""
    value_width: int = 64
    """Dimension of the heads of values."""
    softcap: bool = False
    """Scores are capped."""
    sinks: bool = False
    """Scores of sinks stand beside them."""
    mutual: bool = False
    """Tokens of an image see the ones behind them."""


@lru_cache(maxsize=256)
def chosen(kernel: str, call: AttentionCall) -> str:
    """The kernel that computes a call.

    Args:
        kernel: `model.attention`. `auto` is `written_out` on a CPU; on a GPU `flex`, and `sdpa` for
            what that does not compute (float64, heads narrower than 16, no Triton).
        call: what it has to compute.

    Raises:
        ConfigError: the kernel that was asked for does not compute it.
    """
    if kernel == AUTO:
        if call.device.type == "cpu":
            return WRITTEN_OUT
        return "sdpa" if refusal("flex", call) else "flex"
    why = refusal(kernel, call)
    if why:
        valid = [AUTO, *(name for name in KERNELS if not refusal(name, call))]
        raise ConfigError(f"model.attention is {kernel}, {why}; valid here: {', '.join(valid)}")
    return kernel


def refusal(kernel: str, call: AttentionCall) -> str:
    """Why a kernel of `KERNELS` does not compute a call, as in `which ...`; "" where it does."""
    if kernel == "sdpa":
        return ""
    if call.device.type != "cuda":
        also = ", and has no backward pass on a CPU" if kernel == "flex" else ""
        return f"which needs a GPU{also} (the model is on {call.device})"
    if kernel == "flex":
        return _no_flex(call)
    dtype = str(call.dtype).removeprefix("torch.")
    if call.dtype not in _NARROW_DTYPES:
        return f"which computes in bfloat16 or float16 (got {dtype})"
    widths = {call.key_width, call.value_width}
    if len(widths) > 1 or call.key_width % 8 or call.key_width > _FLASH_HEAD:
        return (
            f"which takes heads of one width for keys and values, a multiple of 8 up to "
            f"{_FLASH_HEAD} (got {call.key_width} and {call.value_width})"
        )
    if call.mutual:
        return "which lets no token see the ones behind it, as tokens of an image do in this model"
    if call.sinks:
        return "which has no gradient for the attention sinks of this model"
    if call.softcap and kernel == "torch_varlen":
        return "which does not cap scores, as this model does"
    return _not_installed(kernel)


def _no_flex(call: AttentionCall) -> str:
    narrowest = min(call.key_width, call.value_width)
    if call.dtype not in _FLEX_DTYPES:
        return f"which sums in float32 (got {str(call.dtype).removeprefix('torch.')})"
    if narrowest < _FLEX_HEAD:
        return f"which takes heads of {_FLEX_HEAD} numbers or more (got {narrowest})"
    return "" if _has("triton") else "which is compiled by Triton, and that is not installed"


@lru_cache(maxsize=8)
def _has(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


@lru_cache(maxsize=2)
def _not_installed(kernel: str) -> str:
    if kernel == "flash":
        return "" if _has("flash_attn") else "which needs the package flash-attn"
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        known: set[str] = set()
    else:
        known = set(inspect.signature(varlen_attn).parameters)
    if not {"scale", "window_size", "enable_gqa"} <= known:
        return f"which torch {torch.__version__} does not have with windows and grouped heads"
    if torch.cuda.get_device_capability() < (8, 0):
        return "which needs a GPU of compute capability 8.0 or more"
    return ""


def use_kernel(model: Any, kernel: str) -> None:
    """Set the kernel of a model; it is asked for in the next pass.

    Args:
        model: a `transformers` language model, or a critic.
        kernel: `model.attention`.
    """
    setattr(body_of(model), _KEPT, kernel)


def kernel_of(model: Any) -> str:
    """The kernel that was set for a model; `auto` without."""
    return body_of(model).__dict__.get(_KEPT, AUTO)


@contextmanager
def widened_kernel(model: Any) -> Iterator[None]:
    """Inside, a model in float32 has a kernel that computes in it."""
    kernel = kernel_of(model)
    if kernel in NARROW:
        use_kernel(model, AUTO)
    try:
        yield
    finally:
        use_kernel(model, kernel)


@contextmanager
def kernels_used() -> Iterator[set[str]]:
    """Collect the names of the kernels that compute inside, in this thread."""
    used: set[str] = set()
    token = _USED.set(used)
    try:
        yield used
    finally:
        _USED.reset(token)


def note_used(kernel: str) -> None:
    """Tell a surrounding `kernels_used`."""
    used = _USED.get()
    if used is not None:
        used.add(kernel)
