"""A step that could not be trained on, on disk: its batch, to be loaded and run again.

The file holds tensors, numbers and text only, and nothing in it is executed when it is read. It
holds no weights: those of the failed step are what a resumed run comes to, since the steps after
its last checkpoint are trained again from the stored rollouts.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from numpy.typing import NDArray

from agentrl.batch import records
from agentrl.batch.records import PackedBatch, StepBatch
from agentrl.errors import RunError
from agentrl.machine.files import replacing
from agentrl.metrics.bag import MetricBag

FAILED_PART = re.compile(r"\.part-(\d+)-of-(\d+)\.pt$")
"""End of the name of a file that one of several ranks wrote: its rank, and their number."""
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


def save_failed_step(
    directory: Path,
    batch: StepBatch,
    *,
    version: int,
    error: str,
    part: tuple[int, int] | None = None,
) -> Path:
    """Write `failed-step-N.pt`, N counted from 1; a file of the same step is replaced.

    Args:
        directory: made if it is missing.
        batch: as the trainer was given it.
        version: of the weights it was to change.
        error: of the trainer.
        part: rank and number of ranks, where each has a share and writes a file of its own,
            `failed-step-N.part-RANK-of-RANKS.pt`.
    """
    directory.mkdir(parents=True, exist_ok=True)
    which = "" if part is None else f".part-{part[0]}-of-{part[1]}"
    target = directory / f"failed-step-{version + 1}{which}.pt"
    state = {"format": _FORMAT, "version": version, "error": error, "batch": _plain(batch)}
    with replacing(target) as path:
        torch.save(state, path)
    return target


def load_failed_step(path: Path) -> FailedStep:
    """Read what `save_failed_step` wrote: all parts of a step, given the path of any.

    Raises:
        RunError: no such file, a torn one, one of another format, or a part that is missing.
    """
    found = FAILED_PART.search(path.name)
    if found is None:
        return _load(path)
    paths = [
        path.with_name(f"{path.name[: found.start()]}.part-{rank}-of-{found[2]}.pt")
        for rank in range(int(found[2]))
    ]
    missing = [other.name for other in paths if not other.is_file()]
    if missing:
        raise RunError(
            f"{path} is one of {len(paths)} parts of a failed step, and {', '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} not there; a rank that was lost has left none"
        )
    parts = [_load(other) for other in paths]
    return replace(parts[int(found[1])], batch=_together([part.batch for part in parts]))


def _together(parts: Sequence[StepBatch]) -> StepBatch:
    """The whole batch of the shares of all ranks."""
    return replace(
        parts[0],
        updates=tuple(
            _joined(shares) for shares in zip(*(part.updates for part in parts), strict=True)
        ),
        untrained=_joined([part.untrained for part in parts if part.untrained is not None]),
    )


@overload
def _joined(shares: tuple[PackedBatch, ...]) -> PackedBatch: ...
@overload
def _joined(shares: list[PackedBatch]) -> PackedBatch | None: ...
def _joined(shares: Sequence[PackedBatch]) -> PackedBatch | None:
    micros = tuple(micro for share in shares for micro in share.micro_batches)
    return replace(shares[0], micro_batches=micros, whole=None) if shares else None


def _load(path: Path) -> FailedStep:
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
