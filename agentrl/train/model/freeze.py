"""Parts of a model that stay as they are: `train.freeze`.

What asks for no gradient has no master, no moment, no gradient sum, and no pass back to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

from agentrl.errors import ConfigError, choices
from agentrl.models.vision.reader import reader_of

VISION_TOWER = "vision_tower"
"""Stands for the modules of a vision-language model that read pixels."""


def freeze_parts(model: Any, parts: Sequence[str]) -> None:
    """Take the gradients of some parameters away.

    Args:
        model: of `transformers`.
        parts: `vision_tower`, or patterns of the names of parameters or modules.

    Raises:
        ConfigError: a part that the model does not have, or nothing that is left to train.
    """
    trained = dict(model.named_parameters())
    for part in parts:
        pattern = _tower(model) if part == VISION_TOWER else part
        found = [n for n in trained if fnmatchcase(n, pattern) or fnmatchcase(n, f"{pattern}.*")]
        if not found:
            modules = [name for name, _ in model.named_modules() if 0 < len(name.split(".")) <= 2]
            raise ConfigError(
                f"train.freeze: no parameter of {type(model).__name__} matches "
                f"{choices(part, [VISION_TOWER, *modules])}"
            )
        for name in found:
            trained[name].requires_grad_(False)
    if not any(param.requires_grad for param in trained.values()):
        raise ConfigError(f"train.freeze {list(parts)} leaves no parameter to train")


def _tower(model: Any) -> str:
    reader = reader_of(model)
    if reader is None:
        raise ConfigError(
            f"train.freeze: {type(model).__name__} reads text only and has no {VISION_TOWER}; "
            "leave it out, or name parameters, as in 'model.layers.0'"
        )
    return f"*.{reader.family.tower}"
