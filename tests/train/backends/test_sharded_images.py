"""Rows with images on several ranks: the update of one process, the vision tower's included."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from agentrl.batch.packing import unpack
from agentrl.errors import TrainError
from agentrl.models.vision.reader import attach_reader
from agentrl.train.backends.agreement import on_every_rank
from agentrl.train.backends.choose import make_backend
from agentrl.train.model.freeze import freeze_parts
from tests.models.vision.seeing_rows import exact_rotation, exact_seeing_model, seeing_groups
from tests.models.vision.tiny_seeing import processor, reader_for, seeing_model
from tests.train.backends.sharded_trainers import KINDS, needs, section
from tests.train.crew import Crew, joined
from tests.train.tiny_llama import make_step, relative_error

PATCHES = "model.visual.patch_embed.proj.weight"


def gradient(model: Any, ranks: Any, update: Any, *, kind: str) -> dict[str, torch.Tensor]:
    """Full gradient of one update."""
    backend: Any = make_backend(
        model, train=section(**KINDS.get(kind, {})), gradient_checkpointing=False, ranks=ranks
    )
    share = backend.share(update)

    def work(passes: Any, micro: Any) -> None:
        tensors = passes.to_tensors(micro)
        numbers = passes.log_probs(tensors).log_probs_R
        passes.backward(-(numbers * tensors.weights_R * tensors.advantages_R).sum())

    with backend.running():
        backend.run_each(share.micro_batches, work)
    backend.reduce_gradients()
    return {name: grad.clone() for name, grad in backend.gradients()}


def made(folder: Path, dtype: torch.dtype, name: str, frozen: Sequence[str]) -> Any:
    exact = dtype == torch.float64
    model = exact_seeing_model(folder) if exact else seeing_model(name, folder, dtype=dtype)
    freeze_parts(model, frozen)
    return model


def on_rank(
    address: str, rank: int, world_size: int, kind: str, update: Any, *model: Any
) -> dict[str, torch.Tensor]:
    ranks = joined(address, rank, world_size)
    try:
        with exact_rotation():
            return gradient(made(*model), ranks, update, kind=kind)
    finally:
        ranks.close()


@pytest.mark.parametrize(
    ("kind", "world_size", "dtype", "name", "frozen"),
    [
        ("torch", 3, torch.float64, "qwen2_vl", ()),
        ("fsdp2", 3, torch.float64, "qwen2_vl", ()),
        ("fsdp2", 2, torch.float64, "qwen2_vl", ("vision_tower",)),
        ("fsdp2", 2, torch.float32, "qwen3_vl", ()),
        ("zero2-offload", 2, torch.float32, "qwen2_vl", ()),
        ("zero3", 2, torch.float32, "qwen2_vl", ()),
        ("zero3", 2, torch.float32, "qwen2_vl", ("vision_tower",)),
        ("zero3-offload", 2, torch.float32, "smolvlm", ()),
    ],
)
def test_ranks_make_the_gradient_of_one_process(
    kind: str,
    world_size: int,
    dtype: torch.dtype,
    name: str,
    frozen: tuple[str, ...],
    crew: Crew,
    tmp_path: Path,
) -> None:
    """Fails (hangs) if a rank without images stays away from the weights of the tower."""
    if kind != "torch":
        needs(kind)
    step = make_step(seeing_groups(name, tmp_path), micro_batch_tokens=200)
    (update,) = step.updates
    with exact_rotation():
        model = made(tmp_path, dtype, name, frozen)
        rows = [row for micro in update.micro_batches for row in unpack(micro)]
        alone = gradient(model, None, replace(update, micro_batches=tuple(rows)), kind="torch")
    found = crew.run(world_size, on_rank, kind, update, tmp_path, dtype, name, frozen)
    assert all(grads.keys() == alone.keys() for grads in found)
    assert relative_error(found[0], alone) < (1e-12 if dtype == torch.float64 else 1e-5)
    tower = {n for n in alone if ".visual." in n or ".vision_model." in n}
    assert bool(tower) is not bool(frozen)
    if tower:
        own, theirs = ({n: grads[n] for n in tower} for grads in (found[0], alone))
        assert relative_error(own, theirs) < (1e-12 if dtype == torch.float64 else 1e-5)


def reason_of_failure(
    address: str, rank: int, world_size: int, update: Any, folder: Path
) -> tuple[str, float]:
    """Message of the error of a rank, where rank 1 has the image processor of another checkpoint,
    and the seconds it took."""
    ranks = joined(address, rank, world_size)
    try:
        model = seeing_model("qwen2_vl", folder)
        if rank == 1:
            other = processor("qwen2_vl")
            other.size["longest_edge"] = other.size["shortest_edge"]
            attach_reader(model, reader_for("qwen2_vl", folder, made_by=other))
        backend = make_backend(
            model, train=section(**KINDS["fsdp2"]), gradient_checkpointing=False, ranks=ranks
        )
        shares = backend.share(update).micro_batches

        def work() -> None:
            with backend.running():
                backend.run_each(
                    shares, lambda passes, micro: passes.log_probs(passes.to_tensors(micro))
                )

        began = time.monotonic()
        with pytest.raises(TrainError) as failed:
            on_every_rank(backend, work)
        return str(failed.value), time.monotonic() - began
    finally:
        ranks.close()


def test_a_rank_with_another_image_processor_fails_all_at_once(crew: Crew, tmp_path: Path) -> None:
    """Fails (hangs) if it is found only when that rank has run the tower of a sharded model."""
    (update,) = make_step(seeing_groups("qwen2_vl", tmp_path), micro_batch_tokens=200).updates
    (told, told_s), (own, own_s) = crew.run(2, reason_of_failure, update, tmp_path)
    assert "the image processor of the trainer makes (1, 1, 1) features" in own
    assert told == f"1 of 2 ranks failed; rank 1: TrainError: {own}"
    assert max(told_s, own_s) < 90
