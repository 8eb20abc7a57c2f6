"""Sources of models: a folder, a hub name or the quickstart model; nothing here loads weights.

Importing this module does not import torch, so that checks may import it at their top.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

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
        OSError, ValueError: it is there and cannot be read; with the reason in one line.
    """
    from transformers import AutoConfig

    source = loadable(path, key=key)
    _refuse_unknown(config_file(source))
    try:
        return AutoConfig.from_pretrained(source, trust_remote_code=False)
    except Exception as error:  # the code of a family's config may raise anything
        raise ValueError(
            f"transformers does not take its config.json: {last_line(error)}"
        ) from None


def config_file(source: str) -> dict[str, Any]:
    """The contents of config.json of a folder or hub name.

    Raises:
        OSError, ValueError: there is none, or it is no mapping.
    """
    folder = Path(source).expanduser()
    if folder.is_dir():
        path = folder / "config.json"
    else:
        from transformers.utils.hub import cached_file

        path = Path(cast(str, cached_file(source, "config.json")))
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"its config.json is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"its config.json holds a {type(found).__name__}, expected a mapping")
    return cast(dict[str, Any], found)


def _refuse_unknown(settings: Mapping[str, Any]) -> None:
    """Refuse a config that `transformers` has no class for, in one line in the place of its own."""
    from transformers import CONFIG_MAPPING, __version__

    kind = settings.get("model_type")
    if kind in CONFIG_MAPPING:
        return
    if settings.get("auto_map"):
        raise ValueError(
            f"its model_type {kind!r} needs code of its own (auto_map in config.json), which is "
            "not run here; give a model whose code is part of transformers"
        )
    if kind is None:
        raise ValueError("its config.json has no model_type, so it is no checkpoint of a model")
    near = ", ".join(difflib.get_close_matches(str(kind), CONFIG_MAPPING.keys(), n=3))
    raise ValueError(
        f"its config.json has the model_type {kind!r}, which transformers {__version__} does not "
        f"know{f' (did you mean {near}?)' if near else ''}; docs/families.md lists the families "
        "that train"
    )


def last_line(error: Exception) -> str:
    """The last line of an error: the first ones of libraries are often about themselves."""
    said = str(error).strip().splitlines() or [repr(error)]
    return said[-1].strip().removeprefix("ValueError: ")


def weights_bytes(source: str) -> int:
    """Bytes of the weights in the files of a folder; 0 of a hub name.

    Args:
        source: folder or hub name.
    """
    files = Path(source).expanduser().glob("*.safetensors")
    return sum(file.stat().st_size for file in files)


def refuse_quantised(source: str, *, who: str) -> None:
    """Refuse weights that a gradient cannot move, from config.json alone.

    Args:
        source: folder or hub name.
        who: names it at the beginning of the message.

    Raises:
        ConfigError: it has a quantization_config.
    """
    try:
        found = config_file(source).get("quantization_config")
    except (OSError, ValueError):
        return  # whatever reads the config says so
    if not found:
        return
    kind = found.get("quant_method", "unknown") if isinstance(found, dict) else "unknown"
    raise ConfigError(
        f"{who} is quantised ({kind}, by quantization_config in its config.json): such weights "
        "cannot be trained, and vLLM alone samples from them; give the checkpoint that it was made "
        "from, which train.lora.base: nf4 keeps in 4 bits, or remove quantization_config if the "
        "weights are plain"
    )


def check_language_model(source: str, *, key: str = "model.path", scores: bool = False) -> None:
    """Refuse a checkpoint that cannot be trained as a policy, by its config.json alone.

    Args:
        source: folder or hub name.
        key: of the config that names it.
        scores: it is to score, so that one which does already is taken.

    Raises:
        ConfigError: a config that cannot be read, or of a family that `transformers` does not know;
            quantised weights; an encoder-decoder or a model without a language; a reward model or
            another classifier, whose head over the vocabulary would be random.
    """
    check_model_path(source, key=key)
    who = f"{key} {source!r}"
    try:
        config = stored_config(source, key=key)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{who} cannot be loaded: {error}") from None
    refuse_quantised(loadable(source, key=key), who=who)
    if scores:
        return
    kinds = config.architectures or [""]
    if kinds[0].endswith(SCORED):
        raise ConfigError(
            f"{who} is a {kinds[0]}, a reward model: it scores answers and cannot write "
            "any; give a language model, and name this one in critic.path or start another "
            "objective.kind: rm with it"
        )
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    loaders: tuple[Any, ...] = (AutoModelForCausalLM, AutoModelForImageTextToText)
    known = any(type(config) in loader._model_mapping for loader in loaders)  # pyright: ignore[reportPrivateUsage]
    if getattr(config, "is_encoder_decoder", False) or not known:
        what = "an encoder-decoder" if known else "no causal language model"
        raise ConfigError(
            f"{who} is {what} (model_type {config.model_type!r} in its config.json), expected a "
            "decoder that writes on from its prompt; docs/families.md lists the families that train"
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
        return AutoTokenizer.from_pretrained(source, trust_remote_code=False)
    except Exception as error:  # the code of a family's tokenizer may raise anything
        said = (str(error).strip().splitlines() or [repr(error)])[0].removesuffix(" from one of: ")
        raise ConfigError(
            f"model.path {section.path!r} has no usable tokenizer: {said}; put the files of the "
            "tokenizer that it was trained with there (tokenizer.json, tokenizer_config.json)"
        ) from None
