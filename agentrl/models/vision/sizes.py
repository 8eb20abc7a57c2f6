"""Sizes of patches, merged patches and tiles: what reads the same pixels has the same ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Sizes = Mapping[str, int]
"""By the name that the size has in `config.json`."""

_OF_MODELS = (
    "patch_size",
    "temporal_patch_size",
    "spatial_merge_size",
    "image_size",
    "scale_factor",
    "mm_tokens_per_image",
)
_OF_PROCESSORS = {
    "patch_size": "patch_size",
    "temporal_patch_size": "temporal_patch_size",
    "merge_size": "spatial_merge_size",
}


def model_sizes(config: Any) -> Sizes:
    """The sizes of a vision-language model that its config names.

    Args:
        config: of `transformers`.
    """
    found = {
        name: getattr(config.vision_config, name, getattr(config, name, None))
        for name in _OF_MODELS
    }
    return {name: size for name, size in found.items() if isinstance(size, int)}


def processor_sizes(processor: Any) -> Sizes:
    """The sizes that an image processor has settings for, by their names in a model's config."""
    found = {name: getattr(processor, own, None) for own, name in _OF_PROCESSORS.items()}
    # Where images are divided into tiles, `size` is that of the whole image.
    tile = getattr(processor, "max_image_size", None)
    found["image_size"] = (
        tile["longest_edge"] if tile else getattr(getattr(processor, "size", None), "height", None)
    )
    return {name: size for name, size in found.items() if isinstance(size, int)}


def differing_sizes(first: Sizes, second: Sizes) -> str:
    """Sizes that both have and that differ, as `patch_size 16, not 14`; empty if none does."""
    return ", ".join(
        f"{name} {size}, not {second[name]}"
        for name, size in first.items()
        if name in second and second[name] != size
    )
