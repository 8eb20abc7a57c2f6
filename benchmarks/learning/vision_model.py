"""A small Qwen3-VL with random weights, for the grid world of pictures.

    python benchmarks/learning/vision_model.py runs/screens-model

Every part is that of the family: tokenizer with its special tokens, image processor, vision tower,
positions by frame, row and column. A cell of the grid world is one feature. The tokenizer has the
words of the grid world's texts and all bytes.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from agentrl_envs.screens import ACTIONS, CELL, make_tasks

sys.path.append(str(Path(__file__).parents[1]))

from harness import options
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3VLConfig, Qwen3VLForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

VOCABULARY = 512
POSITIONS = 8
"""Learned positions of a side, interpolated to the patches of an image."""
ROPE_THETA = 20.0
"""Base of the rotary frequencies: so small that cells side by side differ on all three axes."""
SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
TEMPLATE = """\
{%- for message in messages %}<|im_start|>{{ message['role'] }}
{% if message['content'] is string %}{{ message['content'] }}{% else %}
{%- for part in message['content'] %}{% if part['type'] == 'image' -%}
<|vision_start|><|image_pad|><|vision_end|>
{%- else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def tokenizer() -> Any:
    """Byte-level BPE of the texts of the grid world, with the family's special tokens."""
    texts = [str(task.prompt) for task in make_tasks(n=50, levels=(1, 2, 3, 5))]
    texts += [*ACTIONS, "user\n", "assistant\n", "system\n"] * 20
    texts += ["Something is in the way. What next?", "Picked up. What next?", "Say one of: "] * 20
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=VOCABULARY,
            special_tokens=list(SPECIAL),
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    wrapped.chat_template = TEMPLATE
    return wrapped


def build(folder: Path, *, width: int, layers: int, tower_width: int, seed: int) -> int:
    """Write a whole checkpoint; returns its number of parameters."""
    words = tokenizer()
    vocabulary = words.get_vocab()
    torch.manual_seed(seed)
    heads = width // 32
    config = Qwen3VLConfig(
        text_config={
            "vocab_size": len(words),
            "hidden_size": width,
            "intermediate_size": 3 * width,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": heads,
            "head_dim": 32,
            "max_position_embeddings": 2048,
            "rope_parameters": {
                "rope_type": "default",
                "mrope_section": [4, 6, 6],
                "mrope_interleaved": True,
                "rope_theta": ROPE_THETA,
            },
            "bos_token_id": None,
            "eos_token_id": vocabulary["<|im_end|>"],
            "pad_token_id": vocabulary["<|endoftext|>"],
            "tie_word_embeddings": True,
        },
        vision_config={
            "depth": 2,
            "num_heads": tower_width // 32,
            "hidden_size": tower_width,
            "intermediate_size": 2 * tower_width,
            "out_hidden_size": width,
            "patch_size": CELL // 2,
            "temporal_patch_size": 2,
            "num_position_embeddings": POSITIONS**2,
            "deepstack_visual_indexes": [0],
        },
        image_token_id=vocabulary["<|image_pad|>"],
        video_token_id=vocabulary["<|video_pad|>"],
        vision_start_token_id=vocabulary["<|vision_start|>"],
        vision_end_token_id=vocabulary["<|vision_end|>"],
        tie_word_embeddings=True,
    )
    model = Qwen3VLForConditionalGeneration(config)
    with torch.no_grad():
        # The usual deviation of 0.02 is for wide layers: layers this narrow would hardly change
        # what passes through them, and nothing was seen in 400 steps of SFT.
        for module in model.modules():
            if isinstance(module, torch.nn.Linear | torch.nn.Conv3d):
                module.weight.normal_(0.0, module.weight[0].numel() ** -0.5)
        model.get_input_embeddings().weight.normal_(0.0, 0.1)
        model.model.visual.pos_embed.weight.normal_(0.0, 1.0)
    model.save_pretrained(folder)
    words.save_pretrained(folder)
    Qwen2VLImageProcessorPil(
        min_pixels=CELL**2, max_pixels=(16 * CELL) ** 2, patch_size=CELL // 2
    ).save_pretrained(folder)
    return model.num_parameters()


def main() -> None:
    """Read arguments and write the checkpoint."""
    chosen = vars(options(__doc__, folder_=Path, width=128, layers=3, tower_width=64, seed=0))
    count = build(chosen.pop("folder"), **chosen)
    print(f"{count:,} parameters")


if __name__ == "__main__":
    main()
