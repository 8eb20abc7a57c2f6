"""Trainer state on disk: a part from each rank, all of them or none.

    trainer.json                        version and numbers; says how many parts there are
    trainer/part-00001-of-00002...      what rank 0 wrote: numbers of the flat forms of tensors
    trainer-rounded/part-...            the same in less room, once the run has ended
    trainer.pt                          all of it, as versions before wrote it; it is still read

A part says of each tensor which numbers of which whole it holds, so any number of ranks of any
backend reads them, each no more than it needs.
"""

from __future__ import annotations

import json
import pickle
import secrets
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from agentrl.disk.checkpoint import PARTS_FOLDER, ROUNDED_FOLDER
from agentrl.errors import RunError, TrainError, some_of
from agentrl.machine.files import flush, write_whole
from agentrl.models.files.tensor_file import WrittenTensor, map_tensors, write_tensors
from agentrl.models.finite import check_finite
from agentrl.models.hub_format import save_pretrained
from agentrl.models.vision.reader import reader_of
from agentrl.train.saving.own_part import MASTERS, OwnPart
from agentrl.train.saving.rounded import (
    FROM_WEIGHTS,
    WEIGHT_MARKS,
    RoundedPart,
    flat_weights,
    mark_of,
    read_rounded,
)
from agentrl.train.saving.snapshot import StateSnapshot
from agentrl.train.saving.stored_tensors import StoredTensors

