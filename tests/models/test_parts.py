"""Rows of weights read one by one from a checkpoint are those of a model that was loaded whole."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from agentrl.errors import ConfigError
from agentrl.models import recipes
from agentrl.models.parts import StoredWeight, is_in_parts, load_in_parts, stored_weight
from agentrl.models.whole import load_whole
from tests.models.test_whole import FAMILIES, SMALL, change, stored, without

CPU = torch.device("cpu")
MORE: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 16, "n_head": 2, "n_layer": 2, "n_positions": 64},
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "nemotron": {},
    "modernbert-decoder": {"num_attention_heads": 2, "global_attn_every_n_layers": 2},
}


def in_parts(folder: Path, loader: Any = AutoModelForCausalLM, **settings: Any) -> Any:
    settings = {"who": "model.path 'x'", "device": CPU, "dtype": torch.bfloat16, **settings}
    return load_in_parts(loader, str(folder), **settings)


def weight(param: Tensor) -> StoredWeight:
    found = stored_weight(param)
    assert found is not None
    return found


def make(folder: Path, family: str, **settings: Any) -> Path:
    if family in FAMILIES:
        return stored(folder, family, **settings)
    config = AutoConfig.for_model(family, **{**SMALL, **MORE[family]})
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder / family)
    return folder / family


def check_same(found: Any, whole: Any) -> None:
    """Every row of every weight, every buffer, and all that is saved with them."""
    params = dict(whole.named_parameters())
    assert [name for name, _ in found.named_parameters()] == list(params)
    for name, param in found.named_parameters():
        assert param.is_meta, name
        assert param.dtype == params[name].dtype, name
        assert param.requires_grad == params[name].requires_grad
        rows = len(param)
        for start, stop in ((0, -(-rows // 2)), (-(-rows // 2), rows), (rows // 3, rows // 3 + 1)):
            got = weight(param).rows(start, stop)
            assert got.dtype == param.dtype, name
            assert torch.equal(got, params[name][start:stop]), name
    buffers = dict(whole.named_buffers())
    assert [name for name, _ in found.named_buffers()] == list(buffers)
    for name, buffer in found.named_buffers():
        assert buffer.dtype == buffers[name].dtype, name
        assert torch.equal(buffer, buffers[name]), name
    assert found.config.to_dict() == whole.config.to_dict()
    assert type(found) is type(whole)
    assert found.training == whole.training
    if found.can_generate():
        assert found.generation_config.to_dict() == whole.generation_config.to_dict()
    steps = [repr(step) for step in whole._weight_conversions]
    assert [repr(step) for step in found._weight_conversions] == steps
    assert len(found.state_dict()) == len(whole.state_dict())  # tied weights are one


@pytest.mark.parametrize("family", [*FAMILIES, *MORE])
def test_rows_of_a_family_are_those_of_the_whole_model(tmp_path, family):
    folder = make(tmp_path, family)
    dtype = torch.bfloat16
    whole = load_whole(AutoModelForCausalLM, str(folder), who="x", dtype=dtype)
    check_same(in_parts(folder), whole)
    body = load_whole(AutoModel, str(folder), who="x", body=True, dtype=dtype)
    check_same(in_parts(folder, AutoModel, body=True), body)


def test_shards_and_the_older_format_are_read_in_parts_too(tmp_path):
    folder = stored(tmp_path, "mixtral")
    whole = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    whole.save_pretrained(tmp_path / "shards", max_shard_size="8KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 2
    check_same(in_parts(tmp_path / "shards"), whole_of(tmp_path / "shards"))
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")
    check_same(in_parts(folder), whole_of(folder))
    torch.save(weights, folder / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    with pytest.raises(
        ConfigError, match=r"'x': pytorch_model\.bin is in torch's format.*save_pre"
    ):
        in_parts(folder)


def whole_of(folder: Path) -> Any:
    return load_whole(AutoModelForCausalLM, str(folder), who="x", dtype=torch.bfloat16)


def test_a_tied_head_that_is_stored_too_is_looked_at(tmp_path, monkeypatch):
    """Fails if heads that are stored twice cannot be loaded, or are tied whatever they hold."""
    monkeypatch.setattr(recipes, "_LOOKED_AT", 40)
    for name, more in (("same", 0), ("other", 1)):
        folder = stored(tmp_path / name, "qwen3")

        def both(weights: Any, more: int = more) -> Any:
            head = weights["model.embed_tokens.weight"].clone()
            head[-1] += more
            return {**weights, "lm_head.weight": head}

        found, whole = in_parts(change(folder, both)), whole_of(folder)
        check_same(found, whole)
        tied = found.lm_head.weight is found.model.embed_tokens.weight
        assert tied == (whole.lm_head.weight is whole.model.embed_tokens.weight) == (not more)


def test_what_a_whole_load_refuses_is_refused_with_the_same_words(tmp_path):
    def refusals(folder: Path) -> None:
        said = []
        for load in (whole_of, in_parts):
            with pytest.raises(ConfigError) as caught:
                load(folder)
            said.append(re.sub("^(x|model.path 'x')", "", str(caught.value)))
        assert said[0] == said[1]

    refusals(change(stored(tmp_path / "lost"), without(r"layers\.1\.mlp\.up")))
    name = "model.embed_tokens.weight"
    refusals(change(stored(tmp_path / "shape"), lambda w: {**w, name: w[name][:-1]}))
    refusals(change(stored(tmp_path / "more"), lambda w: {**w, "odd.weight": torch.ones(2)}))
    name = "model.layers.1.block_sparse_moe.experts.2.w1.weight"
    refusals(change(stored(tmp_path / "expert", "mixtral"), lambda w: {**w, name: w[name][:-1]}))
    folder = stored(tmp_path / "cut")
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    refusals(folder)
    file.unlink()
    with pytest.raises(ConfigError, match=r"cannot be loaded: it has none of"):
        in_parts(folder)
    name = "model.layers.1.mlp.gate.e_score_correction_bias"
    nan = change(stored(tmp_path / "nan", "glm4_moe"), lambda w: {**w, name: w[name] * torch.nan})
    refusals(nan)


def test_a_weight_is_marked_by_its_numbers(tmp_path):
    folder = stored(tmp_path, "mixtral")
    marks = [{n: weight(p).mark() for n, p in in_parts(folder).named_parameters()} for _ in "ab"]
    assert marks[0] == marks[1]
    moved = change(folder, lambda w: {name: tensor + 1 for name, tensor in w.items()})
    for name, param in in_parts(moved).named_parameters():
        assert weight(param).mark() != marks[0][name], name


def test_a_step_that_no_recipe_can_have_loads_the_model_whole(tmp_path, monkeypatch, caplog):
    folder = stored(tmp_path, "mixtral")
    dispatch = recipes.Promised.__torch_dispatch__.__func__  # type: ignore[attr-defined]

    def refusing(cls: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket is torch.ops.aten.stack:
            func = torch.ops.aten.stack.out
        return dispatch(cls, func, types, args, kwargs)

    monkeypatch.setattr(recipes.Promised, "__torch_dispatch__", classmethod(refusing))
    model = in_parts(folder)
    assert not is_in_parts(model)
    assert re.search(r"'x' is loaded whole by every rank: .*MixtralForCausalLM.*stack", caplog.text)
    for name, param in whole_of(folder).named_parameters():
        assert torch.equal(param, model.get_parameter(name))


def test_steps_of_conversions_are_cut_where_they_can_be():
    """Fails if more of a file is read than a part needs, or the wrong part."""
    read: list[Any] = []

    class Seen:
        def __getitem__(self, index: Any) -> Tensor:
            found = torch.arange(24.0).reshape(6, 4)[index]
            if found.numel():
                read.append(found.numel())
            return found

        def get_shape(self) -> list[int]:
            return [6, 4]

    made = recipes.Promised(recipes.StoredTensor("a", Seen()))
    plain = torch.arange(24.0).reshape(6, 4)
    steps: list[tuple[Any, int]] = [
        (lambda t: t.to(torch.bfloat16), 4),
        (lambda t: t.transpose(0, 1).contiguous(), 6),
        (lambda t: t.T, 24),
        (lambda t: t.transpose(0, 1), 6),
        (lambda t: torch.stack([t, t + 0], 0), 24),
        (lambda t: torch.stack([t, t], 1), 8),
        (lambda t: torch.cat([t, t], 1), 8),
        (lambda t: torch.cat([t, t], 0), 4),
        (lambda t: t.chunk(2, 0)[1], 4),
        (lambda t: t.chunk(2, -1)[1], 4),
        (lambda t: t.split([2, 4])[1], 4),
        (lambda t: t.flip(0), 24),
    ]
    for number, (step, most) in enumerate(steps):
        want, found = step(plain), step(made)
        assert want.shape == found.shape
        assert want.stride() == found.stride()
        assert torch.equal(found.recipe.whole(), want), number
        for start in range(len(want)):
            read.clear()
            assert torch.equal(found.recipe.part(0, start, start + 1), want[start : start + 1])
            assert sum(read) == most, (number, read)
