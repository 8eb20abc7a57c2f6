"""Muon on matrices of which ranks hold parts: the update of whole ones, and the work divided."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from agentrl.errors import RunError
from agentrl.train.optim.divided_muon import MatrixPart, step_matrices
from agentrl.train.optim.muon import muon
from tests.train.backends.sharded_trainers import (
    KINDS,
    algorithm,
    needs,
    run,
    same_bits,
    section,
    train_alone,
    train_together,
)
from tests.train.crew import joined
from tests.train.tiny_llama import make_groups, make_step, relative_error, tiny_model

pytestmark = pytest.mark.slow

MUON = {"optimizer": "muon"}
STEPS = [make_step(make_groups(seed), micro_batch_tokens=32) for seed in (0, 1, 2)]


@pytest.mark.parametrize(("world_size", "tied"), [(2, True), (3, False)])
def test_fsdp2_moves_matrices_as_one_process_does(crew, world_size, tied):
    """Fails if slices are orthogonalised one by one, if the momentum of another slice is used, or
    if a matrix is sent to one rank and its update to another."""
    options = {"train": section(**KINDS["fsdp2"], **MUON), "algorithm": algorithm(), "tied": tied}
    alone = train_alone(STEPS, torch.float64, dict(options))
    ranks = crew.run(world_size, train_together, STEPS, torch.float64, dict(options))
    for rank in ranks:
        assert same_bits(rank["weights"], ranks[0]["weights"])
    assert relative_error(ranks[0]["weights"], alone["weights"]) < 1e-9
    for mine, other in zip(ranks[0]["metrics"], alone["metrics"], strict=True):
        assert mine == pytest.approx(other, rel=1e-9)
    mine, other = ranks[0]["state"]["moments"], alone["state"]["moments"]
    assert mine.keys() == other.keys()
    for name, parts in other.items():
        assert mine[name].keys() == parts.keys()
        assert relative_error(mine[name], parts) < 1e-9


@pytest.mark.parametrize("kind", ["zero0", "zero1", "zero2-offload", "zero3"])
def test_zero_moves_matrices_as_one_process_does(crew, kind):
    """Fails if a part is looked for in another place of a flat tensor, if the padding of the last
    rank is taken for numbers, or if the gradient is orthogonalised before it is clipped."""
    needs(kind)
    options = {"train": section(**KINDS[kind], **MUON), "algorithm": algorithm()}
    alone = train_alone(STEPS[:2], torch.float32, dict(options))
    ranks = crew.run(2, train_together, STEPS[:2], torch.float32, dict(options))
    assert same_bits(ranks[1]["weights"], ranks[0]["weights"])
    began = dict(tiny_model(torch.float32).named_parameters())
    moved = [{n: w - began[n].detach() for n, w in r["weights"].items()} for r in (ranks[0], alone)]
    mine, other = ranks[0]["state"]["moments"], alone["state"]["moments"]
    # Newton-Schulz in bfloat16 makes 1e-2 of a last bit, in an element here and there.
    assert relative_error(*moved) < 1e-2
    assert mine.keys() == other.keys()
    for name, parts in other.items():
        assert mine[name].keys() == parts.keys()
        assert relative_error(mine[name], parts) < 1e-3


def begin(address, rank, world_size, kind, dtype, steps, save):
    return go_on(address, rank, world_size, kind, dtype, None, steps, save)


def go_on(address, rank, world_size, kind, dtype, folder, steps, save=None, optimizer="muon"):
    ranks = joined(address, rank, world_size)
    try:
        train = section(**KINDS[kind], optimizer=optimizer)
        model = tiny_model(dtype, seed=7 if folder else 0)
        return run(model, ranks, steps, train=train, algorithm=algorithm(), load=folder, save=save)
    finally:
        ranks.close()


@pytest.mark.parametrize(
    ("kind", "dtype", "error"),
    [
        ("fsdp2", torch.float64, 1e-9),
        ("zero2-offload", torch.float32, 1e-3),
        ("zero3", torch.float32, 1e-3),
    ],
)
def test_momentum_is_saved_whole_and_any_number_of_ranks_goes_on(
    crew, kind, dtype, error, tmp_path
):
    """Fails if momentum is lost or comes back for the wrong matrix, and if the count of AdamW's
    steps is."""
    needs(kind)
    options = {"train": section(**MUON), "algorithm": algorithm()}
    whole = train_alone(STEPS, dtype, dict(options))
    folder = tmp_path / "three"
    crew.run(2, begin, kind, dtype, STEPS[:1], tmp_path / "two")
    three = crew.run(3, go_on, kind, dtype, tmp_path / "two", STEPS[1:2], folder)[0]
    again = crew.run(2, go_on, kind, dtype, folder, [])[0]
    for name, parts in three["state"]["moments"].items():
        assert same_bits(again["state"]["moments"][name], parts)
    alone = run(tiny_model(dtype, seed=7), None, STEPS[2:], load=folder, **options)
    assert relative_error(alone["weights"], whole["weights"]) < error


def refused(address, rank, world_size, kind, folder):
    with pytest.raises(RunError, match=r"keeps .* for .*train\.optimizer was another"):
        go_on(address, rank, world_size, kind, torch.float32, folder, [], optimizer="adamw")
    return True


@pytest.mark.parametrize("kind", ["fsdp2", "zero2"])
def test_the_state_of_the_other_optimizer_is_refused(crew, kind, tmp_path):
    needs(kind)
    crew.run(2, begin, kind, torch.float32, STEPS[:1], tmp_path)
    assert crew.run(2, refused, kind, tmp_path) == [True, True]


SHAPES = [(6, 4), (3, 8), (1, 5), (7, 7), (2, 2)]


def numbers(seed):
    torch.manual_seed(seed)
    return [torch.randn(shape, dtype=torch.float64) for shape in SHAPES]


def divided(address, rank, world_size, sizes, gradients):
    """Some steps on parts of any size, laid out one after the other in a flat tensor."""
    ranks = joined(address, rank, world_size)
    try:
        ranks.open_global_group()
        group = torch.distributed.group.WORLD
        held = [
            list(whole.flatten().split(list(s))) for whole, s in zip(numbers(0), sizes, strict=True)
        ]
        flat = nn.Parameter(torch.cat([parts[rank] for parts in held]))
        momentum, start, parts = torch.zeros_like(flat), 0, []
        for shape, size in zip(SHAPES, sizes, strict=True):
            parts.append(MatrixPart(shape=shape, sizes=size, tensor=flat, start=start, rank=rank))
            start += size[rank]
        for seed in gradients:
            grads = [g.flatten().split(list(s)) for g, s in zip(numbers(seed), sizes, strict=True)]
            flat.grad = torch.cat([pieces[rank] for pieces in grads])
            step_matrices(
                parts, [momentum] * len(parts), learning_rate=0.1, weight_decay=0.3,
                group=group, device=flat.device,
            )  # fmt: skip
        return [part.of(flat.detach()).clone() for part in parts]
    finally:
        ranks.close()


def test_parts_of_any_size_make_the_update_of_whole_matrices(crew):
    """A part may end within a row and may be empty, as those of flat buffers are. Fails if the
    decay is applied once for every matrix in a tensor, or before a look at the gradient."""
    whole = [nn.Parameter(matrix) for matrix in numbers(0)]
    optimizer = muon(whole, learning_rate=0.1, weight_decay=0.3)
    for seed in (1, 2, 3):
        for param, grad in zip(whole, numbers(seed), strict=True):
            param.grad = grad
        optimizer.step()
    sizes = [(24, 0, 0), (7, 9, 8), (0, 1, 4), (16, 16, 17), (0, 0, 4)]
    found = crew.run(3, divided, sizes, (1, 2, 3))
    for index, param in enumerate(whole):
        ours = torch.cat([parts[index] for parts in found]).view(param.shape)
        assert torch.allclose(ours, param.detach(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", ["fsdp2", "zero2", "zero3"])
def test_bfloat16_weights_have_float32_masters_and_momentum(crew, kind):
    needs(kind)
    train = section(**KINDS[kind], **MUON)
    options = {"train": train, "algorithm": algorithm()}
    ours = crew.run(2, train_together, STEPS[:1], torch.bfloat16, dict(options))[0]
    alone = train_alone(STEPS[:1], torch.bfloat16, dict(options))
    name = "model.layers.0.mlp.up_proj.weight"
    mine, other = (r["state"]["moments"][name] for r in (ours, alone))
    assert mine.keys() == other.keys() == {"momentum_buffer"}
    assert mine["momentum_buffer"].dtype == torch.float32
    assert relative_error(mine, other) < 1e-2
    assert ours["state"]["masters"][name].dtype == torch.float32
    assert torch.equal(ours["state"]["masters"][name].bfloat16(), ours["weights"][name])
