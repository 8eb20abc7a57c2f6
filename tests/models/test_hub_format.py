"""Saving a model imports nothing that the model does not use."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file

from agentrl.config.schema import TrainSection
from agentrl.models.hub_format import hold_weights, save_pretrained
from agentrl.models.stored_form import StoredForm
from agentrl.models.whole import load_whole
from agentrl.train.checkpoint import load_trainer_state
from agentrl.train.model.lora import base_weights
from agentrl.train.saving.held_trainer import hold_trained
from agentrl.train.saving.rounded import write_rounded
from agentrl.train.trainer import Trainer
from tests.train.tiny_llama import algorithm, make_groups, make_step, tiny_model


class _Forbid:
    """Finder of modules for which DeepSpeed is installed and must not be imported."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        assert name.split(".")[0] != "deepspeed", "DeepSpeed is looked for"


def test_a_model_is_saved_without_importing_deepspeed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "deepspeed"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [_Forbid(), *sys.meta_path])
    model = tiny_model(torch.float32)
    save_pretrained(model, tmp_path / "own")
    others = {name: tensor + 1 for name, tensor in model.named_parameters()}
    save_pretrained(model, tmp_path / "others", weights=others)
    own = load_file(tmp_path / "own" / "model.safetensors")
    found = load_file(tmp_path / "others" / "model.safetensors")
    assert own.keys() == found.keys()
    assert all(torch.equal(found[name], own[name] + 1) for name in own)
    with pytest.raises(AssertionError, match="is looked for"):
        model.save_pretrained(tmp_path / "plain")


_SMALL = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
_EXPERTS = {"n_routed_experts": 4, "n_shared_experts": 1, "moe_intermediate_size": 24}
_FAMILIES = {
    # Renamed, and experts in one tensor each: `block_sparse_moe.experts.N.w1` in the files.
    "mixtral": {"num_local_experts": 4},
    "qwen3_moe": {"num_experts": 4, "moe_intermediate_size": 24, "num_experts_per_tok": 2},
    # A router's bias is a buffer.
    "glm4_moe": {**_EXPERTS, "first_k_dense_replace": 1, "num_experts_per_tok": 2},
    # Nothing is another in the files.
    "llama": {"tie_word_embeddings": True},
}


@pytest.mark.parametrize("family", _FAMILIES)
def test_the_stored_form_of_a_stream_is_what_is_saved(family: str, tmp_path: Path) -> None:
    """Fails if a name, a joined tensor or a persistent buffer is another than in the files, which
    are what an engine reads."""
    section = transformers.AutoConfig.for_model(family, **_SMALL, **_FAMILIES[family])
    transformers.AutoModelForCausalLM.from_config(section).save_pretrained(tmp_path)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    held = dict(base_weights(model))
    form = StoredForm(model, held)
    for _ in range(2):
        found = list(form(iter(held.items())))
        saved = load_file(tmp_path / "model.safetensors")
        assert sorted(name for name, _ in found) == sorted(saved)
        assert all(torch.equal(tensor, saved[name]) for name, tensor in found)
    assert form.renamed("model.embed_tokens.weight") == "model.embed_tokens.weight"
    whole = "model.layers.1.mlp.experts.gate_up_proj"
    assert (form.renamed(whole) is None) == (whole in held)


def test_what_files_join_is_sent_when_all_of_it_has_come() -> None:
    """Fails if half of a tensor goes for the whole."""
    from transformers.core_model_loading import Chunk, WeightConverter

    model: torch.nn.Module = tiny_model(torch.float32)
    parts = ["mlp.gate_proj.weight", "mlp.up_proj.weight"]
    model._weight_conversions = [  # type: ignore[assignment]
        WeightConverter("mlp.gate_up_proj.weight", parts, [Chunk(dim=0)])
    ]
    held = dict(model.named_parameters())
    found = dict(StoredForm(model, held)(held.items()))
    layer = "model.layers.0."
    joined = torch.cat([held[layer + part] for part in parts])
    assert torch.equal(found[f"{layer}mlp.gate_up_proj.weight"], joined)
    assert len(found) == len(held) - len([name for name in held if "up_proj" in name])
    with pytest.raises(AssertionError, match=r"before all parts of .*gate_up_proj"):
        list(StoredForm(model, held)(list(held.items())[:-1][::-1][-6:]))


def test_shards_above_a_lowered_limit_are_one_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if a tensor larger than the limit is cut or lost, or a state that lies on top of the
    weights looks for them in one file."""

    class NoTokenizer:
        def save_pretrained(self, folder: Path) -> None:
            """Nothing."""

    model = tiny_model(torch.bfloat16)
    trainer = Trainer(model, train=TrainSection(learning_rate=1e-2), algorithm=algorithm())
    trainer.step(make_step(make_groups(0), algorithm=algorithm()))
    assert hold_weights.__kwdefaults__ is not None
    monkeypatch.setitem(hold_weights.__kwdefaults__, "shard_bytes", 1500)
    hold_trained(model, NoTokenizer(), trainer)(tmp_path)
    files = sorted(tmp_path.glob("model-*.safetensors"))
    shards = [load_file(path) for path in files]
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["weight_map"] == {
        name: path.name for path, shard in zip(files, shards, strict=True) for name in shard
    }
    sizes = [sum(tensor.nbytes for tensor in shard.values()) for shard in shards]
    large = [len(shard) for shard, size in zip(shards, sizes, strict=True) if size > 1500]
    assert large, "no tensor is above the limit"
    assert set(large) == {1}
    assert len(shards) - len(large) > 1
    assert index["metadata"]["total_size"] == sum(sizes)
    whole = load_whole(transformers.AutoModelForCausalLM, str(tmp_path), who="x")
    for name, param in model.named_parameters():
        assert torch.equal(whole.get_parameter(name), param)
    exact = load_trainer_state(tmp_path).optimizer["masters"]
    exact = {name: tensor.clone() for name, tensor in exact.items()}
    (tmp_path / "trainer-rounded").mkdir()
    write_rounded(tmp_path, tmp_path / "trainer-rounded")
    shutil.rmtree(tmp_path / "trainer")
    rounded = load_trainer_state(tmp_path).optimizer["masters"]
    for name, tensor in exact.items():
        assert (rounded[name].view(torch.int32) - tensor.view(torch.int32)).abs().max() <= 1
