"""Weights in 4 bits below adapters, and moments in 8: trained, stored, resumed, sent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from agentrl.config.schema import ModelSection, TrainSection
from agentrl.config.training import LoraSection
from agentrl.errors import ConfigError
from agentrl.models.own_forward import probe_ids
from agentrl.models.whole import checked_files
from agentrl.train.backends.choose import make_backend
from agentrl.train.model.adapters.four_bit import keep_in_four_bits
from agentrl.train.model.lora import add_adapters, base_weights, merged_weights
from agentrl.train.saving.held_policy import save_policy
from agentrl.train.trainer import Trainer
from tests.train.model.test_lora import NoTokenizer, adapted, gradients, logits
from tests.train.tiny_llama import (
    algorithm,
    make_groups,
    make_step,
    relative_error,
    tiny_model,
)

bits = pytest.importorskip("bitsandbytes")

LORA = LoraSection(rank=3, alpha=6.0, base="nf4")
QLORA = TrainSection(learning_rate=1e-2, lora=LORA)
EIGHT = TrainSection(learning_rate=1e-2, optimizer="adamw_8bit")
CPU = torch.device("cpu")


def small(dtype: torch.dtype = torch.float32, *, drawn: bool = True) -> Any:
    """A tiny model in 4 bits below its adapters."""
    model = adapted(dtype, fresh=not drawn, section=LORA)
    keep_in_four_bits(model, CPU)
    return model


def dequantised() -> Any:
    """The same model with adapters over whole weights, which are those of the 4 bits."""
    model = small()
    twin = tiny_model(torch.float32)
    twin.load_state_dict(dict(base_weights(model)), strict=False)
    add_adapters(twin, LORA, base="b")
    theirs = dict(twin.named_parameters())
    with torch.no_grad():
        for name, param in model.named_parameters():
            if ".lora_" in name:
                theirs[name].copy_(param)
    return twin


def test_numbers_and_gradients_are_those_of_the_dequantised_model() -> None:
    """Fails if the forward rounds elsewhere, if the backward pass takes another weight, or if the
    4 bits are the weights themselves."""
    model, twin = small(), dequantised()
    assert torch.allclose(logits(model), logits(twin), atol=1e-6)
    plain = tiny_model(torch.float32)
    gap = dict(base_weights(model))["model.layers.0.mlp.up_proj.weight"]
    assert not torch.allclose(gap, plain.model.layers[0].mlp.up_proj.weight, atol=1e-3)
    ours, theirs = gradients(model), gradients(twin)
    assert ours.keys() == theirs.keys() == {n for n in ours if ".lora_" in n}
    assert relative_error(ours, theirs) < 1e-5


def test_stored_bytes_are_those_of_four_bits_and_the_original_code() -> None:
    """The layer is that of bitsandbytes itself, `Linear4bit`, to the bit."""
    model = small()
    for name, weight in tiny_model(torch.float32).named_parameters():
        if not name.endswith("_proj.weight"):
            continue
        stored = model.get_parameter(name.replace(".weight", ".base_layer.weight"))
        assert stored.numel() * 2 == weight.numel()
        out, inner = weight.shape
        other = bits.nn.Linear4bit(inner, out, bias=False, quant_type="nf4")
        other.weight = bits.nn.Params4bit(weight.data, quant_type="nf4", requires_grad=False)
        other = other.to("cpu")
        x = torch.randn(5, inner, generator=torch.Generator().manual_seed(1))
        own = model.get_submodule(name.removesuffix(".weight")).base_layer
        assert torch.allclose(own(x), other(x), atol=1e-5), name


def test_a_start_proves_the_model_in_four_bits_and_refuses_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend = make_backend(small(), train=QLORA, gradient_checkpointing=False, ranks=None)
    assert backend.proof is not None
    from agentrl.models.bits import FourBitLinear

    # A kernel that is wrong for inputs that are longer than any row, as those of packed rows.
    right, longest = FourBitLinear.forward, probe_ids(small()).shape[1]

    def wrong(self: Any, x: Tensor) -> Tensor:
        return right(self, x) * (1.1 if x.shape[1] > longest else 1.0)

    monkeypatch.setattr(FourBitLinear, "forward", wrong)
    with pytest.raises(ConfigError, match=r"model\.path.*differ"):
        make_backend(small(), train=QLORA, gradient_checkpointing=False, ranks=None)


def test_merged_weights_are_sent_and_exported_whole(tmp_path: Path) -> None:
    """Other programs load what was trained. Fails if bytes of 4 bits leave the trainer."""
    from transformers import AutoModelForCausalLM

    model = small()
    names = [(name, param.shape) for name, param in tiny_model().named_parameters()]
    assert [(name, tensor.shape) for name, tensor in merged_weights(model)] == names
    save_policy(model, NoTokenizer(), tmp_path)
    whole = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert torch.allclose(logits(whole), logits(model), atol=1e-5)
    assert not torch.allclose(logits(whole), logits(tiny_model(torch.float32)), atol=1e-2)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_resumed_run_in_four_bits_is_the_uninterrupted_one(
    tmp_path: Path, checkpointing: bool
) -> None:
    one = small(torch.bfloat16, drawn=False)
    before = {name: param.detach().clone() for name, param in one.named_parameters()}
    settings = {"train": QLORA, "algorithm": algorithm(), "gradient_checkpointing": checkpointing}
    trainer = Trainer(one, **settings)
    for seed in range(2):
        trainer.step(make_step(make_groups(seed)))
    trainer.save(tmp_path)
    for name, param in one.named_parameters():
        assert torch.equal(param, before[name]) == (".lora_" not in name), name
    other = small(torch.bfloat16)
    again = Trainer(other, **settings)
    again.load(tmp_path)
    for each in (trainer, again):
        each.step(make_step(make_groups(2)))
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    assert all(torch.equal(mine, theirs) for mine, theirs in pairs)


class Wide(nn.Module):
    """A matrix of 8-bit moments, and a vector that keeps float32."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.matrix = nn.Parameter(torch.randn(96, 64))
        self.vector = nn.Parameter(torch.randn(64))


