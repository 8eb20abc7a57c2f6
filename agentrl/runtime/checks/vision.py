"""Runs of vision-language models: where they work, and where the files of their images lie."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from agentrl.config import RunConfig
from agentrl.errors import ConfigError
from agentrl.images import ImageFolder

if TYPE_CHECKING:
    from agentrl.vision.reader import VisionReader


def check_seeing(config: RunConfig) -> None:
    """Refuse settings under which a vision-language model is not run yet.

    Args:
        config: of a run whose model reads images.

    Raises:
        ConfigError: names each setting, what it is and what it must be.
    """
    local = config.runtime.kind == "local"
    workers = config.runtime.worker_processes if config.runtime.kind == "local" else 0
    wanted = [
        ("runtime.kind", config.runtime.kind, "local", local),
        ("runtime.worker_processes", workers, 0, not workers),
        ("serving.engine", config.serving.engine, "embedded", config.serving.engine == "embedded"),
        (
            "train.backend.kind",
            config.train.backend.kind,
            "torch",
            config.train.backend.kind == "torch",
        ),
        (
            "algorithm (with a critic)",
            "a critic",
            "none",
            not config.resolved_algorithm().needs_values,
        ),
    ]
    wrong = [(key, got, want) for key, got, want, holds in wanted if not holds]
    if wrong:
        raise ConfigError(
            f"model.path {config.model.path!r} is a vision-language model, which runs with "
            + ", ".join(f"{key}: {want} (got {got})" for key, got, want in wrong)
            + "; other choices are for models of text"
        )


def open_images(config: RunConfig, reader: VisionReader | None, folder: Path) -> None:
    """Let the reader of a run's model keep its images in a folder.

    Args:
        config: of the run.
        reader: None for a model that reads text only.
        folder: made when the first image comes.

    Raises:
        ConfigError: as `check_seeing`.
    """
    if reader is not None:
        check_seeing(config)
        reader.folder = ImageFolder(folder)
