"""Models on the disk in the format of Hugging Face, without libraries that they do not use."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl.errors import TrainError
from agentrl.machine.files import write_whole
from agentrl.models.finite import check_finite

if TYPE_CHECKING:
    from torch import Tensor

    from agentrl.models.files.tensor_file import WrittenTensor

SHARD_BYTES = 4 * 2**30
"""A model with more bytes is written as several files, each at most so large, and an index."""
_REMEDY = "nothing was saved; go on from the checkpoint before it, with a lower train.learning_rate"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldWeights:
    """Weights of a model at one moment, as far as this process writes them."""

    files: tuple[Mapping[str, int], ...]
    """Names and sizes in bytes of the tensors of each file, also of those that others write."""
    own: Mapping[int, tuple[WrittenTensor, ...]]
    """Tensors of each file that this process writes."""
    dtype: str
    """Dtype of the first of them, as `bfloat16`, which the config names."""

    def write(self, model: Any, folder: Path, *, first: bool) -> None:
        """Write the files of this process.

        Args:
            model: a `transformers` model of these weights; its own are not read.
            folder: is there.
            first: of all processes this one writes config and index.

        Raises:
            OSError: as while writing; no file is torn.
            TrainError: a number is NaN or infinite.
        """
        from agentrl.models.files.tensor_file import write_tensors

        if first:
            _save_config(model, folder, dtype=self.dtype)
        count, who = len(self.files), type(model).__name__
        for index, tensors in self.own.items():
            checked = [replace(one, take=partial(_finite, one, who)) for one in tensors]
            write_tensors(folder / _file_name(index, count), checked, metadata={"format": "pt"})
        if first and count > 1:
            sizes = [size for file in self.files for size in file.values()]
            places = {
                name: _file_name(index, count)
                for index, file in enumerate(self.files)
                for name in file
            }
            text = json.dumps(
                {"metadata": {"total_size": sum(sizes)}, "weight_map": places}, indent=2
            )
            write_whole(folder / "model.safetensors.index.json", text.encode())


def hold_weights(
    weights: Iterable[tuple[str, Tensor]],
    keep: Callable[[str, Tensor], WrittenTensor],
    *,
    rank: int = 0,
    world_size: int = 1,
    shard_bytes: int = SHARD_BYTES,
) -> HeldWeights:
    """Hold the weights of the files that this rank writes; every rank iterates to the end.

    Files go round the ranks, so each holds its share of a large model and no rank all of it.

    Args:
        weights: in the form of the files.
        keep: holds one as it is now.
        rank: of this process.
        world_size: of the ranks that are given the same stream.
        shard_bytes: largest size of a file with more than one tensor.

    Raises:
        MemoryError, RuntimeError: this rank could not hold one; the others do not wait for it.
    """
    files: list[dict[str, int]] = [{}]
    own: dict[int, list[WrittenTensor]] = {}
    dtype, failed = "", None
    for name, tensor in weights:
        size = tensor.numel() * tensor.element_size()
        if files[-1] and sum(files[-1].values()) + size > shard_bytes:
            files.append({})
        files[-1][name] = size
        dtype = dtype or str(tensor.dtype).removeprefix("torch.")
        index = len(files) - 1
        if index % world_size != rank or failed is not None:
            continue
        try:
            own.setdefault(index, []).append(keep(name, tensor))
        except (MemoryError, RuntimeError) as error:  # the stream is one of all ranks
            failed = error
    if failed is not None:
        raise failed
    return HeldWeights(
        files=tuple(files),
        own={index: tuple(tensors) for index, tensors in own.items()},
        dtype=dtype,
    )


def _finite(one: WrittenTensor, who: str) -> Tensor:
    tensor = one.take()
    who = f"{who}, about to be saved,"
    check_finite([(one.name, tensor)], who=who, remedy=_REMEDY, kind=TrainError)
    return tensor


def _file_name(index: int, count: int) -> str:
    if count == 1:
        return "model.safetensors"
    return f"model-{index + 1:05d}-of-{count:05d}.safetensors"


def _save_config(model: Any, folder: Path, *, dtype: str) -> None:
    """Everything but weights, as `transformers` writes it."""
    with _without_importing_deepspeed():
        model.save_pretrained(folder, state_dict={})
    (folder / "model.safetensors").unlink(missing_ok=True)  # of no tensor
    # Of a divided model it would name the dtype of the masters.
    path = folder / "config.json"
    config = json.loads(path.read_text())
    if config.get("dtype") != dtype:
        write_whole(path, (json.dumps({**config, "dtype": dtype}, indent=2) + "\n").encode())


def save_pretrained(
    model: Any, folder: Path, *, weights: Mapping[str, Tensor] | None = None
) -> None:
    """Write weights and config of a `transformers` model.

    Args:
        model: a `transformers` model.
        folder: made if needed.
        weights: all of them, by name, where they are not those of `model`.

    Raises:
        TrainError: a number of them is NaN or infinite; nothing is written.
    """
    check_finite(
        (model.state_dict() if weights is None else weights).items(),
        who=f"{type(model).__name__}, about to be saved,",
        remedy=_REMEDY,
        kind=TrainError,
    )
    with _without_importing_deepspeed():
        if weights is None:
            model.save_pretrained(folder)
        else:
            model.save_pretrained(folder, state_dict=dict(weights))


@contextmanager
def _without_importing_deepspeed() -> Iterator[None]:
    """Show DeepSpeed to accelerate only where something has imported it.

    To see whether a model is wrapped in an engine of DeepSpeed, accelerate imports the package
    wherever it is installed. That takes seconds, and a model of a process that has not imported it
    has no such wrapper.
    """
    accelerate: Any = sys.modules.get("accelerate.utils.other")
    asked = getattr(accelerate, "is_deepspeed_available", None)
    if asked is None or "deepspeed" in sys.modules:
        yield
        return
    accelerate.is_deepspeed_available = lambda: "deepspeed" in sys.modules
    try:
        yield
    finally:
        accelerate.is_deepspeed_available = asked
