"""A step that could not be trained on, on disk: its batch, to be loaded and run again.

The file holds tensors, numbers and text only, and nothing in it is executed when it is read. It
holds no weights: those of the failed step are what a resumed run comes to, since the steps after
its last checkpoint are trained again from the stored rollouts.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from agentrl.batch import records
from agentrl.batch.records import StepBatch
from agentrl.errors import RunError
from agentrl.files import replacing
from agentrl.metrics.bag import MetricBag

if TYPE_CHECKING:
    pass

_FORMAT = 1
_DAMAGED = (
    OSError, RuntimeError, EOFError, LookupError, TypeError, ValueError, pickle.UnpicklingError
)  # fmt: skip
"""What torch and the records raise on a file that is not what it should be."""
_RECORDS = {
    name: kind
    for name, kind in vars(records).items()
    if isinstance(kind, type) and is_dataclass(kind)
}
"""Classes a file may hold: the records of the batch stage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedStep:
    """Everything that is kept of a step that failed."""

    version: int
    """Version of the weights it was to change; the step before was number `version`."""
    error: str
    """Error of the trainer."""
    batch: StepBatch
    """Batch as the trainer was given it, without its metrics."""


def save_failed_step(directory: Path, batch: StepBatch, *, version: int, error: str) -> Path:
    """Write `failed-step-N.pt`, N counted from 1; a file of the same step is replaced."""
    directory.mkdir(parents=True, exist_ok=True)
    target = directory / f"failed-step-{version + 1}.pt"
    state = {"format": _FORMAT, "version": version, "error": error, "batch": _plain(batch)}
    with replacing(target) as path:
        torch.save(state, path)
    return target


def load_failed_step(path: Path) -> FailedStep:
    """Read what `save_failed_step` wrote.

    Raises:
        RunError: no such file, a torn one, or one of another format.
    """
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        if state["format"] != _FORMAT:
            raise RunError(f"{path} has format {state['format']}, this version reads {_FORMAT}")
        return FailedStep(
            version=state["version"], error=state["error"], batch=_whole(state["batch"])
        )
    except _DAMAGED as error:
        raise RunError(f"{path} cannot be read as a failed step: {error}") from error


def _plain(value: Any) -> Any:
    """Records as lists `[kind, content]`, arrays as tensors."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.ndarray):
        array: NDArray[Any] = value
        return torch.from_numpy(array.copy())
    if isinstance(value, MetricBag):
        return ["metrics", None]
    if isinstance(value, tuple | list):
        return ["tuple", [_plain(item) for item in value]]
    if isinstance(value, Mapping):
        return ["mapping", [[_plain(key), _plain(item)] for key, item in value.items()]]
    content = {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    return [type(value).__name__, content]


def _whole(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.numpy()
    if not isinstance(value, list):
        return value
    kind, content = value
    if kind == "metrics":
        return MetricBag()
    if kind == "tuple":
        return tuple(_whole(item) for item in content)
    if kind == "mapping":
        return {_whole(key): _whole(item) for key, item in content}
    return _RECORDS[kind](**{name: _whole(item) for name, item in content.items()})
