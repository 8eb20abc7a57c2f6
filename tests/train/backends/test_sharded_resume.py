"""What any number of ranks of any backend saved, any other goes on with."""

from __future__ import annotations

import shutil

import pytest
import torch
from safetensors.torch import load_file

from agentrl.config.training import LoraSection
from agentrl.models.files.tensor_file import map_tensors
from agentrl.models.hub_format import save_pretrained
from agentrl.train.backends.choose import full_weights, make_backend
from agentrl.train.checkpoint import load_trainer_state
from agentrl.train.model.lora import add_adapters
from agentrl.train.saving.rounded import write_rounded
from agentrl.train.trainer import Trainer
from tests.train.backends.sharded_trainers import (
    KINDS,
    algorithm,
    needs,
    run,
    same_bits,
    section,
    train_alone,
)
from tests.train.crew import joined
from tests.train.tiny_llama import make_groups, make_step, relative_error, tiny_model

pytestmark = pytest.mark.slow

STEPS = [make_step(make_groups(seed), micro_batch_tokens=32) for seed in (0, 1, 2)]


def go_on(address, rank, world_size, kind, folder, steps, save=None):
    ranks = joined(address, rank, world_size)
    try:
        # Weights that are not those of the checkpoint: they must come from it.
        return run(
            tiny_model(torch.float32, seed=7),
            ranks,
            steps,
            train=section(**KINDS[kind]),
            algorithm=algorithm(),
            load=folder,
            save=save,
        )
    finally:
        ranks.close()


def begin(address, rank, world_size, kind, steps, save):
    ranks = joined(address, rank, world_size)
    try:
        options = {"train": section(**KINDS[kind]), "algorithm": algorithm(), "save": save}
        return run(tiny_model(torch.float32), ranks, steps, **options)
    finally:
        ranks.close()


def held(folder):
    """All tensors of a saved state by kind, and by rank how many numbers its part has."""
    state = load_trainer_state(folder).optimizer
    parts = sorted((folder / "trainer").iterdir())
    numbers = [sum(t.numel() for t in map_tensors(part)[0].values()) for part in parts]
    moments = {
        f"{name} {key}": tensor
        for name, kinds in state["moments"].items()
        for key, tensor in kinds.items()
    }
    return {**state["masters"], **moments}, numbers


@pytest.mark.parametrize("kind", ["fsdp2", "zero1", "zero2-offload", "zero3", "zero3-offload"])
def test_a_run_that_changes_its_ranks_is_the_run_that_did_not(crew, kind, tmp_path):
    """Fails if a moment, the count of steps or a slice's place is lost, or the padding of a slice
    is taken for numbers."""
    needs(kind)
    whole = train_alone(STEPS, torch.float32, {"train": section(), "algorithm": algorithm()})
    crew.run(2, begin, kind, STEPS[:1], tmp_path / "two")
    three = crew.run(3, go_on, kind, tmp_path / "two", STEPS[1:2], tmp_path / "three")[0]
    assert three["version"] == 2
    model = tiny_model(torch.float32, seed=7)
    alone = Trainer(model, train=section(), algorithm=algorithm())
    alone.load(tmp_path / "three")
    alone.step(STEPS[2])
    assert relative_error(dict(alone.weights()), whole["weights"]) < 1e-5
    assert {len(parts) for parts in three["state"]["moments"].values()} == {3}


@pytest.mark.parametrize("kind", ["fsdp2", "zero2", "zero3"])
def test_what_was_loaded_is_what_is_saved(crew, kind, tmp_path):
    needs(kind)
    two = crew.run(2, begin, kind, STEPS[:1], tmp_path / "two")[0]
    again = crew.run(2, go_on, kind, tmp_path / "two", [], tmp_path / "again")[0]
    assert same_bits(again["weights"], two["weights"])
    assert same_bits(again["state"]["masters"], two["state"]["masters"])
    for name, parts in two["state"]["moments"].items():
        assert same_bits(again["state"]["moments"][name], parts)
    (ours, numbers), (theirs, _) = held(tmp_path / "two"), held(tmp_path / "again")
    assert same_bits(ours, theirs)
    assert same_bits(
        {name: ours[name] for name in two["state"]["masters"]}, two["state"]["masters"]
    )
    # Each rank has written its own half, and not rank 0 all of it.
    assert len(numbers) == 2
    assert max(numbers) < 0.6 * sum(numbers)


