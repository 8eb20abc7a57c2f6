"""`agentrl chat show`: what it prints is what a run makes of a conversation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentrl.chat import build_chat, build_parser
from agentrl.cli import main
from agentrl.cli.chat.command import conversation
from agentrl.config.schema import ChatSection
from tests.chat.chat_models import model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model("qwen2_5").save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "config.json").write_text('{"model_type": "qwen2"}')
    return tmp_path / "model"


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(["chat", "show", *words])
    return int(end.value.code or 0)


def test_it_shows_text_ids_and_masks(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(str(folder)) == 0
    out = capsys.readouterr().out
    assert "tool calls: hermes, as the chat template writes calls" in out
    assert '<tool_call>\n  | {"name": "weather"' in out
    assert "the call is read back as it was written" in out
    assert run(str(folder), "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert [part["mask"] for part in shown["parts"]] == [0, 1, 0, 1]
    tokenizer = model("qwen2_5")
    whole = [token for part in shown["parts"] for token in part["ids"]]
    assert tokenizer.decode(whole) == "".join(part["text"] for part in shown["parts"])
    assert shown["parts"][1]["text"].endswith("</tool_call><|im_end|>")
    assert "18 degrees" in shown["parts"][2]["text"]


def test_a_call_that_is_not_read_is_said(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(str(folder), "--tool-parser", "none") == 1
    assert "IS NOT READ BACK" in capsys.readouterr().out
    assert run(str(folder), "--tool-parser", "hermse") == 2
    assert "did you mean 'hermes'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name", ["qwen2_5", "qwen3", "qwen3_5_think", "glm4moe", "llama3_1", "mistral_v3", "smollm2"]
)
def test_each_family_reads_its_call_back(name: str) -> None:
    chat = build_chat(model(name), ChatSection())
    parser = build_parser("auto")
    assert parser is not None
    parts, read = conversation(chat, parser.for_chat(chat))
    assert read
    assert [part.mask for part in parts] == [0, 1, 0, 1]
