"""Wall time, processor time and memory of the phases of a simulated run."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def resident_bytes(pid: int | None = None) -> int:
    """Memory that a process holds, in bytes: this one, if none is named."""
    try:
        fields = Path(f"/proc/{pid or 'self'}/statm").read_text(encoding="ascii").split()
    except OSError:
        return 0
    return int(fields[1]) * _PAGE_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseUse:
    """Use of one occurrence of a phase."""

    wall_s: float
    """Wall time in seconds."""
    cpu_s: float
    """Processor time of the driver's process in seconds, all threads."""
    workers_cpu_s: float
    """Processor time of rollout workers in processes of their own, in seconds."""


@dataclass(slots=True)
class PhaseMeter:
    """Attributes what was used since the last mark to a phase."""

    workers: Callable[[], Iterable[int]] = tuple
    """Process ids of the rollout workers that live."""
    memory: Callable[[], int] = resident_bytes
    """Memory of the driver's process in bytes."""
    phases: dict[str, list[PhaseUse]] = field(default_factory=dict[str, list[PhaseUse]])
    """Phase to its occurrences."""
    resident_bytes: list[int] = field(default_factory=list[int])
    """Memory of the driver's process after each step."""
    _last: tuple[float, float, float] = (0.0, 0.0, 0.0)

    def start(self) -> None:
        """Begin to count now."""
        self._last = self._now()

    def mark(self, phase: str) -> None:
        """End a phase, and begin the next."""
        now, last = self._now(), self._last
        wall_s, cpu_s, workers_cpu_s = (b - a for a, b in zip(last, now, strict=True))
        use = PhaseUse(wall_s=wall_s, cpu_s=cpu_s, workers_cpu_s=workers_cpu_s)
        self.phases.setdefault(phase, []).append(use)
        self._last = now

    def mark_step(self) -> None:
        """Note the memory after a step."""
        self.resident_bytes.append(self.memory())

    def _now(self) -> tuple[float, float, float]:
        workers = sum(process_cpu_s(pid) for pid in self.workers())
        return time.perf_counter(), time.process_time(), workers


def typical(uses: Sequence[PhaseUse]) -> PhaseUse:
    """The mean of the occurrences of a phase but the first, which imports code and fills caches.

    Args:
        uses: in their order; a single one is taken as it is.
    """
    counted = uses[1:] or uses
    return PhaseUse(
        wall_s=fmean(use.wall_s for use in counted),
        cpu_s=fmean(use.cpu_s for use in counted),
        workers_cpu_s=fmean(use.workers_cpu_s for use in counted),
    )


def process_cpu_s(pid: int) -> float:
    """Processor time of another process in seconds; 0 where it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0.0
    user, system = fields.rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / _TICKS
