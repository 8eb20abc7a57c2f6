"""Where the policy comes from, and what is said when it cannot be had."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from transformers import AutoModelForCausalLM

from agentrl.config.schema import ModelSection
from agentrl.errors import ConfigError
from agentrl.models.device import pick_device
from agentrl.models.lm_head import has_float32_head
from agentrl.models.source import check_model_path, load_tokenizer
from agentrl.train.model.pretrained import load_pretrained
from tests.runtime.tiny_project import write_model


def test_the_quickstart_model_answers(tmp_path):
    # The real 135M model: fails if dequantising, tying or saving loses a weight.
    loaded = load_pretrained(ModelSection(device="cpu", dtype="bfloat16"))
    ids = loaded.tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=False,
    )
    with torch.inference_mode():
        out = loaded.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=12,
            do_sample=False,
        )
    assert "Paris" in loaded.tokenizer.decode(out[0, ids.shape[1] :])
    parameters = dict(loaded.model.named_parameters())
    assert sum(p.numel() for p in parameters.values()) == 134_515_008
    assert {p.dtype for p in parameters.values()} == {torch.bfloat16}


def test_the_quickstart_checkpoint_is_an_ordinary_one(tmp_path):
    loaded = load_pretrained(ModelSection(device="cpu"))
    loaded.model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    name = "model.layers.3.mlp.up_proj.weight"
    assert torch.equal(again.state_dict()[name], loaded.model.state_dict()[name])


def test_a_folder_that_is_no_checkpoint(tmp_path):
    (tmp_path / "weights.txt").write_text("x")
    with pytest.raises(ConfigError, match=r"without config\.json.*weights\.txt"):
        check_model_path(str(tmp_path))


def test_a_folder_that_is_not_there():
    with pytest.raises(ConfigError, match="does not exist"):
        load_pretrained(ModelSection(path="./no/such/folder", device="cpu"))


def test_a_hub_name_that_cannot_be_reached(monkeypatch):
    # What HF_HUB_OFFLINE=1 sets when the client is imported.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match=r"nobody/nothing.*HF_HUB_OFFLINE"):
        load_tokenizer(ModelSection(path="nobody/nothing"))


def test_devices():
    assert pick_device("cpu") == torch.device("cpu")
    with pytest.raises(ConfigError, match="not a device"):
        pick_device("gpu")
    if not torch.cuda.is_available():
        assert pick_device("auto") == torch.device("cpu")
        with pytest.raises(ConfigError, match="0 CUDA devices"):
            pick_device("cuda:3")


def test_the_head_is_that_of_the_section(tmp_path):
    write_model(tmp_path)
    section = ModelSection(path=str(tmp_path), device="cpu", dtype="bfloat16")
    assert not has_float32_head(load_pretrained(section).model)
    wide = load_pretrained(section.model_copy(update={"head_dtype": "float32"})).model
    assert has_float32_head(wide)
    assert has_float32_head(copy.deepcopy(wide))
    # A checkpoint of it says nothing of the head: the run file decides.
    wide.save_pretrained(tmp_path)
    assert "head_dtype" not in (tmp_path / "config.json").read_text()


def test_a_checkpoint_whose_own_head_vllm_would_follow(tmp_path):
    write_model(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "head_dtype": "float32"}))
    section = ModelSection(path=str(tmp_path), device="cpu", dtype="bfloat16")
    with pytest.raises(ConfigError, match=r"head_dtype 'float32'.*set model\.head_dtype: float32"):
        load_pretrained(section)
    load_pretrained(section.model_copy(update={"head_dtype": "float32"}))
    load_pretrained(section.model_copy(update={"dtype": "float32"}))
