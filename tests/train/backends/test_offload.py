"""State that leaves the device between steps comes back to the bit, and frees what it held."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from agentrl.config.fleet import OffloadPart
from agentrl.config.schema import TrainSection
from agentrl.errors import ConfigError, TrainError
from agentrl.train.backends.offload import TrainerOffload, state_on_device
from agentrl.train.checkpoint import load_trainer_state
from agentrl.train.reference import Reference
from agentrl.train.trainer import Trainer
from tests.train.tiny_llama import algorithm, make_groups, make_step, tiny_model

CPU = torch.device("cpu")
ALL: tuple[OffloadPart, ...] = ("optimizer", "gradients", "weights")


def make_trainer(dtype: torch.dtype, optimizer: str = "adamw") -> Trainer:
    # More lanes, of a CPU only, would look at the memory of the weights, too.
    lane = {"kind": "torch", "lanes": 1}
    train = TrainSection.model_validate(
        {"learning_rate": 1e-2, "optimizer": optimizer, "backend": lane}
    )
    return Trainer(
        tiny_model(dtype),
        train=train,
        algorithm=algorithm(kl_coef=0.1),
        reference=Reference(tiny_model(dtype, seed=1)),
    )


def state_of(trainer: Trainer) -> dict[str, Tensor]:
    state = trainer.backend.state_dict()
    moments = {f"{n}/{k}": v for n, kept in state["moments"].items() for k, v in kept.items()}
    return {
        **dict(trainer.weights()),
        **moments,
        **{f"m/{n}": t for n, t in state["masters"].items()},
    }


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("parts", [ALL, ("optimizer", "gradients"), ("weights",), ()])
def test_steps_between_moves_are_the_same_to_the_bit(
    dtype: torch.dtype, parts: Sequence[OffloadPart]
) -> None:
    """Fails if a master that is its parameter comes back as two tensors, if a moment is left
    behind, or if a gradient of a step before leaks into the next."""
    plain, moved = make_trainer(dtype), make_trainer(dtype)
    offload = TrainerOffload(moved, parts, device=CPU)
    for seed in range(3):
        expected = plain.step(make_step(make_groups(seed))).result()
        offload.bring_back()
        got = moved.step(make_step(make_groups(seed))).result()
        offload.put_aside()
        for name in ("train/loss", "train/grad_norm"):
            assert expected.get(name) == got.get(name)
        ours, theirs = state_of(moved), state_of(plain)
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_muon_moves_with_its_momentum() -> None:
    """Fails if state of the second optimizer stays on the device."""
    trainer = make_trainer(torch.bfloat16, "muon")
    trainer.step(make_step(make_groups()))
    moved = {id(tensor) for tensor in trainer.state_on_device()["optimizer"]}
    kept = trainer.backend.state_dict()["moments"].values()
    tensors = [value for moments in kept for value in moments.values()]
    assert tensors
    assert {id(tensor) for tensor in tensors} <= moved


def users(storage: Any) -> int:
    """References to memory, that of `storage` itself included."""
    count: Any = torch._C._storage_Use_Count  # pyright: ignore[reportAttributeAccessIssue]
    return int(count(storage._cdata))


def test_each_switch_frees_its_own_memory() -> None:
    """Fails if an alias keeps the old memory alive, or if a switch moves what is another's."""
    trainer = make_trainer(torch.bfloat16)
    trainer.step(make_step(make_groups()))
    sums: Any = trainer.backend
    assert sums._optimizer.sums._sums, "nothing to free"
    size = sum(tensor.nbytes for _, tensor in trainer.backend.parameters())
    # Masters and two moments of 4 bytes where weights have 2, and a reference of 2.
    sizes: dict[OffloadPart, int] = {"weights": size, "optimizer": 7 * size, "gradients": 0}
    for part, expected in sizes.items():
        before = [tensor.untyped_storage() for tensor in trainer.state_on_device()[part]]
        assert all(users(storage) > 1 for storage in before), part
        offload = TrainerOffload(trainer, [part], device=CPU)
        offload.put_aside()
        # Buffers and counts of steps are small.
        assert expected <= offload.away_bytes < expected + 4096, part
        assert all(users(storage) == 1 for storage in before), part
        offload.bring_back()
        assert offload.away_bytes == 0
    assert not sums._optimizer.sums._sums


def test_a_checkpoint_is_written_from_main_memory(tmp_path: Path) -> None:
    """Fails if a save between two turns of the trainer reads memory that is gone."""
    plain, moved = make_trainer(torch.bfloat16), make_trainer(torch.bfloat16)
    offload = TrainerOffload(moved, ALL, device=CPU)
    for trainer in (plain, moved):
        trainer.step(make_step(make_groups()))
    offload.put_aside()
    for name, trainer in (("plain", plain), ("moved", moved)):
        (tmp_path / name).mkdir()
        trainer.save(tmp_path / name)
    states = [load_trainer_state(tmp_path / name) for name in ("plain", "moved")]
    ours, theirs = (state.optimizer["masters"] for state in states)
    assert ours.keys() == theirs.keys() != set()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_twice_aside_or_back_is_once() -> None:
    """Fails if a second call loses what is in main memory."""
    trainer = make_trainer(torch.bfloat16)
    trainer.step(make_step(make_groups()))
    before = {name: tensor.clone() for name, tensor in state_of(trainer).items()}
    offload = TrainerOffload(trainer, ALL, device=CPU)
    offload.put_aside()
    away = offload.away_bytes
    offload.put_aside()
    assert offload.away_bytes == away
    offload.bring_back()
    offload.bring_back()
    after = state_of(trainer)
    assert all(torch.equal(after[name], before[name]) for name in before)


def test_a_device_without_room_is_named() -> None:
    """Fails if the error has no bytes, or if what came back is lost."""

    class Full(TrainerOffload):
        room = 3

        def _fresh(self, host: Tensor) -> Tensor:
            self.room -= 1
            if self.room < 0:
                raise torch.OutOfMemoryError("Tried to allocate 2.00 GiB")
            return super()._fresh(host)

    trainer = make_trainer(torch.bfloat16)
    offload = Full(trainer, ALL, device=CPU)
    offload.put_aside()
    with pytest.raises(TrainError, match=r"takes 0\.00 GiB back to cpu.*Tried to allocate 2\.00"):
        offload.bring_back()
    offload.room = 10**6
    offload.bring_back()
    trainer.step(make_step(make_groups()))


def test_a_backend_with_its_own_offload_is_refused_by_name() -> None:
    """Fails if state that someone else moves is moved under them."""

    class DeepspeedBackend:
        pass

    stranger: Any = DeepspeedBackend()
    with pytest.raises(ConfigError, match=r"DeepspeedBackend .*train.backend.offload: true"):
        state_on_device(stranger, critic=None, beside=())
