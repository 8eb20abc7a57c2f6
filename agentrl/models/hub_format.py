"""Models on the disk in the format of Hugging Face, without libraries that they do not use."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl.errors import TrainError
from agentrl.models.finite import check_finite

if TYPE_CHECKING:
    from torch import Tensor


def save_pretrained(
    model: Any, folder: Path, *, weights: Mapping[str, Tensor] | None = None
) -> None:
    """Write weights and config of a `transformers` model.

    Args:
        model: a `transformers` model.
        folder: made if needed.
        weights: all of them, by name, where they are not those of `model`.

    Raises:
        TrainError: a number of them is NaN or infinite; nothing is written.
    """
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
