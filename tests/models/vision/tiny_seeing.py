"""Tiny vision-language checkpoints with random weights: every part is real but small.

Tokenizers have the special tokens and the templates of the families. Image processors are those of
`transformers` without torchvision; their bounds on the size of an image keep it to a few tokens.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image as pil
from transformers import (
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Idefics3Config,
    Idefics3ForConditionalGeneration,
    LlavaOnevisionConfig,
    LlavaOnevisionForConditionalGeneration,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    SmolVLMConfig,
    SmolVLMForConditionalGeneration,
)
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.llava_onevision.image_processing_pil_llava_onevision import (
    LlavaOnevisionImageProcessorPil,
)
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

from agentrl.images import ImageFolder, read_image
from agentrl.models.vision.families import family_of
from agentrl.models.vision.reader import VisionReader, attach_reader
from agentrl.types import Image
from tests.chat.chat_models import seeing_tokenizer

FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "smolvlm", "gemma3", "llava_onevision")
_TEXT = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}


_SMALL_TOWER = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 64,
    "patch_size": 16,
}
_GRIDS = [[32, 32], [32, 64], [64, 32], [64, 64]]
_TILED = {"smolvlm": SmolVLMImageProcessorPil, "idefics3": Idefics3ImageProcessorPil}


def processor(name: str) -> Any:
    """The image processor of a family; images have at most 24 features, or 5 tiles of 4.

    Those of Gemma 3 all have 16, those of LLaVA-OneVision up to 16 and 6 rows of 7.
    """
    if name in _TILED:
        return _TILED[name](size={"longest_edge": 128}, max_image_size={"longest_edge": 64})
    if name == "gemma3":
        # A checkpoint may ask for crops, which are left out.
        return Gemma3ImageProcessorPil(size={"height": 64, "width": 64}, do_pan_and_scan=True)
    if name == "llava_onevision":
        return LlavaOnevisionImageProcessorPil(
            size={"height": 32, "width": 32}, image_grid_pinpoints=_GRIDS
        )
    patch = 16 if name == "qwen3_vl" else 14
    least = (2 * patch) ** 2
    return Qwen2VLImageProcessorPil(min_pixels=least, max_pixels=least * 24, patch_size=patch)


def config(name: str) -> Any:
    """The config of a family, with the ids of its tokenizer."""
    tokenizer = seeing_tokenizer(name)
    vocab = tokenizer.get_vocab()
    text = {**_TEXT, "vocab_size": len(tokenizer)}
    if name in _TILED:
        if name == "idefics3":
            # The attention of a vLLM server on a CPU begins at heads of 32.
            text |= {"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1}
        made = SmolVLMConfig if name == "smolvlm" else Idefics3Config
        return made(
            text_config={"model_type": "llama", **text},
            vision_config=_SMALL_TOWER,
            scale_factor=2,
            image_token_id=vocab["<image>"],
        )
    if name == "gemma3":
        text |= {"head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window_pattern": 2}
        return Gemma3Config(
            # A window hides a part of an image from the rest of it.
            text_config=text | {"sliding_window": 12},
            vision_config=_SMALL_TOWER | {"vision_use_head": False},
            mm_tokens_per_image=16,
            boi_token_index=vocab["<start_of_image>"],
            eoi_token_index=vocab["<end_of_image>"],
            image_token_index=vocab["<image_soft_token>"],
        )
    if name == "llava_onevision":
        return LlavaOnevisionConfig(
            text_config=text | {"model_type": "qwen2"},
            vision_config=_SMALL_TOWER
            | {"image_size": 32, "patch_size": 8, "vision_use_head": False},
            image_grid_pinpoints=_GRIDS,
            # Four tiles are more than that, so their features are interpolated.
            vision_aspect_ratio="anyres_max_3",
            image_token_index=vocab["<image>"],
            video_token_index=vocab["<video>"],
        )
    text["rope_parameters"] = {
        "rope_type": "default",
        "mrope_section": [1, 1, 2],
        "rope_theta": 100.0,
    }
    ids = {
        "image_token_id": vocab["<|image_pad|>"],
        "video_token_id": vocab["<|video_pad|>"],
        "vision_start_token_id": vocab["<|vision_start|>"],
        "vision_end_token_id": vocab["<|vision_end|>"],
    }
    vision = {"depth": 2, "num_heads": 2, "patch_size": 14, "temporal_patch_size": 2}
    if name == "qwen2_vl":
        vision |= {"embed_dim": 32, "hidden_size": 32, "mlp_ratio": 2}
        return Qwen2VLConfig(text_config=text, vision_config=vision, **ids)
    if name == "qwen3_vl":
        text |= {"head_dim": 8}
        text["rope_parameters"]["mrope_interleaved"] = True
        vision |= {
            "hidden_size": 32,
            "out_hidden_size": 32,
            "intermediate_size": 64,
            "patch_size": 16,
            "num_position_embeddings": 64,
            "deepstack_visual_indexes": [0],
        }
        return Qwen3VLConfig(text_config=text, vision_config=vision, **ids)
    vision |= {
        "hidden_size": 32,
        "out_hidden_size": 32,
        "intermediate_size": 64,
        "window_size": 56,
        "fullatt_block_indexes": [1],
    }
    return Qwen2_5_VLConfig(text_config=text, vision_config=vision, **ids)


_CLASSES = {
    "gemma3": Gemma3ForConditionalGeneration,
    "llava_onevision": LlavaOnevisionForConditionalGeneration,
    "qwen2_vl": Qwen2VLForConditionalGeneration,
    "qwen2_5_vl": Qwen2_5_VLForConditionalGeneration,
    "qwen3_vl": Qwen3VLForConditionalGeneration,
    "smolvlm": SmolVLMForConditionalGeneration,
    "idefics3": Idefics3ForConditionalGeneration,
}


@cache
def _weights(name: str) -> Any:
    torch.manual_seed(1)
    model = _CLASSES[name](config(name)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            # Large enough that pixels and positions show in every log-probability.
            if parameter.ndim > 1:
                parameter.normal_(0.0, 0.3 if parameter.shape[-1] <= 64 else 0.05)
        if name == "idefics3":
            # A vLLM server takes no prompt in which the model has sampled a placeholder itself.
            model.lm_head.weight[model.config.image_token_id] = 0.0
    return model


def model_of(name: str, *, dtype: torch.dtype = torch.float32) -> Any:
    """A fresh copy of the model of a family."""
    model = _CLASSES[name](config(name)).eval()
    model.load_state_dict(_weights(name).state_dict())
    return model.to(dtype)


def reader_for(name: str, folder: Path, *, made_by: Any = None) -> VisionReader:
    """The reader of a family, over a folder of images; by its own image processor or another."""
    made = VisionReader(
        family=family_of(config(name), path=name),
        processor=made_by or processor(name),
        config=config(name),
        tokenizer=seeing_tokenizer(name),
    )
    made.folder = ImageFolder(folder)
    return made


def seeing_model(name: str, folder: Path, *, dtype: torch.dtype = torch.float32) -> Any:
    """The model of a family with its reader."""
    model = model_of(name, dtype=dtype)
    attach_reader(model, reader_for(name, folder))
    return model


def checkpoint(name: str, folder: Path) -> Path:
    """A whole checkpoint folder: weights, tokenizer with its template, image processor."""
    model_of(name).save_pretrained(folder)
    seeing_tokenizer(name).save_pretrained(folder)
    processor(name).save_pretrained(folder)
    if name in _TILED:
        settings = {"processor_class": "Idefics3Processor", "image_seq_len": 4}
        (folder / "processor_config.json").write_text(json.dumps(settings))
    return folder


def picture(seed: int, *, width: int = 60, height: int = 40) -> Image:
    """An image of noise."""
    pixels = np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=np.uint8)
    return read_image(pil.fromarray(pixels))
