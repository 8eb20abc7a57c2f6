"""The folder of a model that has a tokenizer of ChatML and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

from tests.chat.byte_level import chatml_tokenizer


def save_tokenizer(folder: Path) -> Path:
    """Save it; one id per byte."""
    template = Path(__file__).parents[3] / "chat" / "templates" / "smollm2.jinja"
    chatml_tokenizer(template.read_text(encoding="utf-8")).save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    return folder
