"""Room for keys and values: what `serving.kv_cache_gb` stands for, and one whole sequence in it.

number    GiB of each engine; a vLLM server on several devices has as much on each
auto      vLLM on a GPU measures what is left of `gpu_memory_utilization` (0.92 of the card,
          or the one in `serving.args`). Beside the trainer on the same GPU it cannot know what
          that will need, so there it is 4 GiB. Everywhere else it is a quarter of the memory
          that is free at the start, divided among the servers of the machine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from agentrl.config.fleet import EmbeddedServing, VllmServing
from agentrl.errors import ConfigError
from agentrl.models.cache_bytes import CacheShape

GIB = 2**30
SHARE_OF_FREE = 0.25
"""Share of the free memory that `auto` takes where no engine measures it."""
SHARED_GIB = 4.0
"""GiB of `auto` for a server on the GPU of a trainer."""
TILE = 64
"""Keys of one product of the embedded engine, whose rows are whole tiles."""
BLOCK = 16
"""Tokens of a block of vLLM's cache, where `serving.args` has no other number."""


def cache_bytes(section: EmbeddedServing | VllmServing, *, free: int) -> int:
    """Bytes for the cache of each engine, where nothing measures them.

    Args:
        section: the engines.
        free: bytes that are free on the device, or in the main memory that they share.
    """
    if section.kv_cache_gb != "auto":
        return int(section.kv_cache_gb * GIB)
    engines = section.replicas if section.engine == "vllm" else 1
    return int(free * SHARE_OF_FREE) // engines


def tiled(length: int) -> int:
    """Positions in whole tiles that hold `length` of them."""
    return -(-length // TILE) * TILE


def option(args: Mapping[str, Any], name: str) -> Any:
    """An option of `serving.args` in any spelling; None where it is not there."""
    return next((v for k, v in args.items() if k.lstrip("-").replace("-", "_") == name), None)


def sequence_bytes(
    section: VllmServing, cache: CacheShape, tokens: int, *, dtype: str, batched: int
) -> int:
    """Bytes that one sequence takes on each device of a vLLM server.

    Args:
        section: with the options that divide a cache.
        cache: of the model.
        tokens: length of the sequence.
        dtype: of the model, where the cache has none of its own.
        batched: prompt tokens of a pass, which a window keeps besides.
    """
    whole = -(-tokens // BLOCK) * BLOCK
    return cache.sequence_bytes(whole, margin=batched, **layout(section, dtype))


def layout(section: VllmServing, dtype: str) -> dict[str, int]:
    """Bytes of a number, and devices that divide heads and layers."""
    kind = str(option(section.args, "kv_cache_dtype") or "auto")
    given = str(option(section.args, "dtype") or dtype)
    width = 4 if given in ("float32", "float") else 2
    width = 1 if "8" in kind else 2 if "16" in kind else width
    return {
        "width": width,
        "tensor": int(option(section.args, "tensor_parallel_size") or 1),
        "pipeline": int(option(section.args, "pipeline_parallel_size") or 1),
    }


def require_one_sequence(
    section: VllmServing,
    cache: CacheShape,
    *,
    dtype: str,
    tokens: int,
    room: int,
    batched: int = 4096,
) -> None:
    """Refuse a cache that cannot hold one sequence of the longest context.

    Args:
        section: the servers.
        cache: of the model.
        dtype: as `model.dtype`.
        tokens: `rollout.max_context_tokens`.
        room: bytes of the cache on each device.
        batched: prompt tokens of a pass.

    Raises:
        ConfigError: with what a token takes, what there is, and what fits.
    """
    needed = sequence_bytes(section, cache, tokens, dtype=dtype, batched=batched)
    if needed <= room:
        return
    how = layout(section, dtype)
    raise ConfigError(
        too_short(
            section,
            cache.kind,
            tokens=tokens,
            needed=needed,
            room=room,
            fits=cache.longest(room, tokens, margin=batched, **how) // BLOCK * BLOCK,
            token=cache.token_bytes(**how),
        )
    )


def too_short(
    section: VllmServing | EmbeddedServing,
    kind: str,
    *,
    tokens: int,
    needed: int,
    room: int,
    fits: int,
    token: int,
    lanes: int = 1,
) -> str:
    """The sentence of a refusal.

    Args:
        section: the engines.
        kind: describes the cache.
        tokens: `rollout.max_context_tokens`.
        needed: bytes of one sequence.
        room: bytes of the cache, or of that of each lane.
        fits: tokens of the longest sequence that fits.
        token: bytes of a token.
        lanes: that each have a cache of their own.
    """
    given = section.kv_cache_gb
    all_lanes = f" for {lanes} lanes" if lanes > 1 else ""
    what = f"auto ({room * lanes / GIB:.2f} GiB here)" if given == "auto" else f"{given:g}"
    more = math.ceil(needed * lanes / GIB * 1000) / 1000
    shorter = f" to {fits} or less" if fits else ""
    narrower = (
        "; serving.args {kv_cache_dtype: fp8} halves it, tensor_parallel_size divides it"
        if section.engine == "vllm"
        else ""
    )
    return (
        f"serving.kv_cache_gb is {what}{all_lanes}, but one sequence of {tokens} tokens needs "
        f"{needed / GIB:.3f} GiB: {token:,} bytes a token ({kind}), and {fits} tokens fit; set "
        f"serving.kv_cache_gb: {more:g} or more, or lower rollout.max_context_tokens{shorter}"
        f"{narrower}"
    )
