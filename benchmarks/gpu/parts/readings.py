"""Records and clocks that all parts share.

A part is a module with `measure(setting)`, which yields its readings. A reading with a bound is a
check: it fails where the value is above the bound, or is no number.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


class PartSkipped(Exception):
    """A part cannot run here, for the reason in its message; it is no failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Device and size of a run of the parts."""

    device: torch.device
    """Device that is measured."""
    model: Path | None = None
    """Folder of a checkpoint; None makes a random model of the same shape."""
    small: bool = False
    """Sizes of a test: seconds on a CPU, and no figure worth keeping."""
    folder: Path | None = None
    """Folder for what a part writes; None for parts that write nothing."""

    @property
    def on_gpu(self) -> bool:
        """True where the device is a GPU."""
        return self.device.type == "cuda"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One number of a part, and its bound where it is a check."""

    name: str
    """Description of the number."""
    value: float
    """The number itself."""
    unit: str = ""
    """Unit of the number; empty for a ratio."""
    bound: float | None = None
    """Largest value that is right; None where nothing is promised."""

    @property
    def holds(self) -> bool:
        """False for a check whose value is above its bound, or no number."""
        return self.bound is None or (not math.isnan(self.value) and self.value <= self.bound)

    def text(self) -> str:
        """As in `gradient, bfloat16: 0.0031 (bound 0.02)`."""
        bound = "" if self.bound is None else f" (bound {self.bound:g})"
        unit = f" {self.unit}" if self.unit else ""
        return f"{self.name}: {self.value:.4g}{unit}{bound}{'' if self.holds else '  FAILED'}"

    def to_json(self) -> dict[str, Any]:
        """The fields by name."""
        return asdict(self)


def synchronize(device: torch.device) -> None:
    """Wait for the kernels of a GPU; a CPU has none that run on."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_of(work: Callable[[], Any], device: torch.device, *, repeats: int = 5) -> float:
    """Median seconds of `work`, after one call that compiles and allocates."""
    work()
    found = []
    for _ in range(repeats):
        synchronize(device)
        began = time.perf_counter()
        work()
        synchronize(device)
        found.append(time.perf_counter() - began)
    return statistics.median(found)


def peak_bytes(work: Callable[[], Any], device: torch.device) -> int:
    """Bytes of a GPU that `work` needs at its peak, above what was allocated before."""
    work()
    synchronize(device)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    work()
    synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


def relative_error(found: Tensor, wanted: Tensor) -> float:
    """|found - wanted| / |wanted| in float64 on the CPU, over all numbers together."""
    difference = found.detach().cpu().double() - wanted.detach().cpu().double()
    return float(difference.norm() / wanted.detach().cpu().double().norm())


def relative_errors(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> float:
    """As `relative_error`, over all tensors of two mappings with the same keys."""
    if found.keys() != wanted.keys():
        raise ValueError(f"tensors differ: {sorted(found.keys() ^ wanted.keys())[:4]}")
    flat = [torch.cat([of[n].detach().cpu().double().reshape(-1) for n in wanted])
            for of in (found, wanted)]  # fmt: skip
    return relative_error(*flat)
