"""The fit that made a reward model: its settings, and the pairs that it was trained on."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentrl.config.fit import FitConfig
from agentrl.config.load import is_fit_file
from agentrl.config.reward import RefreshSection
from agentrl.disk.run_directory import read_fit_identity
from agentrl.errors import ConfigError
from agentrl.fit.data.preferences.load import LoadedPairs, load_pairs

NONE = "none"
"""Value of `old_pairs` without which a model without a known fit is not refreshed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OldPairs:
    """A source of pairs; all fields are values of JSON."""

    source: str
    """As `data.source` of a fit file."""
    base: str
    """Folder that relative paths start from."""
    split: str = "train"
    """Split to take."""
    columns: dict[str, str] = field(default_factory=dict[str, str])
    """Columns of the layout."""
    args: dict[str, Any] = field(default_factory=dict[str, Any])
    """Keyword arguments of a function."""
    limit: int | None = None
    """Take only the first so many."""

    def load(self, *, most: int | None = None) -> LoadedPairs:
        """Read the pairs of the source.

        Args:
            most: read only so many rows; None reads what `limit` allows.

        Raises:
            AgentrlError: no such source, or a broken row.
        """
        limits = [number for number in (most, self.limit) if number is not None]
        return load_pairs(
            self.source,
            split=self.split,
            columns=self.columns,
            args=self.args,
            limit=min(limits, default=None),
            base=Path(self.base),
        )


def fit_of(path: str, base: Path) -> tuple[FitConfig, Path] | None:
    """The fit that made a model, and where its relative paths start; None if it is not known.

    Args:
        path: run directory or checkpoint folder; a hub name has no fit here.
        base: folder that relative paths start from.

    Raises:
        ConfigError: the run is no fit of a reward model.
    """
    folder = base / Path(path).expanduser()
    if folder.parent.name == "checkpoints":
        folder = folder.parent.parent
    if not (folder / "config.yaml").is_file():
        return None
    if not is_fit_file(folder / "config.yaml"):
        raise ConfigError(f"{path} is a run that is no fit, so it is no reward model")
    config, start = read_fit_identity(folder)
    if config.objective.kind != "rm":
        raise ConfigError(
            f"{path} is a fit of objective {config.objective.kind}, expected one of a reward model "
            "(objective: rm)"
        )
    return config, start


def old_pairs(section: RefreshSection, path: str, *, base: Path) -> OldPairs | None:
    """The source of old pairs; None where the section asks for none.

    Args:
        section: of the run file.
        path: of the model that the run begins with.
        base: folder that relative paths start from.

    Raises:
        ConfigError: none is named, and the fit that made the model is not known.
    """
    if section.old_pairs == NONE:
        return None
    if section.old_pairs is not None:
        return OldPairs(source=section.old_pairs, base=str(base.resolve()))
    found = fit_of(path, base)
    if found is None:
        raise ConfigError(
            f"reward.refresh.old_pairs is not set, and {path!r} is no run directory of a fit that "
            "would say what it was trained on; give a source of pairs, or `none` to train on new "
            "pairs alone"
        )
    config, start = found
    data = config.data
    return OldPairs(
        source=data.source,
        base=str(start),
        split=data.split,
        columns=dict(data.columns),
        args=dict(data.args),
        limit=data.limit,
    )
