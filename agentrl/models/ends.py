"""The tokens with which a stored model ends its turns, by its own files.

`generation_config.json` names them all; a tokenizer names one of them. Where that file is missing,
`config.json` may have them.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentrl.errors import ConfigError
from agentrl.machine.hub_cache import is_cached
from agentrl.models.hub import require_on_hub

logger = logging.getLogger(__name__)

_FILES = ("generation_config.json", "config.json")


def stored_ends(source: str) -> tuple[str, tuple[int, ...]]:
    """The file of a model that names its ends, and their ids; empty where none does.

    Args:
        source: folder or hub name that its tokenizer was loaded from.
    """
    for name in _FILES:
        path = _file_of(source, name) if source else None
        try:
            document = json.loads(path.read_bytes()) if path is not None else {}
        except (OSError, ValueError) as error:
            logger.warning("%s is not readable, so no ends of turns come from it: %s", path, error)
            continue
        if ids := _ids(document):
            return name, ids
    return "", ()


def _ids(document: Any) -> tuple[int, ...]:
    if not isinstance(document, Mapping):
        return ()
    found = document.get("eos_token_id")
    if found is None and isinstance(inner := document.get("text_config"), Mapping):
        found = inner.get("eos_token_id")
    values = found if isinstance(found, list) else [found]
    return tuple(dict.fromkeys(one for one in values if type(one) is int and one >= 0))


def _file_of(source: str, name: str) -> Path | None:
    folder = Path(source).expanduser()
    if folder.is_dir():
        return folder / name if (folder / name).is_file() else None
    # A tokenizer of the hub left its files in the cache; any other name is nothing to ask for.
    if not is_cached(source, "model"):
        return None
    from huggingface_hub import hf_hub_download

    try:
        require_on_hub(source, key="the tokenizer")  # bounded in time, unlike the next line
        return Path(hf_hub_download(source, name))
    except (ConfigError, OSError, ValueError) as error:  # it has no such file, or cannot be asked
        logger.debug("%s of %s: %s", name, source, error)
        return None
