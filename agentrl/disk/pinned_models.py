"""The checkpoints that the paths of a config stood for when its run began.

A path may name another run: that is its latest checkpoint, and the other run may go on, delete old
checkpoints or be made anew. `run.json` keeps for every such key the folder, and a digest of each
file that decides what the model computes:

    "models": {"reward.models.rm.path": [{"path": "/runs/rm/checkpoints/step-20",
                                          "files": {"model.safetensors": "0d3f...", ...}}]}

Left out: hub names, whose files the hub's own cache keeps, and servers. The reference of
`agentrl fit` is kept by its checkpoints (`agentrl.fit.model.find_reference`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from agentrl.config import RunConfig
from agentrl.config.distill import CheckpointTeacher
from agentrl.config.fit import FitConfig
from agentrl.config.schema import ModelSection
from agentrl.disk.checkpoint import resolve_model_path
from agentrl.disk.other_models import other_model_source, reward_model_sources
from agentrl.errors import AgentrlError, RunError
from agentrl.reward.posterior import POSTERIOR_FILE
from agentrl.reward.scale import SCALE_FILE

Config = TypeVar("Config", bound=RunConfig | FitConfig)

MODEL, CRITIC, TEACHER = "model.path", "critic.path", "algorithm.distill.teacher.path"
REWARD_MODEL = "reward.models.{}.path"

_WEIGHTS = (".safetensors", ".bin")
_OTHERS = ("config.json", SCALE_FILE, POSTERIOR_FILE)
_SAMPLES, _SAMPLE_BYTES = 16, 2**16
"""Places of a file that are read, and bytes of each: all weights of a large model take minutes, and
an optimizer step changes nearly all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedModel:
    """One checkpoint that a key of the config stood for."""

    path: str
    """Absolute folder, or a hub name."""
    files: Mapping[str, str]
    """Name to digest of what was in the folder; empty for a hub name."""


def pin_models(config: RunConfig | FitConfig, base: Path) -> dict[str, tuple[PinnedModel, ...]]:
    """The checkpoints that the paths of a config stand for now, by key.

    Args:
        config: of the run.
        base: folder that relative paths of critics, reward models and teachers start from.

    Raises:
        RunError: a path names a run without a complete checkpoint.
        ConfigError: a reward model twice.
    """
    sources = {MODEL: [named_model(config.model)]}
    if isinstance(config, RunConfig):
        path = config.critic.path
        if path is not None and config.resolved_algorithm().needs_values:
            sources[CRITIC] = [other_model_source(path, base)]
        distill = config.algorithm.distill
        if distill is not None and isinstance(distill.teacher, CheckpointTeacher):
            sources[TEACHER] = [other_model_source(distill.teacher.path, base)]
        for name, item in config.reward.models.items():
            sources[REWARD_MODEL.format(name)] = list(reward_model_sources(item, base).values())
    return {key: tuple(_pinned(path) for path in paths) for key, paths in sources.items()}


def with_pinned(config: Config, pinned: Mapping[str, Sequence[PinnedModel]]) -> Config:
    """The config with every path replaced by what it stood for; others stay as they are."""
    paths = {key: tuple(model.path for model in models) for key, models in pinned.items()}
    changed: dict[str, Any] = {}
    if MODEL in paths:
        changed["model"] = config.model.model_copy(update={"path": paths[MODEL][0]})
    if not isinstance(config, RunConfig):
        return config.model_copy(update=changed)
    if CRITIC in paths:
        changed["critic"] = config.critic.model_copy(update={"path": paths[CRITIC][0]})
    distill = config.algorithm.distill
    if TEACHER in paths and distill is not None:
        teacher = distill.teacher.model_copy(update={"path": paths[TEACHER][0]})
        section = distill.model_copy(update={"teacher": teacher})
        changed["algorithm"] = config.algorithm.model_copy(update={"distill": section})
    models = {
        name: item.model_copy(update={"path": paths.get(REWARD_MODEL.format(name), item.path)})
        for name, item in config.reward.models.items()
    }
    changed["reward"] = config.reward.model_copy(update={"models": models})
    return config.model_copy(update=changed)


