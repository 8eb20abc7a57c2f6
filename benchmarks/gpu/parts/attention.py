"""Attention over packed rows and trees of prefixes: numbers against float64 on the CPU, and speed.

`kernels` names what a device computes with: the values of `model.attention` that it does not
refuse. All are compared with the fused kernel in float64 on the CPU, output and gradients. On the
CPU the written-out softmax is compared, too, so that the code of the comparison runs everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from agentrl.train.model.attention import fused_attention
from agentrl.train.model.cpu_rows import CpuRows
from agentrl.train.model.flex import flexible_attention
from agentrl.train.model.kernels.choose import AttentionCall, refusal
from agentrl.train.model.kernels.varlen import flash_rows, torch_rows, varlen_attention
from agentrl.train.model.segments import Segments
from parts.readings import Reading, Setting, peak_bytes, relative_error, seconds_of

BOUNDS = {torch.float32: 5e-5, torch.bfloat16: 2e-2}
"""Relative error of output and gradients, by dtype of the inputs."""
Kernel = Callable[[Tensor, Tensor, Tensor, Segments, int | None, float], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCase:
    """A layout of packed tokens, and a window."""

    name: str
    """Description for the reading."""
    segments: Segments
    """Layout of the tokens."""
    window: int | None = None
    """Keys a query looks back on."""

    @property
    def attended(self) -> int:
        """Pairs of query and key that are looked at, without a window."""
        depth: list[int] = []
        total = 0
        for length, parent in zip(self.segments.lengths, self.segments.parents, strict=True):
            above = depth[parent] if parent >= 0 else 0
            total += length * above + length * (length + 1) // 2
            depth.append(above + length)
        return total


ROWS = AttentionCase(name="rows", segments=Segments.of_rows((257, 1, 130, 64, 300, 17)))
TREE = AttentionCase(
    name="tree",
    segments=Segments(
        lengths=(200, 90, 31, 64, 150, 7, 120, 33), parents=(-1, 0, 1, 1, 0, -1, 5, 5)
    ),
)
WINDOW_ROWS = AttentionCase(name="rows, window 50", segments=ROWS.segments, window=50)
WINDOW_TREE = AttentionCase(name="tree, window 50", segments=TREE.segments, window=50)
CASES = (ROWS, TREE, WINDOW_ROWS, WINDOW_TREE)


def inputs(
    tokens: int, *, heads: int = 9, kv_heads: int = 3, dim: int = 64
) -> tuple[list[Tensor], Tensor]:
    """Query, key and value, [1, heads, T, dim] in float64 on the CPU, and an upstream gradient.

    The memory has the order of a model's projections: tokens before heads.
    """
    generator = torch.Generator().manual_seed(0)
    draw = [
        torch.randn(1, tokens, count, dim, generator=generator, dtype=torch.float64)
        for count in (heads, kv_heads, kv_heads)
    ]
    upstream = torch.randn(1, tokens, heads, dim, generator=generator, dtype=torch.float64)
    return [tensor.transpose(1, 2) for tensor in draw], upstream


def outcome(
    kernel: Kernel, case: AttentionCase, given: list[Tensor], upstream: Tensor
) -> list[Tensor]:
    """Output and the gradients of query, key and value."""
    leaves = [tensor.detach().requires_grad_() for tensor in given]
    query, key, value = leaves
    out = kernel(query, key, value, case.segments, case.window, query.shape[-1] ** -0.5)
    return [out.detach(), *torch.autograd.grad(out, leaves, upstream)]


def attention_error(
    kernel: Kernel, case: AttentionCase, dtype: torch.dtype, device: torch.device
) -> float:
    """Largest relative error of output and gradients; the reference reads the rounded inputs."""
    given, upstream = inputs(case.segments.num_tokens)
    rounded, upstream = [tensor.to(dtype) for tensor in given], upstream.to(dtype)
    wanted = outcome(
        fused_attention, case, [tensor.double() for tensor in rounded], upstream.double()
    )
    found = outcome(
        kernel, case, [tensor.to(device) for tensor in rounded], upstream.to(device)
    )  # fmt: skip
    return max(relative_error(mine, other) for mine, other in zip(found, wanted, strict=True))


def kernels(device: torch.device, dtype: torch.dtype = torch.bfloat16) -> dict[str, Kernel]:
    """The kernels that compute heads of 64 in a dtype on a device, by name."""
    known: dict[str, Kernel] = {
        "sdpa": fused_attention,
        "flex": flexible_attention,
        "torch_varlen": partial(varlen_attention, torch_rows),
        "flash": partial(varlen_attention, flash_rows),
    }
    call = AttentionCall(device=device, dtype=dtype)
    found = {name: kernel for name, kernel in known.items() if not refusal(name, call)}
    return found if device.type == "cuda" else {**found, "written out": CpuRows.apply}


def measure(setting: Setting) -> Iterator[Reading]:
    """Errors of all kernels and cases, then speed and memory on a GPU."""
    for dtype, bound in BOUNDS.items():
        for name, kernel in kernels(setting.device, dtype).items():
            for case in CASES:
                error = attention_error(kernel, case, dtype, setting.device)
                label = f"{name}, {case.name}, {str(dtype).removeprefix('torch.')}: error"
                yield Reading(name=label, value=error, bound=bound)
    yield from _speed(setting)


def _speed(setting: Setting) -> Iterator[Reading]:
    length = 64 if setting.small else 2048
    rows = AttentionCase(
        name=f"8 rows of {length}", segments=Segments.of_rows((length,) * 8)
    )  # fmt: skip
    tree = AttentionCase(
        name=f"{length} shared by 8 of {length}",
        segments=Segments(lengths=(length,) * 9, parents=(-1, *(0,) * 8)),
    )
    for case in (rows, tree):
        given, upstream = inputs(case.segments.num_tokens)
        given = [tensor.to(setting.device, torch.bfloat16) for tensor in given]
        upstream = upstream.to(setting.device, torch.bfloat16)
        for name, kernel in kernels(setting.device).items():
            both = partial(outcome, kernel, case, given, upstream)
            seconds = seconds_of(both, setting.device)
            label = f"{name}, {case.name}, bfloat16, 9 heads of 64, forward and backward"
            # Two products forward, five backward, each of 2 x 64 operations for a pair and head.
            work = 7 * 2 * 64 * 9 * case.attended
            yield Reading(name=label, value=seconds * 1e3, unit="ms")
            yield Reading(name=label, value=work / seconds / 1e12, unit="TFLOP/s")
            if setting.on_gpu:
                peak = peak_bytes(both, setting.device) / 2**20
                yield Reading(name=label, value=peak, unit="MiB at the peak")
