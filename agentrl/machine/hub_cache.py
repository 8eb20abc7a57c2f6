"""The cache of this machine for repositories of the Hugging Face hub."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

HubKind = Literal["model", "dataset"]


def is_cached(name: str, kind: HubKind) -> bool:
    """True if files of a hub name lie in this machine's cache."""
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        return False
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    folder = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=name, repo_type=kind)
    if kind == "dataset":
        return folder.is_dir() or (_datasets_cache() / name.replace("/", "___")).is_dir()
    return any(folder.glob("snapshots/*/config.json"))


def _datasets_cache() -> Path:
    from huggingface_hub import constants

    kept = os.environ.get("HF_DATASETS_CACHE")
    return Path(kept).expanduser() if kept else Path(constants.HF_HOME) / "datasets"
