"""Models on the disk in the format of Hugging Face, without libraries that they do not use."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from agentrl.errors import TrainError
from agentrl.models.whole import check_finite


def save_pretrained(
    model: Any, folder: Path, *, weights: Mapping[str, Tensor] | None = None
) -> None:
    """Write weights and config of a `transformers` model.

    Args:
        model: a `transformers` model.
        folder: made if needed.
        weights: all parameters, by name, where they are not those of `model`; its buffers that
            belong into a file come with them.

    Raises:
        TrainError: a number of them is NaN or infinite; nothing is written.
    """
    if weights is not None:
        weights = {**persistent_buffers(model), **weights}
    check_finite(
        (model.state_dict() if weights is None else weights).items(),
        who=f"{type(model).__name__}, about to be saved,",
        remedy="nothing was saved; go on from the checkpoint before it, with a lower "
        "train.learning_rate",
        kind=TrainError,
    )
    with _without_importing_deepspeed():
        if weights is None:
            model.save_pretrained(folder)
        else:
            model.save_pretrained(folder, state_dict=dict(weights))


def persistent_buffers(model: Any) -> dict[str, Tensor]:
    """Tensors that are no parameters and are stored all the same, as the bias of a router."""
    return {
        f"{path}.{name}" if path else name: buffer
        for path, module in model.named_modules()
        for name, buffer in module.named_buffers(recurse=False)
        if name not in module._non_persistent_buffers_set  # pyright: ignore[reportPrivateUsage]
    }


def stored_names(model: Any, names: Iterable[str]) -> dict[str, str]:
    """Names of weights in files of a model, of those that have another name there.

    `transformers` has renamed the parts of some models, and writes and reads their older names.

    Args:
        model: a `transformers` model whose weights are renamed only, as vision-language models are.
        names: of its weights.

    Returns:
        By the name in the model.
    """
    from transformers.core_model_loading import revert_weight_conversion

    marks = {name: torch.empty(0) for name in names}
    own = {id(mark): name for name, mark in marks.items()}
    found = revert_weight_conversion(model, marks)
    return {own[id(mark)]: name for name, mark in found.items() if own[id(mark)] != name}


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