def check_pinned(pinned: Mapping[str, Sequence[PinnedModel]], *, option: str = "--resume") -> None:
    """Refuse to go on with other weights than the run began with.

    Args:
        pinned: by key.
        option: of the command, for the message.

    Raises:
        RunError: a checkpoint is gone, or a file of it is another one; names the key.
    """
    for key, models in pinned.items():
        for model in models:
            if not model.files:
                continue
            folder = Path(model.path)
            now = _digests(folder) if folder.is_dir() else {}
            names = sorted(now.keys() | model.files.keys())
            wrong = [name for name in names if now.get(name) != model.files.get(name)]
            if not wrong:
                continue
            what = f"{', '.join(wrong)} changed since" if now else "it is gone"
            raise RunError(
                f"{option}: the run began with {key} at {folder}, expected as it was then, but "
                f"{what}; put the old files back, as from a copy; if they were moved, add "
                f"{key}=FOLDER to the command; or start another run with another run.name (to "
                "keep it next time, name a copy, or raise checkpoint.keep_last of the run that it "
                "belongs to)"
            )


def moved_models(
    pinned: Mapping[str, Sequence[PinnedModel]], config: RunConfig | FitConfig, base: Path
) -> dict[str, tuple[PinnedModel, ...]]:
    """Models that a config finds in another folder, with the very files that the run began with."""
    if all(Path(model.path).is_dir() or not model.files for of in pinned.values() for model in of):
        return {}  # none is gone
    try:
        present = pin_models(config, base)
    except AgentrlError:
        return {}  # `check_pinned` names what is gone
    moved: dict[str, tuple[PinnedModel, ...]] = {}
    for key, found in present.items():
        old = pinned.get(key, ())
        same = [m.files for m in found] == [m.files for m in old] and all(m.files for m in old)
        if same and [m.path for m in found] != [m.path for m in old]:
            moved[key] = found
    return moved


def read_pinned(identity: Mapping[str, Any]) -> dict[str, tuple[PinnedModel, ...]]:
    """Pinned models that `run.json` keeps; empty for one of an older make."""
    return {
        key: tuple(PinnedModel(**model) for model in models)
        for key, models in identity.get("models", {}).items()
    }


def pinned_json(pinned: Mapping[str, Sequence[PinnedModel]]) -> dict[str, list[dict[str, Any]]]:
    """The part of `run.json` that `read_pinned` reads."""
    return {key: [asdict(model) for model in models] for key, models in pinned.items()}


def named_model(section: ModelSection) -> str:
    """The checkpoint folder or the name that `model.path` stands for now."""
    if section.path == ModelSection().path:
        return section.path  # the quickstart model, also beside a folder of that name
    return _absolute(resolve_model_path(section.path))


def _pinned(path: str) -> PinnedModel:
    path = _absolute(path)
    folder = Path(path)
    named = path == ModelSection().path or not folder.is_dir()
    return PinnedModel(path=path, files={} if named else _digests(folder))


def _absolute(path: str) -> str:
    folder = Path(path).expanduser()
    return str(folder.absolute()) if folder.is_dir() else path


def _digests(folder: Path) -> dict[str, str]:
    """Name to digest of the size and of parts, from the first byte to the last."""
    found: dict[str, str] = {}
    for file in sorted(folder.iterdir()):
        if file.suffix not in _WEIGHTS and file.name not in _OTHERS:
            continue
        size = file.stat().st_size
        digest = hashlib.sha256(f"{size}\n".encode())
        with file.open("rb") as opened:
            for part in range(_SAMPLES):
                opened.seek(part * max(0, size - _SAMPLE_BYTES) // (_SAMPLES - 1))
                digest.update(opened.read(_SAMPLE_BYTES))
        found[file.name] = digest.hexdigest()[:16]
    return found
