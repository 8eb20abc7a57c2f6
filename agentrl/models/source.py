"""Sources of models: a folder, a hub name or the quickstart model; nothing here loads weights.

Importing this module does not import torch, so that checks may import it at their top.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl.config.paths import QUICKSTART
from agentrl.errors import ConfigError
from agentrl.models.hub import require_on_hub
from agentrl.models.quickstart import quickstart_checkpoint

if TYPE_CHECKING:
    from agentrl.config.schema import ModelSection

SCORED = ("ForSequenceClassification", "ForTokenClassification")
"""Ends of the names of architectures that score."""


def check_model_path(path: str, *, key: str = "model.path") -> None:
    """Everything about a path to a model that can be checked without loading weights.

    Args:
        path: a checkpoint folder, a hub name or the quickstart model.
        key: of the config that names it.

    Raises:
        ConfigError: a folder that is not there or no checkpoint, or a name that the hub does not
            have or cannot be asked for.
    """
    if path == QUICKSTART:
        return
    folder = Path(path).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            names = sorted(entry.name for entry in folder.iterdir())
            raise ConfigError(
                f"{key} {path!r} is a folder without config.json, so not a Hugging Face "
                f"checkpoint; it holds: {', '.join(names[:8]) or 'nothing'}"
            )
    elif folder.exists():
        raise ConfigError(f"{key} {path!r} is a file; give the folder of a Hugging Face checkpoint")
    else:
        require_on_hub(path, key=key)


def loadable(path: str, *, key: str = "model.path") -> str:
    """The folder or hub name that `transformers` may be given for a path; checked.

    Raises:
        ConfigError: as `check_model_path`.
    """
    check_model_path(path, key=key)
    return str(quickstart_checkpoint()) if path == QUICKSTART else path


def stored_config(path: str, *, key: str = "model.path") -> Any:
    """The `transformers` config of a model, from its file alone.

    Raises:
        ConfigError: as `check_model_path`.
        OSError, ValueError: it is there and cannot be read.
    """
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(loadable(path, key=key))


def refuse_scoring_model(source: str, *, key: str = "model.path") -> None:
    """Refuse a checkpoint that scores answers: its head over the vocabulary would be random.

    Args:
        source: folder or hub name.
        key: of the config that names it.

    Raises:
        ConfigError: it is a reward model or another classifier.
    """
    check_model_path(source, key=key)
    try:
        kinds = stored_config(source, key=key).architectures or [""]
    except (OSError, ValueError):
        return  # what loads the model says what is wrong
    if kinds[0].endswith(SCORED):
        raise ConfigError(
            f"{key} {source!r} is a {kinds[0]}, a reward model: it scores answers and cannot write "
            "any; give a language model, and name this one in critic.path or start another "
            "objective.kind: rm with it"
        )


def read_config(source: str) -> Any:
    """The `transformers` config of a folder or hub name; None where there is none to be read.

    What loads the model says what is wrong; servers know models that `transformers` does not.

    Raises:
        ConfigError: as `check_model_path`.
    """
    try:
        return stored_config(source)
    except ConfigError:
        raise
    except (OSError, ValueError):
        return None


def load_tokenizer(section: ModelSection) -> Any:
    """The tokenizer alone, for checks before the model is loaded.

    Raises:
        ConfigError: it cannot be loaded from `model.path`.
    """
    from transformers import AutoTokenizer

    source = loadable(section.path)
    try:
        return AutoTokenizer.from_pretrained(source)
    except (OSError, ValueError) as error:
        raise ConfigError(f"model.path {section.path!r} has no usable tokenizer: {error}") from None
