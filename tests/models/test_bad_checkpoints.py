"""Checkpoints that cannot be used are refused in one sentence, by name or folder, unloaded."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from agentrl.config.schema import ModelSection
from agentrl.errors import ConfigError
from agentrl.models.source import check_language_model, load_tokenizer, read_config
from agentrl.models.stored import check_files
from agentrl.models.whole import load_whole
from tests.models.test_whole import stored

QUANTISED = {
    "gptq": {"bits": 4, "group_size": 128},
    "awq": {"bits": 4, "group_size": 128, "version": "gemm"},
    "bitsandbytes": {"load_in_4bit": True},
    "fp8": {"activation_scheme": "dynamic"},
    "mxfp4": {},
}


def changed(folder: Path, **keys: Any) -> str:
    """The folder with other keys in its config.json; None leaves one out."""
    path = folder / "config.json"
    found = {**json.loads(path.read_text()), **keys}
    path.write_text(json.dumps({key: value for key, value in found.items() if value is not None}))
    return str(folder)


def refusal(source: str, **given: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        check_language_model(source, **given)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Put a folder into an otherwise empty cache of the hub, and get its name."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)

    def put(folder: Path, name: str = "acme/tiny") -> str:
        cached = tmp_path / "hub" / f"models--{name.replace('/', '--')}"
        (cached / "refs").mkdir(parents=True)
        (cached / "refs" / "main").write_text("a" * 40)
        shutil.copytree(folder, cached / "snapshots" / ("a" * 40))
        return name

    return put


@pytest.mark.parametrize("kind", QUANTISED)
def test_quantised_weights_of_a_folder_and_of_a_hub_name(
    tmp_path: Path, hub: Any, kind: str
) -> None:
    """A name ended in an error of optimum, or was trained where its weights are plain."""
    folder = stored(tmp_path)
    settings = {"quant_method": kind, **QUANTISED[kind]}
    found = rf"is quantised \({kind}, .*vLLM alone.*nf4 keeps.*if the weights are plain$"
    name = hub(Path(changed(folder, quantization_config=settings)))
    for source in (str(folder), name):
        assert re.search(found, refusal(source, key="critic.path")), source
        with pytest.raises(ConfigError, match=f"^x {found}"):
            load_whole(AutoModelForCausalLM, source, who="x")


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"model_type": "gpt9"}, r"model_type 'gpt9', which transformers \S+ does not know \(did"),
        ({"model_type": "t5"}, "is no causal language model .*'t5'.* expected a decoder"),
        ({"model_type": "clip"}, "is no causal language model"),
        ({"model_type": "bart", "is_encoder_decoder": True}, "is an encoder-decoder .*'bart'"),
        ({"model_type": None}, "has no model_type"),
        ({"model_type": "x", "auto_map": {"AutoConfig": "a.B"}}, "'x' needs code of its own"),
        ({"num_attention_heads": 5}, r"hidden size \(16\) is not a multiple .* heads \(5\)"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "a reward model: it scores"),
    ],
)
def test_a_config_of_what_cannot_be_trained(tmp_path: Path, keys: Any, said: str) -> None:
    source = changed(stored(tmp_path), **keys)
    assert re.search(said, refusal(source))
    if "architectures" in keys:
        check_language_model(source, scores=True)


def test_a_config_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{ not")
    assert "is no JSON" in refusal(str(tmp_path))
    (tmp_path / "config.json").write_text("[1]")
    assert "holds a list, expected a mapping" in refusal(str(tmp_path))
    # Servers may know what it is.
    assert read_config(str(tmp_path)) is None


def test_shards_of_a_hub_name_and_an_index_that_names_too_much(tmp_path: Path, hub: Any) -> None:
    model = AutoModelForCausalLM.from_pretrained(stored(tmp_path))
    shards = tmp_path / "shards"
    model.save_pretrained(shards, max_shard_size="8KB")
    first, second, *_ = sorted(shards.glob("model-*.safetensors"))
    load_whole(AutoModelForCausalLM, hub(shards), who="x")
    whole = second.read_bytes()
    second.write_bytes(whole[:-100])
    cases = {
        "acme/cut": rf"x cannot be loaded: {second.name} is not whole",
        "acme/gone": rf"x lacks 1 of the \d+ shards .*: {second.name}",
    }
    for name, said in cases.items():
        hub(shards, name)
        with pytest.raises(ConfigError, match=said):
            load_whole(AutoModelForCausalLM, name, who="x")
        second.unlink(missing_ok=True)
    second.write_bytes(whole)
    index = shards / "model.safetensors.index.json"
    named = json.loads(index.read_text())
    ghost = {"model.layers.9.ghost.weight": first.name}
    index.write_text(json.dumps({**named, "weight_map": {**named["weight_map"], **ghost}}))
    said = rf"x: {index.name} names 1 tensors that their .*9\.ghost\.weight \({first.name}\)"
    with pytest.raises(ConfigError, match=said):
        check_files(str(shards), who="x")
    index.write_text(json.dumps(named))
    held = load_file(first)
    lost = next(iter(held))
    save_file({name: held[name] for name in held if name != lost} or {"x": held[lost]}, first)
    with pytest.raises(ConfigError, match=rf"names 1 tensors .*{re.escape(lost)} \({first.name}"):
        load_whole(AutoModelForCausalLM, str(shards), who="x")


def test_a_folder_without_weights_and_one_without_a_tokenizer(tmp_path: Path) -> None:
    folder = stored(tmp_path)
    with pytest.raises(ConfigError, match=r"no usable tokenizer: [^\n]*put the files"):
        load_tokenizer(ModelSection(path=str(folder)))
    changed(folder, hidden_act="siluu")
    with pytest.raises(ConfigError, match="knows no 'siluu', which its config"):
        check_files(str(folder), who="x")
    (folder / "model.safetensors").rename(folder / "model.gguf")
    with pytest.raises(ConfigError, match=r"has none of model\.safetensors, .*holds: .*gguf"):
        load_whole(AutoModelForCausalLM, str(folder), who="x")
