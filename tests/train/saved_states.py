"""States of a trainer on the disk, as some ranks write them and as format 2 had them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from agentrl.train.checkpoint import WHOLE_FILE, hold_state
from agentrl.train.saving.own_part import MASTERS, OwnPart, by_kind, share_of_copies
from agentrl.train.saving.snapshot import StateSnapshot


def write_state(
    folder: Path,
    *,
    version: int,
    optimizer: Mapping[str, Any],
    critic: Mapping[str, Any] | None = None,
    reference: Mapping[str, Any] | None = None,
    kl_coef: float = 0.0,
    ranks: int = 1,
    run_id: str = "one",
) -> Path:
    """As so many ranks with a copy each write it."""

    def parts(state: Mapping[str, Any], rank: int) -> Iterator[OwnPart]:
        for kind, tensors in by_kind(state).items():
            yield from share_of_copies(kind, tensors, rank=rank, world_size=ranks)

    for rank in range(ranks):
        hold_state(
            StateSnapshot(),
            version=version,
            run_id=run_id,
            rank=rank,
            world_size=ranks,
            optimizer=parts(optimizer, rank),
            critic=None if critic is None else parts(critic, rank),
            kl_coef=kl_coef,
            reference=None
            if reference is None
            else share_of_copies(MASTERS, reference, rank=rank, world_size=ranks),
        ).write(folder)
    return folder


def write_format_2(
    folder: Path,
    *,
    version: int,
    optimizer: Mapping[str, Any],
    critic: Mapping[str, Any] | None = None,
    reference: Mapping[str, Any] | None = None,
    kl_coef: float = 0.0,
) -> Path:
    """In one file, as rank 0 wrote it before states were in parts."""
    folder.mkdir(parents=True, exist_ok=True)
    state = {
        "format": 2,
        "version": version,
        "optimizer": optimizer,
        "critic": critic,
        "kl_coef": kl_coef,
        "reference": reference,
        "cpu_rng": torch.get_rng_state(),
        "cuda_rng": [],
    }
    torch.save(state, folder / WHOLE_FILE)
    return folder
