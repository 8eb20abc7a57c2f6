"""The folder or hub name of the policy, and of the model that servers of a run start with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl.disk.checkpoint import resolve_model_path
from agentrl.disk.merged_model import merged_config, merged_folder
from agentrl.errors import ConfigError
from agentrl.models.source import loadable

if TYPE_CHECKING:
    from agentrl.config.schema import ModelSection
    from agentrl.config.training import LoraSection


def model_source(section: ModelSection, *, path: str | None = None, key: str = "model.path") -> str:
    """The folder or hub name that the policy, or the checkpoint at `path`, is loaded from.

    With `model.overrides` it is a folder that has them; see `merged_folder`.

    Raises:
        ConfigError: as `check_model_path`, or overrides that do not fit the model.
        RunError: a run directory without a complete checkpoint.
    """
    source = plain_source(section, path=path, key=key)
    try:
        return merged_folder(source, section.overrides)
    except ConfigError:
        raise
    except (OSError, ValueError) as error:
        raise ConfigError(f"{key} {source!r} has no usable config: {error}") from None


def plain_source(section: ModelSection, *, path: str | None = None, key: str = "model.path") -> str:
    """As `model_source`, without `model.overrides`: what another machine may be told."""
    named = key if path is None else "the model"
    source = loadable(resolve_model_path(path or section.path), key=named)
    folder = Path(source).expanduser()
    return str(folder.absolute()) if folder.is_dir() else source


def named_source(section: ModelSection, *, path: str | None = None) -> str:
    """As `model_source`, but under the name of the config where there are no overrides.

    Raises:
        ConfigError, RunError: as `model_source`, as far as it has to be looked at.
    """
    if section.overrides:
        return model_source(section, path=path)
    return resolve_model_path(path or section.path)


def source_beside(section: ModelSection, source: str) -> str:
    """The folder of a model beside the policy: with `model.overrides` where it is the same one.

    Args:
        section: of the policy.
        source: folder or hub name of the other model.
    """
    if not section.overrides:
        return source
    same = plain_source(section, path=source) == plain_source(section)
    return model_source(section) if same else source


def policy_config(section: ModelSection) -> Any:
    """The `transformers` config of the policy; no weight is read or fetched.

    Raises:
        ConfigError: as `check_model_path`, or overrides that do not fit the model.
        OSError, ValueError: it is there and cannot be read.
    """
    return merged_config(plain_source(section), section.overrides)


def served_source(
    section: ModelSection, lora: LoraSection | None, *, checkpoint: str | None
) -> str:
    """The model that the servers of a run start with: the checkpoint, or what adapters stand on."""
    return model_source(section, path=checkpoint if lora is None else None)