def moved(model: Any, *, times: int, optimizer: Any, first: int = 0) -> None:
    for at in range(first, first + times):
        generator = torch.Generator().manual_seed(at)
        for name, param in model.named_parameters():
            optimizer.gradient_or_zeros(name).copy_(torch.randn(param.shape, generator=generator))
        optimizer.step(learning_rate=1e-2, max_grad_norm=1e9, grad_norm=1.0)


def test_eight_bits_are_those_of_the_library_and_go_on_to_the_bit() -> None:
    from agentrl.train.optim.choose import make_optimizer

    train = EIGHT.model_copy(update={"weight_decay": 0.1})
    model = Wide()
    optimizer = make_optimizer(model, train)
    moved(model, times=3, optimizer=optimizer)
    own = bits.optim.AdamW8bit
    twin = Wide()
    theirs = own(
        [{"params": [twin.matrix], "weight_decay": 0.1}, {"params": [twin.vector],
         "weight_decay": 0.0}], lr=1e-2, betas=train.betas, eps=1e-8,
    )  # fmt: skip
    for at in range(3):
        generator = torch.Generator().manual_seed(at)
        for param in twin.parameters():
            param.grad = torch.randn(param.shape, generator=generator)
        theirs.step()
    assert torch.equal(model.matrix, twin.matrix)
    assert torch.equal(model.vector, twin.vector)
    state = optimizer.state_dict()
    assert state["moments"]["matrix"]["state1"].dtype == torch.uint8
    assert state["moments"]["vector"]["state1"].dtype == torch.float32

    resumed = Wide()
    second = make_optimizer(resumed, train)
    copied = {
        "masters": {n: t.clone() for n, t in state["masters"].items()},
        "moments": {
            n: {k: t.clone() for k, t in kept.items()} for n, kept in state["moments"].items()
        },
    }
    second.load_state_dict(copied)
    for one, each in ((model, optimizer), (resumed, second)):
        moved(one, times=2, optimizer=each, first=3)
    assert torch.equal(model.matrix, resumed.matrix)
    assert torch.equal(model.vector, resumed.vector)


def wide_llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=61, hidden_size=96, intermediate_size=96, num_hidden_layers=1,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512,
    )  # fmt: skip
    return LlamaForCausalLM(config).to(torch.bfloat16).eval()


def test_a_run_with_eight_bits_resumes_from_its_files_and_refuses_another(tmp_path: Path) -> None:
    one, other = wide_llama(), wide_llama()
    trainer = Trainer(one, train=EIGHT, algorithm=algorithm())
    for seed in range(2):
        trainer.step(make_step(make_groups(seed)))
    kinds = {m["state1"].dtype for m in trainer.backend.state_dict()["moments"].values()}
    assert kinds == {torch.uint8, torch.float32}
    trainer.save(tmp_path)
    again = Trainer(other, train=EIGHT, algorithm=algorithm())
    again.load(tmp_path)
    for each in (trainer, again):
        each.step(make_step(make_groups(2)))
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    assert all(torch.equal(mine, theirs) for mine, theirs in pairs)
    plain = Trainer(wide_llama(), train=TrainSection(), algorithm=algorithm())
    with pytest.raises(Exception, match=r"train\.optimizer was another"):
        plain.load(tmp_path)


def test_backends_that_divide_are_refused() -> None:
    with pytest.raises(ValueError, match=r"optimizer is adamw_8bit, whose blocks .* fsdp2 cannot"):
        TrainSection(optimizer="adamw_8bit", backend="fsdp2")
    with pytest.raises(ValueError, match=r"lora\.base is nf4, whose blocks .* deepspeed cannot"):
        TrainSection(lora=LORA, backend="deepspeed")


@pytest.mark.parametrize("kind", ["gptq", "awq", "fp8"])
def test_a_quantised_checkpoint_is_refused_in_a_sentence(tmp_path: Path, kind: str) -> None:
    settings = {"model_type": "llama", "quantization_config": {"quant_method": kind}}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    with pytest.raises(ConfigError, match=rf"^model is quantised .{kind}, by .*nf4 keeps"):
        checked_files(tmp_path, "model")


def test_a_policy_is_loaded_in_four_bits_and_counted_so(tmp_path: Path) -> None:
    from agentrl.preflight.memory.shape import model_shape
    from agentrl.train.model.load import load_trained
    from tests.runtime.tiny_project import write_project

    write_project(tmp_path)
    section = ModelSection(path=str(tmp_path / "model"), device="cpu", dtype="bfloat16")
    loaded = load_trained(section, QLORA, checkpoint=None)
    shape = model_shape(section)
    packed = sum(p.numel() for p in loaded.model.parameters() if p.dtype == torch.uint8)
    assert packed * 2 == shape.linear
