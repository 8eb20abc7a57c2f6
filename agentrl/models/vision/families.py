"""Families of vision-language models, and what each does with an image.

A family says which of `transformers`' own processors expands an image, how many features it has,
how they are computed, and which positions their tokens have. Everything else of a model is read
from the model. A family is one entry of `FAMILIES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import isqrt
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from agentrl.errors import ConfigError

Grid = tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionFamily:
    """One way to read images."""

    name: str
    """As users write it."""
    token: str
    """Text that chat templates write for an image."""
    placeholder: str
    """Text of the token that stands for one feature of an image; `token` itself in most."""
    expand: Callable[[Any, Mapping[str, Any], Any], str]
    """Text of an image from the image processor, its output and the config of the model."""
    grid: Callable[[Any, Mapping[str, Any], Any], Grid]
    """Features as (frames or tiles, rows, columns), from the same."""
    features: Callable[[Any, Sequence[Mapping[str, Tensor]]], list[tuple[Tensor, ...]]]
    """[features, E] of each image from the body of the model and the pixels of images of one size:
    first those that stand among the embeddings, then those that the first layers add to their
    outputs."""
    tower: str
    """Name of the module that reads pixels."""
    inputs: tuple[str, ...]
    """Tensors of the image processor that `features` reads."""
    options: Mapping[str, Any]
    """Settings with which the image processor is called."""
    markers: tuple[int, int] | None = (0, 0)
    """Tokens of an image before its first placeholder and behind its last one; None where the text
    around an image may be part of them, so that their number is not fixed."""
    multi_axis_rope: bool = False
    """Whether tokens of an image have positions by frame, row and column (m-rope)."""
    mutual: bool = False
    """Whether the model reads an image as a whole: each of its placeholders, which stand side by
    side, attends to those behind it, too."""


def family_of(config: Any, *, path: str) -> VisionFamily | None:
    """The family of a model; None for a model that reads text only.

    Args:
        config: of `transformers`.
        path: `model.path`, for the message of an error.

    Raises:
        ConfigError: it reads images, and its family is none of `FAMILIES`.
    """
    found = FAMILIES.get(config.model_type)
    if found is not None or getattr(config, "vision_config", None) is None:
        return found
    raise ConfigError(
        f"model.path {path!r} is a vision-language model of the type {config.model_type!r}, whose "
        f"images are not read here; expected one of {known_families()}"
    )


def known_families() -> str:
    """The families with the `model_type` of their members, for messages."""
    names: dict[str, list[str]] = {}
    for model_type, family in FAMILIES.items():
        names.setdefault(family.name, []).append(model_type)
    return ", ".join(f"{name} ({', '.join(types)})" for name, types in names.items())


def _expand_qwen(processor: Any, pixels: Mapping[str, Any], config: Any) -> str:
    from transformers.models.qwen2_vl.processing_qwen2_vl import Qwen2VLProcessor

    facts = SimpleNamespace(image_processor=processor, image_token=_QWEN_TOKEN)
    return Qwen2VLProcessor.replace_image_token(facts, dict(pixels), 0)  # type: ignore[arg-type]


def _qwen_grid(processor: Any, pixels: Mapping[str, Any], config: Any) -> Grid:
    frames, rows, columns = pixels["image_grid_thw"][0].tolist()
    return frames, rows // processor.merge_size, columns // processor.merge_size


def _qwen_features(body: Any, images: Sequence[Mapping[str, Tensor]]) -> list[tuple[Tensor, ...]]:
    found = body.get_image_features(
        torch.cat([pixels["pixel_values"] for pixels in images]),
        torch.cat([pixels["image_grid_thw"] for pixels in images]),
        return_dict=True,
    )
    # Qwen3-VL alone has some for layers, one tuple of images for each.
    layers = getattr(found, "deepstack_features", None) or ()
    return list(zip(found.pooler_output, *layers, strict=True))


def _expand_tiles(processor: Any, pixels: Mapping[str, Any], config: Any) -> str:
    from transformers.models.idefics3.processing_idefics3 import Idefics3Processor

    # SmolVLM's processor writes the same, but needs torchvision and num2words for its videos.
    facts = SimpleNamespace(
        image_token=_TILE_TOKEN,
        fake_image_token="<fake_token_around_image>",
        global_image_tag="<global-img>",
        image_seq_len=_tile_features(config),
    )
    return Idefics3Processor.replace_image_token(facts, dict(pixels), 0)  # type: ignore[arg-type]


def _tile_grid(processor: Any, pixels: Mapping[str, Any], config: Any) -> Grid:
    tiles = pixels["rows"][0][0] * pixels["cols"][0][0] + 1
    side = isqrt(_tile_features(config))
    return tiles, side, side


def _tile_features(config: Any) -> int:
    """Features of one tile, all tiles being squares of one size."""
    vision = config.vision_config
    return (vision.image_size // vision.patch_size // config.scale_factor) ** 2


def _tiled_features(body: Any, images: Sequence[Mapping[str, Tensor]]) -> list[tuple[Tensor, ...]]:
    found = body.get_image_features(
        torch.cat([pixels["pixel_values"] for pixels in images], dim=1),
        torch.cat([pixels["pixel_attention_mask"] for pixels in images], dim=1),
        return_dict=True,
    ).pooler_output
    return [(tiles.flatten(0, 1),) for tiles in found.chunk(len(images))]


def _expand_framed(processor: Any, pixels: Mapping[str, Any], config: Any) -> str:
    from transformers.models.gemma3.processing_gemma3 import Gemma3Processor

    features = _FRAMED_PLACEHOLDER * config.mm_tokens_per_image
    facts = SimpleNamespace(full_image_sequence=f"\n\n{_FRAMED_TOKEN}{features}<end_of_image>\n\n")
    return Gemma3Processor.replace_image_token(facts, dict(pixels), 0)  # type: ignore[arg-type]


def _framed_grid(processor: Any, pixels: Mapping[str, Any], config: Any) -> Grid:
    side = isqrt(config.mm_tokens_per_image)
    return 1, side, side


def _framed_features(body: Any, images: Sequence[Mapping[str, Tensor]]) -> list[tuple[Tensor, ...]]:
    found = body.get_image_features(
        torch.cat([pixels["pixel_values"] for pixels in images]), return_dict=True
    )
    return [(features,) for features in found.pooler_output]


def _expand_anyres(processor: Any, pixels: Mapping[str, Any], config: Any) -> str:
    from transformers.models.llava_onevision.processing_llava_onevision import (
        LlavaOnevisionProcessor as Whole,
    )

    vision, strategy = config.vision_config, config.vision_feature_select_strategy
    facts = SimpleNamespace(
        image_processor=processor,
        image_token=_TILE_TOKEN,
        # Of a tile; "default" leaves out the first, which is no part of the picture.
        num_image_tokens=(vision.image_size // vision.patch_size) ** 2 + (strategy == "default"),
        vision_feature_select_strategy=strategy,
        vision_aspect_ratio=config.vision_aspect_ratio,
    )
    for name in ("_get_number_of_features", "_get_unpadded_features"):
        setattr(facts, name, partial(getattr(Whole, name), facts))
    return Whole.replace_image_token(facts, dict(pixels), 0)  # type: ignore[arg-type]


def _anyres_grid(processor: Any, pixels: Mapping[str, Any], config: Any) -> Grid:
    # An overview, then rows of all tiles with a line break behind each: no product of sides.
    return 1, 1, _expand_anyres(processor, pixels, config).count(_TILE_TOKEN)


def _anyres_features(body: Any, images: Sequence[Mapping[str, Tensor]]) -> list[tuple[Tensor, ...]]:
    found = body.get_image_features(
        torch.cat([pixels["pixel_values"] for pixels in images]),
        torch.cat([pixels["image_sizes"] for pixels in images]),
        return_dict=True,
    )
    return [(features,) for features in found.pooler_output]


_QWEN_TOKEN, _TILE_TOKEN = "<|image_pad|>", "<image>"
_FRAMED_TOKEN, _FRAMED_PLACEHOLDER = "<start_of_image>", "<image_soft_token>"
_QWEN_VL = VisionFamily(
    name="Qwen2-VL, Qwen2.5-VL and Qwen3-VL",
    token=_QWEN_TOKEN,
    placeholder=_QWEN_TOKEN,
    expand=_expand_qwen,
    grid=_qwen_grid,
    features=_qwen_features,
    tower="visual",
    inputs=("pixel_values", "image_grid_thw"),
    options={},
    multi_axis_rope=True,
)
_TILED = VisionFamily(
    name="SmolVLM and Idefics3",
    token=_TILE_TOKEN,
    placeholder=_TILE_TOKEN,
    expand=_expand_tiles,
    grid=_tile_grid,
    features=_tiled_features,
    tower="vision_model",
    inputs=("pixel_values", "pixel_attention_mask"),
    options={"return_row_col_info": True},
    markers=(2, 1),
)
_FRAMED = VisionFamily(
    name="Gemma 3",
    token=_FRAMED_TOKEN,
    placeholder=_FRAMED_PLACEHOLDER,
    expand=_expand_framed,
    grid=_framed_grid,
    features=_framed_features,
    tower="vision_tower",
    inputs=("pixel_values",),
    # With crops (pan and scan) an image would be several, with English words between them.
    options={"do_pan_and_scan": False},
    # The line breaks around an image are one token with those of the text beside it.
    markers=None,
    mutual=True,
)
_ANYRES = VisionFamily(
    name="LLaVA-OneVision",
    token=_TILE_TOKEN,
    placeholder=_TILE_TOKEN,
    expand=_expand_anyres,
    grid=_anyres_grid,
    features=_anyres_features,
    tower="vision_tower",
    inputs=("pixel_values", "image_sizes"),
    options={},
)
FAMILIES: Mapping[str, VisionFamily] = {
    "qwen2_vl": _QWEN_VL,
    "qwen2_5_vl": _QWEN_VL,
    "qwen3_vl": _QWEN_VL,
    "smolvlm": _TILED,
    "idefics3": _TILED,
    "gemma3": _FRAMED,
    "llava_onevision": _ANYRES,
}
"""By the `model_type` of a config."""
