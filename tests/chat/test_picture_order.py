"""Images in conversations: ids of `transformers`' own processors, and the order of templates."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from transformers.models.gemma3.processing_gemma3 import Gemma3Processor

from agentrl.chat import build_chat
from agentrl.chat.format import ChatFormat
from agentrl.config.schema import ChatSection
from agentrl.errors import ChatError
from agentrl.images import decode_image, message
from agentrl.types import Message
from tests.chat.chat_models import TEMPLATES, seeing_tokenizer
from tests.models.vision.tiny_seeing import picture, processor, reader_for


def seeing_chat(name: str, folder: Path, *, template: str | None = None) -> ChatFormat:
    tokenizer = copy.deepcopy(seeing_tokenizer(name))
    if template:
        tokenizer.chat_template = (TEMPLATES / f"{template}.jinja").read_text()
    return build_chat(tokenizer, ChatSection(), images=reader_for(name, folder))


def test_gemma_3_reads_the_ids_of_its_own_processor(tmp_path: Path) -> None:
    """Fails if a line break around an image is merged otherwise than there."""
    tokenizer: Any = copy.deepcopy(seeing_tokenizer("gemma3"))
    for name, token in (
        ("boi", "<start_of_image>"), ("eoi", "<end_of_image>"), ("image", "<image_soft_token>"),
    ):  # fmt: skip
        setattr(tokenizer, f"{name}_token", token)
        setattr(tokenizer, f"{name}_token_id", tokenizer.get_vocab()[token])
    whole = Gemma3Processor(processor("gemma3"), tokenizer, image_seq_length=16)
    pictures = [picture(1), picture(2, width=90)]
    parts = [pictures[0], "Look\n", pictures[1], "\nat both"]
    text = tokenizer.apply_chat_template(
        [
            {"role": "system", "content": "Be brief."},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": part} if isinstance(part, str) else {"type": "image"}
                    for part in parts
                ],
            },
        ],
        tokenize=False,
        add_generation_prompt=True,
    )
    made = whole(
        text=text,
        images=[[decode_image(shown.data, what="it") for shown in pictures]],
        add_special_tokens=False,
        images_kwargs={"do_pan_and_scan": False},
    )
    chat = seeing_chat("gemma3", tmp_path)
    assert chat.findings == ()
    shown = [Message(role="system", content="Be brief."), message("user", parts)]
    ids = chat.render_prompt(shown)
    assert list(ids) == list(made["input_ids"][0])
    inside = {at for span in chat.image_spans(ids, shown) for at in range(span.start, span.end)}
    assert inside == {at for at, kind in enumerate(made["token_type_ids"][0]) if kind}


@pytest.mark.parametrize(
    ("template", "prompt", "delta"),
    [
        (
            "llava_onevision",
            "<|im_start|>user\n<image>\n<image>\nWhat?<|im_end|>\n<|im_start|>assistant\n",
            "\n<|im_start|>tool\n<image>\nHere<|im_end|>\n<|im_start|>assistant\n",
        ),
        (
            "llava_onevision_hub",
            "<|im_start|>user <image><image>\nWhat?<|im_end|><|im_start|>assistant\n",
            "<|im_start|>tool <image>\nHere<|im_end|><|im_start|>assistant\n",
        ),
    ],
)
def test_templates_that_write_images_first_are_given_them_first(
    template: str, prompt: str, delta: str, tmp_path: Path
) -> None:
    chat = seeing_chat("llava_onevision", tmp_path, template=template)
    warned = [finding.name for finding in chat.findings]
    assert warned == (["openings"] if template.endswith("hub") else [])
    reader = reader_for("llava_onevision", tmp_path)
    one = picture(1)
    expanded = reader.expand(one).text
    assert expanded == "<image>" * 70
    ids = chat.render_prompt([message("user", [one, one, "What?"])])
    assert chat.decode_raw(ids).replace(expanded, "<image>") == prompt
    ids = chat.turn_delta([message("tool", [one, "Here"])], ended=True)
    assert chat.decode_raw(ids).replace(expanded, "<image>") == delta
    for role in ("user", "tool"):
        with pytest.raises(ChatError, match=f"a {role} message has text before an image"):
            chat.turn_delta([message(role, ["Here", one])], ended=True)