HEAD_FILE = "trainer.json"
WHOLE_FILE = "trainer.pt"
"""State in one file, as format 2 had it."""
_FORMAT, _WHOLE_FORMAT = 3, 2
_POLICY, _CRITIC, _REFERENCE, _RANDOM = "policy", "critic", "reference", "random"
_RUN_ID = "run"
_LOWER_RATE = "nothing was saved; go on from the checkpoint before it, with a lower "


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerState:
    """State with which a trainer goes on as if it had never stopped."""

    version: int
    """Steps done."""
    optimizer: dict[str, Any]
    """Masters and moments of the policy; empty of a checkpoint that has weights alone."""
    critic: dict[str, Any] | None
    """The same of the critic; None without one."""
    kl_coef: float
    """Weight of the KL penalty, where the controller has brought it."""
    reference: Mapping[str, Tensor] | None
    """Weights of a reference that follows the policy; None where it stays what the run began
    with."""
    cpu_rng: Tensor | None
    """State of torch's generator; None of a checkpoint that has weights alone."""
    cuda_rng: list[Tensor]
    """States of the generators of all GPUs."""

    def restore_random_state(self) -> None:
        """Put torch's generators where they were; GPUs that are not there are left out."""
        if self.cpu_rng is not None:
            torch.set_rng_state(self.cpu_rng.clone())
        for index, state in enumerate(self.cuda_rng[: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(state.clone(), index)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldState:
    """State of a trainer at one moment, as far as this rank writes it."""

    version: int
    """Steps done."""
    run_id: str
    """The same in the parts of one save and, but for `version`, of one start of a run."""
    kl_coef: float
    """Weight of the KL penalty."""
    rank: int
    """Rank of this process."""
    world_size: int
    """Ranks that each write a part."""
    tensors: tuple[WrittenTensor, ...]
    """Numbers of this rank."""
    places: Mapping[str, tuple[int, ...]]
    """By the name of each in the file, the first number and the shape of the whole."""

    def write(self, directory: Path) -> None:
        """Write this rank's part, and from rank 0 the head.

        Raises:
            OSError: as while writing; no file of this rank is torn.
            TrainError: a weight in it is NaN or infinite.
        """
        folder = directory / PARTS_FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        head = {
            "format": _FORMAT,
            "version": self.version,
            "parts": self.world_size,
            _RUN_ID: self.run_id,
        }
        metadata = {**head, "places": self.places}
        write_tensors(
            folder / _part_name(self.rank, self.world_size),
            self.tensors,
            metadata={key: json.dumps(value) for key, value in metadata.items()},
        )
        if self.rank == 0:
            text = json.dumps({**head, "kl_coef": self.kl_coef}, indent=1)
            write_whole(directory / HEAD_FILE, text.encode())


def new_run_id(gather: Callable[[Any], list[Any]]) -> str:
    """Text that tells the saves of one start of a run from those of all others; all ranks call.

    Args:
        gather: as `TrainBackend.gather`.
    """
    return gather(secrets.token_hex(8))[0]


def hold_state(
    snapshot: StateSnapshot,
    *,
    version: int,
    run_id: str,
    rank: int,
    world_size: int,
    optimizer: Iterable[OwnPart],
    critic: Iterable[OwnPart] | None = None,
    kl_coef: float = 0.0,
    reference: Iterable[OwnPart] | None = None,
) -> HeldState:
    """Hold this rank's part of a state; nothing is copied, written or looked at yet.

    Args:
        snapshot: settled by the trainer before any of it moves.
        version: steps done.
        run_id: of this start of a run, from `new_run_id`.
        rank: of this process.
        world_size: ranks that hold the other parts.
        optimizer: of the policy.
        critic: the same of the critic; None without one.
        kl_coef: weight of the KL penalty.
        reference: weights of one that follows the policy; None of one that stays.
    """
    tensors: list[WrittenTensor] = []
    places: dict[str, tuple[int, ...]] = {}
    for owner, parts in ((_POLICY, optimizer), (_CRITIC, critic), (_REFERENCE, reference)):
        for part in parts or ():
            name = f"{owner}/{part.kind}/{part.name}"
            kept = snapshot.keep(name, part.numbers)
            places[name] = (part.start, *part.shape)
            tensors.append(_finite(kept, owner) if part.kind == MASTERS else kept)
    if rank == 0:
        states = [torch.get_rng_state()]
        states += torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
        for index, state in enumerate(states):
            name = f"{_RANDOM}/{index}/"
            places[name] = (0, *state.shape)
            tensors.append(snapshot.keep(name, state, copied=True))
    return HeldState(
        version=version,
        run_id=run_id,
        kl_coef=kl_coef,
        rank=rank,
        world_size=world_size,
        tensors=tuple(tensors),
        places=places,
    )


def _finite(kept: WrittenTensor, owner: str) -> WrittenTensor:
    """The same, refused while it is written where it holds NaN or an infinite number."""
    name = kept.name.split("/", 2)[2] + ("" if owner == _POLICY else f" of the {owner}")
    return WrittenTensor(
        name=kept.name, dtype=kept.dtype, shape=kept.shape, take=partial(_checked, kept, name)
    )


def _checked(kept: WrittenTensor, name: str) -> Tensor:
    tensor = kept.take()
    check_finite(
        [(name, tensor)],
        who="the state of the trainer, about to be saved,",
        remedy=_LOWER_RATE + "train.learning_rate",
        kind=TrainError,
    )
    return tensor


def _part_name(rank: int, world_size: int) -> str:
    return f"part-{rank + 1:05d}-of-{world_size:05d}.safetensors"


def load_trainer_state(directory: Path, *, whole: bool = True) -> TrainerState:
    """Read what all ranks wrote, or the one file of format 2; nothing in it is executed.

    Args:
        directory: of the checkpoint.
        whole: look at every number. Of several ranks one does, since the files are mapped: the
            others read no more of them than the slices that they take.

    Raises:
        RunError: no state, a part of it is missing or torn, another format, or weights that are
            not finite.
    """
    if (directory / WHOLE_FILE).is_file():
        path, state = directory / WHOLE_FILE, _read_whole(directory / WHOLE_FILE)
    elif (directory / HEAD_FILE).is_file():
        path, state = directory / PARTS_FOLDER, _read_parts(directory)
    else:
        raise RunError(f"{directory} holds no trainer state ({HEAD_FILE} is missing)")
    if whole:
        check_finite(
            _weights(state),
            who=str(path),
            remedy="go on from an earlier checkpoint: delete this one",
            kind=RunError,
        )
    return state


def _weights(state: TrainerState) -> Iterator[tuple[str, Tensor]]:
    """Masters of policy and critic, and the reference; no moments, of which one may overflow."""
    yield from state.optimizer.get(MASTERS, {}).items()
    for name, tensor in (state.critic or {}).get(MASTERS, {}).items():
        yield f"{name} of the critic", tensor
    for name, tensor in (state.reference or {}).items():
        yield f"{name} of the reference", tensor


def _read_whole(path: Path) -> TrainerState:
    try:
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise RunError(f"{path} cannot be read as trainer state: {error}") from error
    found = state.get("format") if isinstance(state, dict) else None
    if found != _WHOLE_FORMAT:
        raise RunError(f"{path} has format {found!r}, this version reads {_WHOLE_FORMAT}")
    fields = ("version", "optimizer", "critic", "kl_coef", "reference", "cpu_rng", "cuda_rng")
    return TrainerState(**{name: state[name] for name in fields})


def _read_parts(directory: Path) -> TrainerState:
    head = _read_head(directory / HEAD_FILE)
    version, kl_coef, weights = head["version"], head["kl_coef"], dict[str, Tensor]()
    folder = directory / PARTS_FOLDER
    if not folder.is_dir():
        folder = directory / ROUNDED_FOLDER
        weights = flat_weights(directory) if folder.is_dir() else weights
    if not folder.is_dir():
        return TrainerState(
            version=version,
            optimizer={},
            critic=None,
            kl_coef=kl_coef,
            reference=None,
            cpu_rng=None,
            cuda_rng=[],
        )
    found: dict[str, dict[str, StoredTensors]] = {}
    for rank in range(head["parts"]):
        path = folder / _part_name(rank, head["parts"])
        for name, (start, shape, numbers) in _read_part(path, weights, head).items():
            owner, kind, param = name.split("/", 2)
            stored = found.setdefault(owner, {}).setdefault(kind, StoredTensors())
            stored.add(param, shape, start, numbers)
    try:
        for kinds in found.values():
            for stored in kinds.values():
                stored.check()
    except RunError as error:
        raise RunError(f"{folder} does not hold a whole state: {error}") from error
    random = found.pop(_RANDOM)
    reference = found.get(_REFERENCE)
    return TrainerState(
        version=version,
        optimizer=_by_parameter(found[_POLICY]),
        critic=_by_parameter(found[_CRITIC]) if _CRITIC in found else None,
        kl_coef=kl_coef,
        reference=None if reference is None else reference[MASTERS],
        cpu_rng=random["0"][""],
        cuda_rng=[random[str(index)][""] for index in range(1, len(random))],
    )


def _by_parameter(kinds: Mapping[str, StoredTensors]) -> dict[str, Any]:
    """Masters, and by parameter its moments, none for one that was never moved."""
    masters = kinds[MASTERS]
    moments = {name: StoredTensors() for name in masters}
    for kind, stored in kinds.items():
        if kind != MASTERS:
            for name in stored:
                moments[name].take_from(stored, name, kind)
    return {MASTERS: masters, "moments": moments}


def _read_head(path: Path) -> dict[str, Any]:
    try:
        head = json.loads(path.read_bytes())
        found, numbers = head["format"], (head["version"], head["kl_coef"], head["parts"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path} cannot be read as trainer state: {error!r}") from error
    if found != _FORMAT:
        raise RunError(f"{path} has format {found!r}, this version reads {_FORMAT}")
    assert len(numbers) == 3
    return head


def _read_part(
    path: Path, weights: Mapping[str, Tensor], head: Mapping[str, Any]
) -> dict[str, tuple[int, torch.Size, Tensor | RoundedPart]]:
    try:
        tensors, metadata = map_tensors(path)
        version, run_id = (json.loads(metadata.get(k, "null")) for k in ("version", _RUN_ID))
        places = json.loads(metadata["places"])
        on_weights = json.loads(metadata.get(FROM_WEIGHTS, "null"))
        marks: dict[str, int] = json.loads(metadata.get(WEIGHT_MARKS, "{}"))
        other = [name for name, mark in marks.items() if mark_of(name, weights) != mark]
        found = dict[str, tuple[int, torch.Size, Tensor | RoundedPart]]()
        for name, tensor in tensors.items():
            start, *shape = places[name]
            part = tensor.reshape(-1)
            if on_weights is not None:
                part = read_rounded(name, part, start, on_weights, weights)
            found[name] = (start, torch.Size(shape), part)
    except FileNotFoundError:
        parts = path.name.rpartition("-")[2].partition(".")[0]
        have = len(list(path.parent.glob("part-*")))
        raise RunError(
            f"{path} is missing: the state was saved in {int(parts)} parts, and {have} are there; "
            "copy the folder of the checkpoint once more, whole"
        ) from None
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise RunError(f"{path} cannot be read as trainer state: {error}") from error
    for what, own, there in (
        ("version", version, head["version"]),
        (_RUN_ID, run_id, head.get(_RUN_ID)),
    ):
        if own != there:
            raise RunError(
                f"{path} belongs to another checkpoint: it holds {what} {own}, and {HEAD_FILE} "
                f"says {there}; copy the folder of the checkpoint once more, whole"
            )
    if other:
        raise RunError(
            f"{path} belongs to other weights than those beside it: {len(other)} of {len(marks)} "
            f"differ ({some_of(other)}); copy the folder of the checkpoint once more, whole"
        )
    return found


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
