"""The folder or hub name of the policy, and of the model that servers of a run start with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl.disk.checkpoint import resolve_model_path
from agentrl.models.source import loadable, stored_config

if TYPE_CHECKING:
    from agentrl.config.schema import ModelSection
    from agentrl.config.training import LoraSection


def model_source(section: ModelSection, *, path: str | None = None, key: str = "model.path") -> str:
    """The folder or hub name that the policy, or the checkpoint at `path`, is loaded from.

    Raises:
        ConfigError: as `check_model_path`.
        RunError: a run directory without a complete checkpoint.
    """
    named = key if path is None else "the model"
    source = loadable(resolve_model_path(path or section.path), key=named)
    folder = Path(source).expanduser()
    return str(folder.absolute()) if folder.is_dir() else source


def policy_config(section: ModelSection) -> Any:
    """The `transformers` config of the policy; no weight is read or fetched.

    Raises:
        ConfigError: as `check_model_path`.
        OSError, ValueError: it is there and cannot be read.
    """
    return stored_config(model_source(section))


def served_source(
    section: ModelSection, lora: LoraSection | None, *, checkpoint: str | None
) -> str:
    """The model that the servers of a run start with: the checkpoint, or what adapters stand on."""
    return model_source(section, path=checkpoint if lora is None else None)
