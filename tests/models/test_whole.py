"""A checkpoint is loaded whole or refused by name; what its class leaves out is no fault."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from agentrl.errors import ConfigError, RunError, TrainError
from agentrl.models.hub_format import save_pretrained
from agentrl.models.whole import check_whole, load_whole
from agentrl.train.checkpoint import load_trainer_state
from tests.train.saved_states import write_format_2, write_state

Weights = dict[str, Tensor]
SMALL: dict[str, Any] = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
EXPERTS = {"moe_intermediate_size": 8, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1}
LATENT = {
    "num_key_value_heads": 2,
    "q_lora_rank": 8,
    "kv_lora_rank": 8,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 4,
    "v_head_dim": 8,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen3": {"tie_word_embeddings": True},
    "gemma2": {},
    "gemma3_text": {},
    "phi3": {},
    "granite": {},
    "gpt_neox": {},
    "mixtral": {"num_local_experts": 4},
    "qwen3_moe": {"num_experts": 4, "moe_intermediate_size": 8},
    "olmoe": {"num_experts": 4, "num_experts_per_tok": 2},
    "deepseek_v3": {
        **EXPERTS,
        **LATENT,
        "n_routed_experts": 4,
        "first_k_dense_replace": 1,
        "num_nextn_predict_layers": 1,
    },
    "glm4_moe": {
        **EXPERTS,
        "n_routed_experts": 4,
        "first_k_dense_replace": 1,
        "num_nextn_predict_layers": 1,
    },
}


def stored(folder: Path, family: str = "llama", **settings: Any) -> Path:
    """A random model of two layers in its own folder, in the names of the hub."""
    config = AutoConfig.for_model(family, **{**SMALL, **FAMILIES[family], **settings})
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder / family)
    return folder / family


def change(folder: Path, how: Callable[[Weights], Weights]) -> Path:
    """Write the weights of a folder again, changed."""
    weights = how(load_file(folder / "model.safetensors"))
    weights = {name: tensor.clone().contiguous() for name, tensor in weights.items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def refusal(folder: Path, loader: Any = AutoModelForCausalLM, **settings: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        load_whole(loader, str(folder), who="model.path 'x'", **settings)
    assert str(caught.value).startswith("model.path 'x'")
    assert len(str(caught.value)) < 1000
    return str(caught.value)


def without(part: str) -> Callable[[Weights], Weights]:
    return lambda weights: {name: w for name, w in weights.items() if not re.search(part, name)}


def called(name_of: Callable[[str], str]) -> Callable[[Weights], Weights]:
    return lambda weights: {name_of(name): w for name, w in weights.items()}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_whole_model_of_a_family_is_taken_and_a_lost_tensor_is_not(tmp_path, family):
    folder = stored(tmp_path, family)
    for tensor in load_whole(AutoModelForCausalLM, str(folder), who="x").state_dict().values():
        assert not tensor.is_meta
    config = AutoConfig.from_pretrained(folder)
    check_whole(AutoModelForCausalLM, config, folder, who="x")
    load_whole(AutoModel, str(folder), who="x", body=True)
    # Older and fuller folders: tables of positions, layers that guess a second token,
    # scales of caches.
    extra = {
        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4),
        "mtp.layers.0.fc.weight": torch.ones(2),
        "model.layers.0.self_attn.attn.k_scale": torch.ones(1),
    }
    if "num_nextn_predict_layers" in FAMILIES[family]:
        extra["model.layers.2.eh_proj.weight"] = torch.ones(2)
    change(folder, lambda weights: {**weights, **extra})
    load_whole(AutoModelForCausalLM, str(folder), who="x")
    load_whole(AutoModel, str(folder), who="x", body=True)
    if family == "deepseek_v3":
        copy = Path(shutil.copytree(folder, tmp_path / "copy"))
        lost_bias = refusal(change(copy, without("e_score")))
        assert "1 missing" in lost_bias
        assert lost_bias.endswith("e_score_correction_bias can be copied from the base model")
    # One projection of one layer, or of one expert of it.
    lost = r"layers\.1\..*(experts\.1\.(down_proj|w2)|mlp\.(down_proj|dense_4h_to_h))\.weight"
    before = load_file(folder / "model.safetensors")
    after = load_file(change(folder, without(lost)) / "model.safetensors")
    assert len(before) - len(after) == 1, sorted(before)
    for loader, body in ((AutoModelForCausalLM, False), (AutoModel, True)):
        assert re.search(r"layers\.1\..*(down_proj|4h_to_h)", refusal(folder, loader, body=body))
    with pytest.raises(ConfigError, match=r"layers\.1\."):
        check_whole(AutoModelForCausalLM, config, folder, who="x")


@pytest.mark.parametrize(
    ("how", "found"),
    [
        (without(r"layers\.1\."), r"9 missing: .* and 5 more; what is missing would be random"),
        (without("lm_head"), r"1 missing: lm_head\.weight;"),
        (called("base_model.model.{}".format), r"21 missing: .*21 left over: .*wrapper \(PEFT"),
        (called("module.{}".format), r"21 missing: .*'module' are those of a wrapper"),
        (called("_orig_mod.{}".format), r"21 missing: .*'_orig_mod' are those of a wrapper"),
        (called("policy.{}".format), r"21 missing: .*left over: policy"),
        (
            called(lambda name: name.replace(".mlp.", "._fsdp_wrapped_module.mlp.")),
            r"6 missing.*_fsdp_wrapped_module' are those of a wrapper",
        ),
        (
            called(lambda name: name.replace("q_proj.", "q_proj.base_layer.")),
            r"2 missing.*adapter \(PEFT\).*merge_and_unload",
        ),
        (
            lambda weights: {**weights, "model.layers.0.self_attn.q_proj.bias": torch.ones(16)},
            r"1 left over: model\.layers\.0\.self_attn\.q_proj\.bias; give the config\.json",
        ),
        (
            lambda w: {**w, "model.embed_tokens.weight": w["model.embed_tokens.weight"][:-3]},
            r"1 of another shape: model\.embed_tokens\.weight \[29, 16\], expected \[32, 16\]",
        ),
    ],
)
def test_what_does_not_fit_is_named_with_the_remedy(tmp_path, how, found):
    folder = change(stored(tmp_path), how)
    assert re.search(found, refusal(folder)), refusal(folder)
    config = AutoConfig.from_pretrained(folder)
    with pytest.raises(ConfigError, match=found):
        check_whole(AutoModelForCausalLM, config, folder, who="x")
    # The same in the older format.
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    assert re.search(found, refusal(folder))
    with pytest.raises(ConfigError, match=found):
        check_whole(AutoModelForCausalLM, config, folder, who="x")


def test_tied_heads_need_one_of_the_two_and_layers_beyond_the_config_are_left_over(tmp_path):
    folder = change(stored(tmp_path, "qwen3"), lambda weights: weights)
    assert "lm_head.weight" not in load_file(folder / "model.safetensors")
    change(folder, without("embed_tokens"))
    assert "model.embed_tokens.weight" in refusal(folder)
    folder = stored(tmp_path, "llama", num_hidden_layers=3)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 2}))
    assert "9 left over: model.layers.2" in refusal(folder)
    assert "9 left over: model.layers.2" in refusal(folder, AutoModel, body=True)


def test_shards_left_out_cut_or_beside_another_model(tmp_path):
    folder = stored(tmp_path)
    shards = tmp_path / "shards"
    model = AutoModelForCausalLM.from_pretrained(folder)
    model.save_pretrained(shards, max_shard_size="8KB")
    files = sorted(shards.glob("model-*.safetensors"))
    assert len(files) > 2
    load_whole(AutoModelForCausalLM, str(shards), who="x")
    shutil.copy(folder / "model.safetensors", shards)
    assert "holds two models: model.safetensors, and" in refusal(shards)
    (shards / "model.safetensors").unlink()
    whole = files[1].read_bytes()
    files[1].write_bytes(whole[:-100])
    assert f"{files[1].name} is not whole" in refusal(shards)
    files[1].write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    assert "git lfs pull" in refusal(shards)
    files[1].unlink()
    assert f"lacks 1 of the {len(files)} shards" in refusal(shards)
    # An index that was mended by hand does not name the shard either.
    path = shards / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    kept = {k: v for k, v in index["weight_map"].items() if v != files[1].name}
    path.write_text(json.dumps({**index, "weight_map": kept}))
    assert " missing: " in refusal(shards)
    path.write_text("[]")
    assert "no index of shards" in refusal(shards)
    # What is loaded is whole; the older format beside it is left out.
    older = {"weight_map": {"lm_head.weight": "pytorch_model-00001-of-00002.bin"}}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(older))
    load_whole(AutoModelForCausalLM, str(folder), who="x")
    (folder / "pytorch_model.bin.index.json").unlink()
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    load_whole(AutoModelForCausalLM, str(folder), who="x")
    cut = (folder / "pytorch_model.bin").read_bytes()[:-500]
    (folder / "pytorch_model.bin").write_bytes(cut)
    assert "cannot be loaded" in refusal(folder)
    (folder / "adapter_config.json").write_text("{}")
    assert "an adapter of another model" in refusal(folder)


def test_an_expert_of_another_shape_is_named(tmp_path):
    name = "model.layers.1.block_sparse_moe.experts.2.w1.weight"
    folder = change(stored(tmp_path, "mixtral"), lambda w: {**w, name: w[name][:-1]})
    found = f"1 of another shape than their like: {name} [15, 16]"
    assert found in refusal(folder)
    config = AutoConfig.from_pretrained(folder)
    with pytest.raises(ConfigError, match=re.escape(found)):
        check_whole(AutoModelForCausalLM, config, folder, who="x")


@pytest.mark.parametrize(("value", "count"), [("nan", "1 NaN and 0"), ("-inf", "0 NaN and 1")])
def test_a_number_that_is_not_finite_is_named_with_its_tensor(tmp_path, value, count):
    name = "model.layers.1.mlp.up_proj.weight"

    def poison(weights: Weights) -> Weights:
        weights[name][3, 2] = float(value)
        return weights

    folder = change(stored(tmp_path), poison)
    for dtype in (torch.float32, torch.bfloat16):
        said = refusal(folder, dtype=dtype)
        assert f"not finite, in 1 of its tensors: {name} ({count} infinite of 256)" in said


def test_weights_that_are_not_finite_are_neither_saved_nor_resumed(tmp_path):
    model = AutoModelForCausalLM.from_pretrained(stored(tmp_path))
    with torch.no_grad():
        model.lm_head.weight[2, 1] = torch.inf
    said = r"about to be saved, .*lm_head\.weight \(0 NaN and 1 infinite of 512\)"
    with pytest.raises(TrainError, match=said):
        save_pretrained(model, tmp_path / "own")
    with pytest.raises(TrainError, match=said):
        save_pretrained(model, tmp_path / "own", weights=dict(model.named_parameters()))
    assert not (tmp_path / "own").exists()
    good, bad = (
        {"masters": {"w": torch.tensor([1.0, x])}, "moments": {}} for x in (2.0, torch.nan)
    )
    cases: tuple[dict[str, Any], ...]
    cases = ({"optimizer": bad}, {"critic": bad}, {"reference": bad["masters"]})
    for parts in cases:
        with pytest.raises(TrainError, match=r"w.* \(1 NaN and 0 infinite of 2\)"):
            write_state(tmp_path / "state", version=1, **{"optimizer": good, **parts})
    assert not [path for path in (tmp_path / "state").rglob("*") if path.is_file()]
    write_state(tmp_path / "state", version=1, optimizer=good)
    assert load_trainer_state(tmp_path / "state").version == 1
    (part,) = (tmp_path / "state" / "trainer").iterdir()
    whole = part.read_bytes()
    numbers, odd = (torch.tensor([1.0, x]).numpy().tobytes() for x in (2.0, torch.nan))
    assert whole.count(numbers) == 1
    part.write_bytes(whole.replace(numbers, odd))
    with pytest.raises(RunError, match=r"trainer holds numbers .* w \(1 NaN"):
        load_trainer_state(tmp_path / "state")
    write_format_2(tmp_path / "state", version=1, optimizer=bad)
    with pytest.raises(RunError, match=r"trainer\.pt holds numbers .* w \(1 NaN"):
        load_trainer_state(tmp_path / "state")
