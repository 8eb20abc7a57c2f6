"""Defaults that depend on the machine: the number types it computes fast."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

_GPUS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
_CPU_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
"""Of x86 and ARM processors that multiply bfloat16; others take up to nine times as long as in
float32."""


def has_gpu(devices: tuple[str, ...] = _GPUS) -> bool:
    """Return true if a driver of GPUs is here; loads no library."""
    return any(Path(device).exists() for device in devices)


def fast_dtype(
    cpuinfo: Path = Path("/proc/cpuinfo"), devices: tuple[str, ...] = _GPUS
) -> Literal["bfloat16", "float32"]:
    """`bfloat16` with a GPU or a processor that has instructions for it, else `float32`."""
    if has_gpu(devices):
        return "bfloat16"
    try:
        words = set(cpuinfo.read_text(encoding="utf-8", errors="replace").split())
    except OSError:
        return "float32"
    return "bfloat16" if words & _CPU_FLAGS else "float32"
