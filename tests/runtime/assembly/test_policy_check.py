"""A model without an embedding for a mark of its template is refused with the numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import AutoTokenizer

from agentrl.chat import build_chat
from agentrl.config.schema import ChatSection, ModelSection
from agentrl.errors import ConfigError
from agentrl.runtime.assembly.policy_check import check_marks, check_policy
from tests.models.vision.tiny_seeing import checkpoint
from tests.runtime.tiny_project import write_model


@pytest.mark.parametrize("name", ["qwen2_vl", "smolvlm", "llava_onevision"])
def test_a_model_that_reads_images_is_taken(tmp_path: Path, name: str) -> None:
    """Fails if its template, which shows lists of parts only, is read without its images."""
    source = str(checkpoint(name, tmp_path))
    check_policy(source, ModelSection(path=source), ChatSection(), context=64)


def test_tokens_beyond_the_embedding_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A prompt that held one ended in a refusal of the engine, and nothing had been said."""
    source = write_model(tmp_path / "model")
    section, chat = ModelSection(path=str(source)), ChatSection()
    check_policy(str(source), section, chat, context=64)
    assert not caplog.text
    tokenizer = AutoTokenizer.from_pretrained(source)
    rows = len(tokenizer)
    tokenizer.add_tokens(["<|extra|>"])
    tokenizer.save_pretrained(source)
    check_policy(str(source), section, chat, context=64)
    assert f"has {rows} rows in its embedding, and its tokenizer 1 tokens beyond" in caplog.text
    assert "(<|extra|>)" in caplog.text


def test_marks_beyond_the_embedding_are_refused(tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(write_model(tmp_path / "model"))
    ids = {mark: tokenizer.convert_tokens_to_ids(mark) for mark in ("<|im_start|>", "<|im_end|>")}
    chat = build_chat(tokenizer, ChatSection())
    check_marks(chat, max(ids.values()) + 1, who="x")
    with pytest.raises(ConfigError, match=rf"x has {max(ids.values())} rows .* writes 1 tokens"):
        check_marks(chat, max(ids.values()), who="x")
    both = rf"'<\|im_start\|>' is id {ids['<|im_start|>']}.*resize_token_embeddings"
    with pytest.raises(ConfigError, match=both):
        check_marks(chat, min(ids.values()), who="x")
    # A text that the template marks nowhere needs none of them.
    check_marks(build_chat(tokenizer, ChatSection(template="raw")), min(ids.values()), who="x")
