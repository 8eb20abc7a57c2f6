"""A training step on rows that share their prompt, as a tree and one by one.

Both gradients are compared with that of float32 on the CPU, on the same rounded weights, where rows
are read one by one.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from agentrl.train.model.kernels.choose import KERNELS, use_kernel
from parts.attention import kernels
from parts.models import make_model
from parts.readings import Reading, Setting, relative_errors, seconds_of
from parts.steps import dtype_name, make_batch, make_trainer, step_gradient, trained_tokens

BOUNDS = {torch.float32: 1e-3, torch.bfloat16: 0.1}
"""Relative error of the gradient, by dtype."""


def gradient_errors(setting: Setting, dtype: torch.dtype) -> dict[str, float]:
    """Distance of the gradient on the device from that of float32 on the CPU, by layout."""
    cpu = torch.device("cpu")
    # The sizes of a test: the CPU has to do it, too.
    exact = make_model(setting, dtype, device=cpu).to(torch.float32)
    vocabulary = exact.config.vocab_size
    wanted = step_gradient(exact, make_batch(vocabulary, small=True, sharing=False))
    return {
        layout: relative_errors(
            step_gradient(
                make_model(setting, dtype), make_batch(vocabulary, small=True, sharing=sharing)
            ),
            wanted,
        )
        for layout, sharing in (("tree", True), ("rows", False))
    }


def kernel_error(setting: Setting, kernel: str) -> float:
    """Distance of the gradient of a tree by a kernel in bfloat16 from that of `auto` in float32."""
    batch = make_batch(make_model(setting, torch.bfloat16).config.vocab_size, small=True)
    model = make_model(setting, torch.bfloat16)
    use_kernel(model, kernel)
    wanted = step_gradient(make_model(setting, torch.bfloat16).to(torch.float32), batch)
    return relative_errors(step_gradient(model, batch), wanted)


def measure(setting: Setting) -> Iterator[Reading]:
    """Errors by dtype and layout, seconds of a step, and both by kernel of attention."""
    for dtype, bound in BOUNDS.items():
        for layout, error in gradient_errors(setting, dtype).items():
            label = f"{layout}, {dtype_name(dtype)}: gradient, error"
            yield Reading(name=label, value=error, bound=bound)
    model = make_model(setting, torch.bfloat16)
    trainer, _ = make_trainer(model)
    for kernel in ("auto", *(name for name in KERNELS if name in kernels(setting.device))):
        use_kernel(model, kernel)
        if kernel != "auto":
            error = kernel_error(setting, kernel)
            label = f"tree, bfloat16, {kernel}: gradient, error"
            yield Reading(name=label, value=error, bound=BOUNDS[torch.bfloat16])
        for layout, sharing in (("tree", True), ("rows", False)):
            batch = make_batch(model.config.vocab_size, small=setting.small, sharing=sharing)

            def step(batch: object = batch) -> None:
                trainer.step(batch)  # type: ignore[arg-type]

            seconds = seconds_of(step, setting.device, repeats=1 if setting.small else 5)
            label = f"{layout}, bfloat16, {kernel}, {trained_tokens(batch)} tokens read"
            yield Reading(name=f"{label}: a step", value=seconds * 1e3, unit="ms")
