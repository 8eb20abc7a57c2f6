"""The weights that a training process had at fixed marks of its budget.

The budget is minutes of training or sampled tokens. The weights of a mark are those after the last
step that was complete by then. Copying and writing weights is left out of the time.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

PLAN_FILE = "plan.json"
FINISHED_FILE = "finished"
"""Made when the weights of the last mark are on the disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotPlan:
    """Marks of one training process, and how it saves its weights there."""

    unit: str
    """`seconds` of training, or sampled `tokens`."""
    marks: tuple[float, ...]
    """Ascending, in that unit; the last is the whole budget."""
    model: str
    """Checkpoint that training begins with, which lends its config and tokenizer."""
    dtype: str
    """Number type of saved weights: that of the evaluation."""

    def write(self, folder: Path) -> None:
        (folder / PLAN_FILE).write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, folder: Path) -> SnapshotPlan:
        data = json.loads((folder / PLAN_FILE).read_text())
        return cls(**{**data, "marks": tuple(data["marks"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Weights after a step."""

    weights: Mapping[str, Any] | None
    """None before the first step: the checkpoint that training began with."""
    step: int
    """Training steps done."""
    position: float
    """Budget used by then, in the unit of the plan."""


class Snapshots:
    """Holds the weights of the last two steps, and writes those that belong to a mark.

    Example:
        Marks at 10 and 20 s, steps that end at 8, 15 and 23 s: after 8 s nothing is written; at
        15 s mark 10 gets the weights of 8 s, and at 23 s mark 20 gets those of 15 s.
    """

    def __init__(
        self,
        marks: Sequence[float],
        write: Callable[[int, Held], None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin the clock.

        Args:
            marks: ascending.
            write: called with the index of a mark and what belongs to it.
            now: a clock that never goes back, in seconds.
        """
        self._left = list(enumerate(marks))
        self._write, self._now = write, now
        self._began = now()
        self._newest = Held(weights=None, step=0, position=0.0)

    @property
    def seconds(self) -> float:
        """Time of training so far, without that of copies and files."""
        return self._now() - self._began

    @property
    def finished(self) -> bool:
        """True if every mark has its weights."""
        return not self._left

    def add(self, copy: Callable[[], Mapping[str, Any]], *, step: int, position: float) -> None:
        """Take the weights of a step; marks before `position` get those of the step before.

        Args:
            copy: makes a copy of the weights, which training does not change.
            step: training steps done.
            position: budget used by them, in the unit of the marks.
        """
        began = self._now()
        while self._left and self._left[0][1] < position:
            self._write(self._left.pop(0)[0], self._newest)
        if self._left:
            self._newest = Held(weights=copy(), step=step, position=position)
        self._began += self._now() - began


def snapshots_in(folder: Path) -> Snapshots:
    """Snapshots of the plan in a folder, written beside it as `mark-N` and `mark-N.json`."""
    plan = SnapshotPlan.read(folder)

    def write(index: int, held: Held) -> None:
        if held.weights is not None:
            save_weights(folder / f"mark-{index}", held.weights, model=Path(plan.model))
        facts = {
            "mark": plan.marks[index],
            "step": held.step,
            "position": held.position,
            "model": plan.model if held.weights is None else str(folder / f"mark-{index}"),
        }
        (folder / f"mark-{index}.json").write_text(json.dumps(facts))
        if index == len(plan.marks) - 1:
            (folder / FINISHED_FILE).touch()

    return Snapshots(plan.marks, write)


def copy_weights(weights: Iterable[tuple[str, Tensor]], *, dtype: str) -> dict[str, Tensor]:
    """A copy in another number type."""
    import torch

    kind = getattr(torch, dtype)
    return {name: tensor.detach().to(kind, copy=True) for name, tensor in weights}


def save_weights(folder: Path, weights: Mapping[str, Tensor], *, model: Path) -> None:
    """Write a checkpoint with the config and the tokenizer of another one."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True)
    for file in model.iterdir():
        if file.is_file() and file.suffix not in (".safetensors", ".bin"):
            shutil.copy(file, folder / file.name)
    save_file(dict(weights), folder / "model.safetensors", metadata={"format": "pt"})