ADAPTED = {"lora": LoraSection(rank=3)}


def adapted():
    model = tiny_model(torch.float32)
    add_adapters(model, ADAPTED["lora"], base="tiny")
    return model


def adapt_on(address, rank, world_size, kind, folder, steps, save=None):
    ranks = joined(address, rank, world_size)
    train = section(**KINDS[kind], **ADAPTED)
    try:
        return run(
            adapted(), ranks, steps, train=train, algorithm=algorithm(), load=folder, save=save
        )
    finally:
        ranks.close()


@pytest.mark.parametrize("kind", ["fsdp2", "zero1", "zero3"])
def test_adapters_go_on_with_other_ranks(crew, kind, tmp_path):
    """Fails if the state of what is frozen is asked for, or the base is taken from it."""
    needs(kind)
    options = {"train": section(**ADAPTED), "algorithm": algorithm()}
    whole = run(adapted(), None, STEPS, **options)
    crew.run(2, adapt_on, kind, None, STEPS[:1], tmp_path)
    three = crew.run(3, adapt_on, kind, tmp_path, STEPS[1:])[0]
    assert three["state"]["masters"].keys() == whole["state"]["masters"].keys()
    assert relative_error(three["weights"], whole["weights"]) < 1e-5


def biased_model():
    """In bfloat16 with a buffer that is stored, in float32, as routers of experts have one."""
    model = tiny_model(torch.bfloat16)
    model.model.layers[1].mlp.register_buffer("choice_bias", torch.tensor([0.1, 1.0 + 1e-6]))
    return model


def write_model(address, rank, world_size, kind, folder):
    ranks = joined(address, rank, world_size)
    try:
        model = biased_model()
        backend = make_backend(
            model, train=section(**KINDS[kind]), gradient_checkpointing=False, ranks=ranks
        )
        weights = full_weights(backend)
        if rank == 0:
            save_pretrained(model, folder, weights=weights)
        backend.gather(None)
    finally:
        ranks.close()
    return sorted(weights)


@pytest.mark.parametrize("kind", ["fsdp2", "zero2", "zero3"])
def test_weights_on_disk_are_those_of_a_whole_model(crew, kind, tmp_path):
    """Fails if slices, or the float32 that they are kept in, get into the file."""
    needs(kind)
    names, others = crew.run(2, write_model, kind, tmp_path)
    model = biased_model()
    parameters = [name for name, _ in model.named_parameters()]
    assert names == sorted([*parameters, "model.layers.1.mlp.choice_bias"])
    assert others == []
    loaded = load_file(tmp_path / "model.safetensors")
    assert same_bits({**loaded, "lm_head.weight": model.lm_head.weight}, model.state_dict())


@pytest.mark.parametrize("kind", ["fsdp2", "zero3"])
def test_what_one_process_saved_goes_on_sharded_and_back(crew, kind, tmp_path):
    """Fails if a state, exact or rounded, means another thing to another backend."""
    needs(kind)
    options = {"train": section(), "algorithm": algorithm()}
    exact, rounded = tmp_path / "exact", tmp_path / "rounded"
    model = tiny_model(torch.float32)
    run(model, None, STEPS[:1], save=exact, **options)
    shutil.copytree(exact, rounded)
    save_pretrained(model, rounded)
    (rounded / "trainer-rounded").mkdir()
    write_rounded(rounded, rounded / "trainer-rounded")
    shutil.rmtree(rounded / "trainer")
    for folder in (exact, rounded):
        back = tmp_path / f"{folder.name}-{kind}"
        fresh = tiny_model(torch.float32, seed=7)
        alone = run(fresh, None, STEPS[1:2], load=folder, **options)
        sharded = crew.run(2, go_on, kind, folder, STEPS[1:2], back)
        assert sharded[0]["version"] == alone["version"] == 2
        assert relative_error(sharded[0]["weights"], alone["weights"]) < 1e-5
        fresh = tiny_model(torch.float32, seed=7)
        alone = run(fresh, None, STEPS[2:], load=back, **options)
        sharded = crew.run(2, go_on, kind, back, STEPS[2:])
        assert relative_error(sharded[0]["weights"], alone["weights"]) < 1e-5
