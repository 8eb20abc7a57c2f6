"""Checkpoints that only servers load, or that are exported, are looked at without a model."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from agentrl.config.training import LoraSection
from agentrl.errors import ConfigError
from agentrl.models.stored import check_stored, check_stored_adapter
from agentrl.train.model.lora import add_adapters
from agentrl.train.saving.held_policy import save_policy
from tests.models.test_whole import SMALL, change, stored, without
from tests.train.tiny_llama import tiny_model


def test_lost_tensors_and_numbers_that_are_not_finite_are_refused(tmp_path):
    folder = stored(tmp_path, "mixtral")
    check_stored(folder, who="x", numbers=True)
    change(folder, lambda w: {**w, "lm_head.weight": w["lm_head.weight"] * torch.inf})
    check_stored(folder, who="x")
    with pytest.raises(ConfigError, match=r"^x holds numbers .* lm_head\.weight \(0 NaN and 512"):
        check_stored(folder, who="x", numbers=True)
    change(folder, without("lm_head"))
    with pytest.raises(ConfigError, match=r"^x does not hold .* 1 missing: lm_head"):
        check_stored(folder, who="x")
    # Servers know models that transformers does not.
    config = json.loads((folder / "config.json").read_text())
    for other in ({"model_type": "unheard_of"}, {"quantization_config": {"quant_method": "awq"}}):
        (folder / "config.json").write_text(json.dumps({**config, **other}))
        check_stored(folder, who="x")


@pytest.mark.parametrize("part", ["lora_A", "lora_"])
def test_adapters_that_lost_a_layer_are_refused(tmp_path, part):
    model = tiny_model(torch.float32)
    add_adapters(model, LoraSection(rank=2, targets=("q_proj", "down_proj")), base="x")
    save_policy(model, SimpleNamespace(save_pretrained=lambda folder: None), tmp_path)
    folder = tmp_path / "adapter"
    check_stored_adapter(folder, base=tmp_path, who="x")
    file = folder / "adapter_model.safetensors"
    whole = load_file(file)
    save_file(without(rf"layers\.1\.mlp\.down_proj\.{part}")(whole), file)
    with pytest.raises(
        ConfigError, match=r"x lacks [12] tensors, model\.layers\.1\.mlp\.down_proj"
    ):
        check_stored_adapter(folder, base=tmp_path, who="x")
    name = next(name for name in whole if "q_proj" in name)
    save_file({**whole, name: whole[name] / 0}, file)
    with pytest.raises(ConfigError, match="q_proj"):
        check_stored_adapter(folder, base=tmp_path, who="x")


def test_adapters_on_a_shared_expert_are_whole_without_those_of_the_routed(tmp_path):
    shared = {"num_experts": 4, "moe_intermediate_size": 8, "shared_expert_intermediate_size": 16}
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model("qwen2_moe", **SMALL, num_experts_per_tok=2, **shared)
    )
    add_adapters(model, LoraSection(rank=2, targets=("q_proj", "gate_proj")), base="x")
    save_policy(model, SimpleNamespace(save_pretrained=lambda folder: None), tmp_path)
    check_stored_adapter(tmp_path / "adapter", base=tmp_path, who="x")
    file = tmp_path / "adapter" / "adapter_model.safetensors"
    save_file(without(r"layers\.1\..*gate_proj")(load_file(file)), file)
    with pytest.raises(ConfigError, match=r"lacks 2 tensors, .*1\.mlp\.shared_expert\.gate_proj"):
        check_stored_adapter(tmp_path / "adapter", base=tmp_path, who="x")
