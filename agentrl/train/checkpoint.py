"""Trainer state and Hugging Face weights on disk, whole or not at all."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from agentrl.errors import RunError, TrainError
from agentrl.machine.files import flush, replacing
from agentrl.models.finite import check_finite
from agentrl.models.hub_format import save_pretrained
from agentrl.models.vision.reader import reader_of

TRAINER_FILE = "trainer.pt"
_FORMAT = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerState:
    """State with which a trainer goes on as if it had never stopped."""

    version: int
    """Steps done."""
    optimizer: dict[str, Any]
    """Masters and moments of the policy."""
    critic: dict[str, Any] | None
    """The same of the critic; None without one."""
    kl_coef: float
    """Weight of the KL penalty, where the controller has brought it."""
    reference: dict[str, Any] | None
    """Weights of a reference that follows the policy; None where it stays what the run began
    with."""
    cpu_rng: Tensor
    """State of torch's generator."""
    cuda_rng: list[Tensor]
    """States of the generators of all GPUs."""

    def restore_random_state(self) -> None:
        """Put torch's generators where they were; GPUs that are not there are left out."""
        torch.set_rng_state(self.cpu_rng)
        for index, state in enumerate(self.cuda_rng[: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(state, index)


def save_trainer_state(
    directory: Path,
    *,
    version: int,
    optimizer: dict[str, Any],
    critic: dict[str, Any] | None = None,
    kl_coef: float = 0.0,
    reference: dict[str, Any] | None = None,
) -> None:
    """Write `trainer.pt` atomically; the arguments are the fields of `TrainerState`.

    Raises:
        TrainError: a weight in it is NaN or infinite; nothing is written.
    """
    check_finite(
        _weights(optimizer, critic, reference),
        who="the state of the trainer, about to be saved,",
        remedy="nothing was saved; go on from the checkpoint before it, with a lower "
        "train.learning_rate",
        kind=TrainError,
    )
    directory.mkdir(parents=True, exist_ok=True)
    state = {
        "format": _FORMAT,
        "version": version,
        "optimizer": optimizer,
        "critic": critic,
        "kl_coef": kl_coef,
        "reference": reference,
        "cpu_rng": torch.get_rng_state(),
        "cuda_rng": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }
    with replacing(directory / TRAINER_FILE) as path:
        torch.save(state, path)


def _weights(
    optimizer: dict[str, Any], critic: dict[str, Any] | None, reference: dict[str, Any] | None
) -> Iterator[tuple[str, Tensor]]:
    """Masters of policy and critic, and the reference; no moments, of which one may overflow."""
    yield from optimizer.get("masters", {}).items()
    for name, tensor in (critic or {}).get("masters", {}).items():
        yield f"{name} of the critic", tensor
    for name, tensor in (reference or {}).items():
        yield f"{name} of the reference", tensor


def load_trainer_state(directory: Path, *, whole: bool = True) -> TrainerState:
    """Read what `save_trainer_state` wrote; nothing in the file is executed.

    Args:
        directory: of the checkpoint.
        whole: look at every number. Of several ranks one does, since the file is mapped: the others
            read no more of it than the slices that they take.

    Raises:
        RunError: no such file, a torn one, one of another format, or weights that are not finite.
    """
    path = directory / TRAINER_FILE
    if not path.is_file():
        raise RunError(f"{directory} holds no trainer state ({TRAINER_FILE} is missing)")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise RunError(f"{path} cannot be read as trainer state: {error}") from error
    found = state.get("format") if isinstance(state, dict) else None
    if found != _FORMAT:
        raise RunError(f"{path} has format {found!r}, this version reads {_FORMAT}")
    if whole:
        check_finite(
            _weights(state["optimizer"], state["critic"], state["reference"]),
            who=str(path),
            remedy="go on from an earlier checkpoint: delete this one",
            kind=RunError,
        )
    return TrainerState(
        version=state["version"],
        optimizer=state["optimizer"],
        critic=state["critic"],
        kl_coef=state["kl_coef"],
        reference=state["reference"],
        cpu_rng=state["cpu_rng"],
        cuda_rng=state["cuda_rng"],
    )


def save_checkpoint(model: Any, tokenizer: Any, directory: Path) -> None:
    """Write weights, config and tokenizer in Hugging Face format.

    Each file appears whole under its name or not at all; the result loads with
    `AutoModelForCausalLM.from_pretrained(directory)`, and that of a vision-language model with
    `AutoModelForImageTextToText`; its image processor is written, too.

    Args:
        model: a `transformers` model.
        tokenizer: its tokenizer, or None to leave it out.
        directory: made if it is not there; files of the same name are replaced.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory, prefix=".writing-") as scratch:
        save_pretrained(model, Path(scratch))
        if tokenizer is not None:
            tokenizer.save_pretrained(scratch)
        if (reader := reader_of(model)) is not None:
            reader.save(Path(scratch))
        made = [path for path in Path(scratch).rglob("*") if path.is_file()]
        for path in made:
            target = directory / path.relative_to(scratch)
            target.parent.mkdir(parents=True, exist_ok=True)
            flush(path)
            path.replace(target)
    flush(directory)
