"""Muon for the matrices of the layers, AdamW for the rest; on masters, saved and resumed."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

from agentrl.config.schema import TrainSection
from agentrl.errors import ConfigError, RunError
from agentrl.train.optim.choose import make_optimizer
from agentrl.train.optim.muon import MasterMuon, layer_matrices
from agentrl.train.optim.optimizer import MasterAdamW
from agentrl.train.trainer import Trainer
from tests.train.tiny_llama import algorithm, make_groups, make_step, tiny_model

MUON = TrainSection(learning_rate=1e-2, optimizer="muon")


def weights(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: param.detach().clone() for name, param in model.named_parameters()}


def trained(model: nn.Module, train: TrainSection, steps: int = 1) -> Trainer:
    trainer = Trainer(model, train=train, algorithm=algorithm())
    for seed in range(steps):
        trainer.step(make_step(make_groups(seed)))
    return trainer


def layer(rows: int, columns: int) -> nn.Module:
    """A model of one layer with one matrix, and a bias outside of it."""
    model = nn.Module()
    model.layers = nn.ModuleList([nn.Linear(columns, rows, bias=False)])
    model.bias = nn.Parameter(torch.zeros(3))
    return model


@pytest.mark.parametrize("tied", [True, False])
def test_matrices_inside_the_layers_and_nothing_else(tied: bool):
    # Fails if embeddings, an untied head or norms are taken.
    model = tiny_model(torch.float32, tied=tied)
    kinds = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
    kinds += ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
    wanted = {f"model.layers.{i}.{kind}.weight" for i in range(2) for kind in kinds}
    assert set(layer_matrices(model)) == wanted


def test_layers_of_another_architecture_are_found():
    # No name of Llama's is looked for; GPT-2 keeps its layers in `transformer.h`.
    config = GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=11, n_positions=16)
    found = set(layer_matrices(GPT2LMHeadModel(config)))
    kinds = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
    assert found == {f"transformer.h.0.{kind}.weight" for kind in kinds}


def test_frozen_and_looked_up_matrices_are_left_out():
    model = layer(4, 2)
    model.layers.append(nn.Embedding(5, 2))
    frozen = nn.Linear(2, 2)
    frozen.weight.requires_grad_(False)
    model.layers.append(frozen)
    assert list(layer_matrices(model)) == ["layers.0.weight"]


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (2, 8), (8, 2)])
def test_the_first_update_of_a_rank_one_gradient_by_hand(rows: int, columns: int):
    """The gradient s u v' has one singular value, so Newton-Schulz is five steps on a number.

    x -> a x + b x^3 + c x^5 from x = 1 by hand; the update is then x u v', times the learning rate
    and 0.2 sqrt(max(A, B)). Fails with the other scaling (sqrt(max(1, A/B))), and with a gradient
    that is not made to have norm 1 first.
    """
    x = 1.0
    for _ in range(5):
        x = 3.4445 * x - 4.7750 * x**3 + 2.0315 * x**5
    model = layer(rows, columns)
    before = weights(model)
    optimizer = MasterMuon(model, betas=(0.9, 0.95), weight_decay=0.0)
    model.layers[0].weight.grad = torch.full((rows, columns), 7.0)
    optimizer.step(learning_rate=0.1, max_grad_norm=1e9, grad_norm=1.0)
    moved = weights(model)["layers.0.weight"] - before["layers.0.weight"]
    size = 0.1 * 0.2 * math.sqrt(max(rows, columns)) * x / math.sqrt(rows * columns)
    assert torch.allclose(moved, torch.full((rows, columns), -size), rtol=3e-2)


def test_the_update_has_no_singular_value_far_from_one():
    # What sets Muon apart: a gradient with values from 1 to 100 moves all directions alike.
    torch.manual_seed(0)
    model = layer(6, 6)
    before = weights(model)
    u, v = (torch.linalg.qr(torch.randn(6, 6))[0] for _ in range(2))
    model.layers[0].weight.grad = u @ torch.diag(torch.tensor([1.0, 3, 9, 20, 50, 100])) @ v
    optimizer = MasterMuon(model, betas=(0.9, 0.95), weight_decay=0.0)
    optimizer.step(learning_rate=1.0, max_grad_norm=1e9, grad_norm=1.0)
    moved = before["layers.0.weight"] - weights(model)["layers.0.weight"]
    values = torch.linalg.svdvals(moved) / (0.2 * math.sqrt(6))
    assert float(values.min()) > 0.5
    assert float(values.max()) < 1.3


def test_what_is_no_matrix_of_a_layer_moves_as_with_adamw():
    # Bit-equal to a run with AdamW after one step. Fails if the two share a learning rate group
    # that is not set, or if AdamW is left out.
    ours, theirs = tiny_model(torch.float32), tiny_model(torch.float32)
    matrices = set(layer_matrices(ours))
    trained(ours, MUON)
    trained(theirs, TrainSection(learning_rate=1e-2))
    for (name, mine), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert torch.equal(mine, other) == (name not in matrices), name


def test_weight_decay_of_matrices_is_that_of_adamw():
    model = layer(4, 2)
    before = weights(model)
    optimizer = make_optimizer(model, TrainSection(optimizer="muon", weight_decay=0.5))
    for param in model.parameters():
        param.grad = torch.zeros_like(param)
    optimizer.step(learning_rate=0.1, max_grad_norm=1.0, grad_norm=1.0)
    after = weights(model)
    assert torch.allclose(after["layers.0.weight"], before["layers.0.weight"] * 0.95)
    assert torch.equal(after["bias"], before["bias"])


def test_masters_keep_what_bfloat16_would_lose():
    # Fails if Muon works on the parameters: the state would be bfloat16.
    model = tiny_model(torch.bfloat16)
    state = trained(model, MUON).backend.state_dict()
    name = "model.layers.0.mlp.up_proj.weight"
    assert state["masters"][name].dtype == torch.float32
    assert state["moments"][name]["momentum_buffer"].dtype == torch.float32
    published = dict(model.named_parameters())[name]
    assert torch.equal(published, state["masters"][name].to(torch.bfloat16))
    assert not torch.equal(published.float(), state["masters"][name])


def test_a_resumed_run_is_the_uninterrupted_one(tmp_path):
    # Bit-equal. Fails if momentum is not saved, or if it comes back for the wrong matrix.
    whole = tiny_model(torch.bfloat16)
    trained(whole, MUON, steps=3)
    first = tiny_model(torch.bfloat16)
    trained(first, MUON, steps=2).save(tmp_path)
    second = tiny_model(torch.bfloat16, seed=5)
    trainer = Trainer(second, train=MUON, algorithm=algorithm())
    trainer.load(tmp_path)
    trainer.step(make_step(make_groups(2)))
    assert all(torch.equal(mine, weights(whole)[name]) for name, mine in weights(second).items())


@pytest.mark.parametrize("first", ["adamw", "muon"])
def test_the_state_of_the_other_optimizer_is_refused(first: str):
    # Fails without the check: AdamW would look for moments that are not there in its next step.
    model = tiny_model(torch.float32)
    second = "muon" if first == "adamw" else "adamw"
    state = trained(model, MUON.model_copy(update={"optimizer": first})).backend.state_dict()
    other = make_optimizer(model, MUON.model_copy(update={"optimizer": second}))
    with pytest.raises(RunError, match=r"keeps .* for model\.layers\.0.*train\.optimizer"):
        other.load_state_dict(state)


def test_a_model_without_layers_is_refused():
    with pytest.raises(ConfigError, match="Linear has no trained matrix inside a list of layers"):
        make_optimizer(nn.Linear(2, 2), MUON)


def test_adamw_stays_what_it_is_without_being_asked():
    assert type(make_optimizer(nn.Linear(2, 2), TrainSection())) is MasterAdamW
