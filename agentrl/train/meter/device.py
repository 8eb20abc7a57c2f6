"""Peak speed, memory and utilisation of the device that trains."""

from __future__ import annotations

import importlib.util
import resource
import threading
import time

import torch

from agentrl.metrics.bag import MetricBag

GB = 1e9
_EVERY_S = 0.5
"""Between two looks at the utilisation; the driver itself averages over a sixth of a second to one
second."""

_PEAK: tuple[tuple[str, float], ...] = (
    ("GB300", 2500e12), ("GB200", 2500e12), ("B300", 2250e12), ("B200", 2250e12),
    ("H200", 989e12), ("GH200", 989e12), ("H100 PCIe", 756e12), ("H100 NVL", 835e12),
    ("H100", 989e12), ("H20", 148e12), ("A100", 312e12), ("A800", 312e12), ("H800", 989e12),
    ("L40S", 362e12), ("L40", 181e12), ("L4", 121e12), ("A40", 150e12), ("A30", 165e12),
    ("A10G", 70e12), ("A10", 125e12), ("RTX A6000", 155e12), ("RTX 4090", 165e12),
    ("RTX 5090", 209e12), ("RTX 3090", 71e12),
)  # fmt: skip
"""FLOP/s of dense bfloat16 products with float32 sums, by part of the device's name, the longer
names first: from the makers' data sheets, which often print twice as much, for sparse matrices."""


def peak_flops(name: str, dtype: torch.dtype) -> float | None:
    """Highest FLOP/s of a device in a 16-bit type; None where they are not known.

    Args:
        name: as `torch.cuda.get_device_name` gives it.
        dtype: of the products.
    """
    if dtype not in (torch.bfloat16, torch.float16):
        return None
    return next((peak for part, peak in _PEAK if part.lower() in name.lower()), None)


class DeviceMeter:
    """Notes peak memory and utilisation of one device, apart for training and for the rest.

    The rest is all that this process does between two steps of the trainer: rollouts of an
    embedded engine, evaluations, new weights for engines. On a CPU the peak of the whole process
    stands for both, since the kernel keeps no other.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._cuda = device.type == "cuda"
        self._load: _Utilisation | None = None
        if self._cuda and importlib.util.find_spec("pynvml") is not None:
            self._load = _Utilisation(device)

    def peak_flops(self, dtype: torch.dtype) -> float | None:
        """As `peak_flops`, of this device."""
        return peak_flops(torch.cuda.get_device_name(self._device), dtype) if self._cuda else None

    def take(self, phase: str, bag: MetricBag) -> None:
        """Write down what `phase` took since the last call, and begin anew."""
        if not self._cuda:
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            bag.max("perf/host_peak_gb", peak / GB)
            return
        bag.max(f"perf/memory_peak_gb/{phase}", torch.cuda.max_memory_allocated(self._device) / GB)
        bag.max(
            f"perf/memory_reserved_gb/{phase}", torch.cuda.max_memory_reserved(self._device) / GB
        )
        torch.cuda.reset_peak_memory_stats(self._device)
        if self._load is not None:
            total, count = self._load.take()
            bag.mean(f"perf/utilization/{phase}", total, count=count)


class _Utilisation:
    """Looks at the share of time that a GPU has work, from a thread that ends with the process."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._lock = device, threading.Lock()
        self._total, self._count = 0.0, 0
        threading.Thread(target=self._look, name="gpu-utilisation", daemon=True).start()

    def take(self) -> tuple[float, int]:
        """Sum of the shares since the last call, and their number."""
        with self._lock:
            found, self._total, self._count = (self._total, self._count), 0.0, 0
            return found

    def _look(self) -> None:
        while True:
            time.sleep(_EVERY_S)
            try:
                share = torch.cuda.utilization(self._device) / 100
            except RuntimeError:  # a driver that keeps no such counter, as in many containers
                return
            with self._lock:
                self._total, self._count = self._total + share, self._count + 1
