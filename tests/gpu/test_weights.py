"""Weights, sums and states of a trainer on a GPU: moved, saved and loaded as on the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from agentrl.config.schema import TrainSection
from agentrl.sync.shm.shm import ShmReceiver, ShmSender
from agentrl.sync.wire.patches import PatchBase, PatchDecoder, PatchEncoder
from agentrl.train.backends.ranks import Meeting, Ranks
from agentrl.train.trainer import Trainer
from tests.train.tiny_llama import algorithm, make_groups, make_step, tiny_model

CUDA = pytest.param("cuda", marks=pytest.mark.gpu)
DEVICES = ["cpu", CUDA]


def weights_on(device: str) -> dict[str, torch.Tensor]:
    model = tiny_model(torch.bfloat16).to(device)
    return {name: param.detach() for name, param in model.named_parameters()}


def flat(model) -> torch.Tensor:
    return torch.cat([param.detach().cpu().double().reshape(-1) for param in model.parameters()])


def nudge(weights: dict[str, torch.Tensor]) -> None:
    for tensor in list(weights.values())[::2]:
        tensor.flatten()[::7] += 0.25


@pytest.mark.parametrize("device", DEVICES)
def test_patches_of_a_device_become_its_weights(device):
    """All weights, then two patches; the receiver gets both on the device, as from NCCL."""
    weights, encoder, decoder = weights_on(device), PatchEncoder(8), PatchDecoder()
    for version in (1, 2, 3):
        nudge(weights)
        base = encoder.base
        stream = [
            (name, tensor.clone()) for name, tensor in encoder.encode(weights.items(), version)
        ]
        moved = [(name, tensor.to(device)) for name, tensor in stream]
        new = PatchBase(version=version, checksum=encoder.checksum)
        if base is None:
            found = list(decoder.dense(moved, lambda new=new: new, keep=True))
        else:
            assert version > 1
            found = list(decoder.apply(moved, base, lambda new=new: new))
        assert dict(found).keys() == weights.keys()
        for name, tensor in found:
            assert torch.equal(tensor.to(device), weights[name]), (version, name)


@pytest.mark.parametrize("device", DEVICES)
def test_weights_of_a_device_go_through_shared_memory(device):
    weights, sender, receiver = weights_on(device), ShmSender(), ShmReceiver()
    try:
        for version in (1, 2):
            nudge(weights)
            (info,) = sender.connect(1)
            receiver.connect(info)
            ticket = sender.send(weights.items(), version)
            for name, tensor in receiver.receive(ticket):
                assert torch.equal(tensor.to(device), weights[name]), (version, name)
    finally:
        receiver.close()
        sender.close()


@pytest.mark.parametrize("device", DEVICES)
def test_a_rank_on_a_device_sums_its_tensors_there(device):
    """gloo on a CPU, NCCL on a GPU; tensors of two dtypes and one that is not contiguous."""
    place = torch.device(device, 0) if device == "cuda" else torch.device(device)
    meeting = Meeting(join_timeout_s=60)
    ranks = Ranks(
        meeting.address, rank=0, world_size=1, device=place, join_timeout_s=60, timeout_s=60
    )
    try:
        tensors = [
            torch.arange(6.0, device=place),
            torch.ones(3, 4, device=place).t(),
            torch.full((2,), 2.0, dtype=torch.float64, device=place),
        ]
        wanted = [tensor.clone() for tensor in tensors]
        ranks.sum_in_place(tensors)
        for tensor, before in zip(tensors, wanted, strict=True):
            assert torch.equal(tensor, before)
        assert ranks.gather("x") == ["x"]
    finally:
        ranks.close()
        meeting.close()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_trainer_goes_on_from_its_file(device, optimizer, tmp_path: Path):
    """Fails if moments are lost, or come back on another device than fused kernels want them.

    A GPU adds in another order each time, so the step after is compared by its size.
    """

    def trainer(model) -> Trainer:
        train = TrainSection(learning_rate=1e-2, optimizer=optimizer)
        return Trainer(model, train=train, algorithm=algorithm())

    model, batch = tiny_model(torch.bfloat16).to(device), make_step(make_groups())
    first = trainer(model)
    first.step(batch)
    first.save(tmp_path)
    before = flat(model)
    first.step(batch)
    other = tiny_model(torch.bfloat16, seed=5).to(device)
    second = trainer(other)
    second.load(tmp_path)
    second.step(batch)
    moved = (flat(model) - before).norm()
    assert moved > 0.0
    assert (flat(model) - flat(other)).norm() < 0.01 * moved
