"""Loads a checkpoint whole or not at all: no tensor of a model begins random, none is left over.

Every model of a run is loaded here or by the same checks in `parts`, and `check_whole` compares
names and shapes alone for those that load none. `transformers` reports what did not fit; this
decides what of it is meant so.
"""

from __future__ import annotations

import json
import pickle
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from agentrl.errors import ConfigError, some_of
from agentrl.models.finite import check_finite
from agentrl.models.quickstart import quiet_loading
from agentrl.models.source import last_line, refuse_quantised

WHOLE = ("model.safetensors", "pytorch_model.bin")
"""Files that hold all of a checkpoint of `transformers`, the one before the other."""
REMEDY = "take another copy of the checkpoint, or the one before it"
"""Next step after a number that is not finite."""
FILES = tuple(f"{whole}{end}" for whole in WHOLE for end in ("", ".index.json"))
"""Files of which one begins a checkpoint of `transformers`."""
_KNOWN = f"{', '.join(WHOLE)} and an index of shards"
_LEFT_ALONE = re.compile(
    r"(^|\.)mtp(_layers)?\.|(^|\.)v_head\.|rotary_emb\.inv_freq$|(^|\.)position_ids$|\.[kv]_scale$"
)
"""Names beside a language model that its class need not know: layers that guess several tokens, a
critic's head, tables that are computed now, and scales of caches in fp8."""
_WRAPPERS = (
    "base_model",
    "module",
    "_orig_mod",
    "_fsdp_wrapped_module",
    "_checkpoint_wrapped_module",
)
_ROUTER_BIAS = "e_score_correction_bias"
"""A buffer of DeepSeek-V3's routers, and of their like, that some programs do not save."""
_ADAPTER_PARTS = ("base_layer", "lora_A", "lora_B", "modules_to_save")
TORN = (
    OSError,
    ValueError,
    RuntimeError,
    AssertionError,
    EOFError,
    KeyError,
    SafetensorError,
    pickle.UnpicklingError,
)
"""Errors of a file that cannot be read."""


def load_whole(loader: Any, source: str, *, who: str, body: bool = False, **settings: Any) -> Any:
    """A model by `loader.from_pretrained`, with every number in it from the checkpoint, and finite.

    Args:
        loader: an `AutoModel...` class of `transformers`.
        source: folder or hub name.
        who: names the model at the beginning of messages, as `model.path 'x'`.
        body: the head of the checkpoint, or of its language model, is left behind on purpose.
        settings: of `from_pretrained`.

    Raises:
        ConfigError: it cannot be read; tensors are missing, left over or of another shape; a number
            is not finite; or the folder holds two models.
    """
    folder = checkpoint_folder(source, who=who)
    checked_files(folder, who)
    model = load_checked(loader, source, who=who, body=body, settings=settings, folder=folder)
    check_finite(
        model.state_dict().items(),
        who=who,
        remedy=REMEDY,
    )
    return model


def check_whole(loader: Any, config: Any, folder: Path, *, who: str) -> None:
    """As `load_whole`, from the heads of the files alone: no weight is read.

    Args:
        loader: an `AutoModel...` class of `transformers`.
        config: in the folder; `loader` knows its class.
        folder: of the checkpoint.
        who: names the model at the beginning of messages.

    Raises:
        ConfigError: as `load_whole`, but for numbers that are not finite.
    """
    names = checked_files(folder, who)
    made, config = class_for(loader, config)
    try:
        settings = {"config": config, "state_dict": _heads(folder, names), "device_map": "meta"}
    except TORN as error:
        raise ConfigError(f"{who} cannot be loaded: {why_torn(folder, error)}") from None
    load_checked(made, None, who=who, body=False, settings=settings, folder=folder)


def class_for(loader: Any, config: Any) -> tuple[Any, Any]:
    """The class that a loader takes for a config, and the config that it is given."""
    made = loader._model_mapping[type(config)]  # pyright: ignore[reportPrivateUsage]
    if isinstance(made, (tuple, list)):  # several for one config; the loader chooses by its name
        made = next((one for one in made if one.__name__ in (config.architectures or ())), made[0])
    text = config.sub_configs.get("text_config")
    if text is not None and made.config_class == text:
        return made, config.get_text_config()
    return made, config


def shapes_in(path: Path) -> dict[str, tuple[int, ...]]:
    """Shapes of the tensors in a file of safetensors, by name."""
    with safe_open(path, framework="pt") as file:
        return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118


def _heads(folder: Path, names: Collection[str]) -> dict[str, Tensor]:
    """Tensors without numbers by the names in the files that would be loaded."""
    found: dict[str, Tensor] = {}
    for path in (folder / name for name in names):
        if path.suffix == ".safetensors":
            shapes = shapes_in(path).items()
            found |= {key: torch.empty(shape, device="meta") for key, shape in shapes}
        else:
            found |= torch.load(path, map_location="meta", weights_only=True)
    return found


def load_checked(
    loader: Any,
    source: str | None,
    *,
    who: str,
    body: bool,
    settings: dict[str, Any],
    folder: Path,
) -> Any:
    """The model, or a `ConfigError` with what does not fit.

    Args:
        loader: a class of `transformers`.
        source: folder or hub name; None where `settings` hold the weights.
        who: names the model at the beginning of messages.
        body: the head of the checkpoint is left behind on purpose.
        settings: of `from_pretrained`.
        folder: that the weights come from.
    """
    try:
        with quiet_loading():
            model, report = loader.from_pretrained(
                source, output_loading_info=True, ignore_mismatched_sizes=True, **settings
            )
    except TORN as error:
        raise ConfigError(f"{who} cannot be loaded: {why_torn(folder, error)}") from None
    missing = sorted(report["missing_keys"])
    over = sorted(n for n in report["unexpected_keys"] if not _meant(n, model.config, body))
    shaped = sorted(report["mismatched_keys"], key=lambda odd: odd[0])
    if not (missing or over or shaped):
        return model
    other = [f"{name} {list(got)}, expected {list(wanted)}" for name, got, wanted in shaped]
    found = [
        f"{len(names)} {kind}: {some_of(names)}"
        for kind, names in (("missing", missing), ("left over", over), ("of another shape", other))
        if names
    ]
    raise ConfigError(
        f"{who} does not hold exactly the weights of {type(model).__name__}, as config.json has "
        f"it: {'; '.join(found)}; {_remedy(missing, over)}"
    )


def _meant(name: str, config: Any, body: bool) -> bool:
    """A tensor of the checkpoint that this model leaves out on purpose."""
    # Heads stand beside the layers, which have numbers.
    if _LEFT_ALONE.search(name) or (body and not re.search(r"\.\d+\.", name)):
        return True
    text = config.get_text_config()
    # Layers beyond the last one that guess further tokens: DeepSeek's and GLM's.
    guessing = getattr(text, "num_nextn_predict_layers", None) or 0
    layer = re.search(r"(?:^|\.)layers\.(\d+)\.", name)
    first = getattr(text, "num_hidden_layers", 0)
    return layer is not None and first <= int(layer[1]) < first + guessing


def _remedy(missing: Collection[str], over: Collection[str]) -> str:
    """The next step of the user, by what the names look like."""
    parts = {part for name in over for part in name.split(".")}
    if parts.intersection(_ADAPTER_PARTS):
        return (
            "these are parts of an adapter (PEFT); give the folder of the merged model "
            "(merge_and_unload, then save_pretrained)"
        )
    if missing and (around := [name for name in _WRAPPERS if name in parts]):
        return (
            f"names with {around[0]!r} are those of a wrapper (PEFT, DDP, FSDP, torch.compile); "
            "save the model inside it with save_pretrained"
        )
    if missing:
        buffer = any(name.endswith(_ROUTER_BIAS) for name in missing)
        return (
            "what is missing would be random; give a whole checkpoint, or the config.json that "
            "belongs to these weights"
            + (f"; {_ROUTER_BIAS} can be copied from the base model" if buffer else "")
        )
    return "give the config.json that belongs to these weights, or remove from them what is not its"


def checked_files(folder: Path, who: str) -> list[str]:
    """The files of a folder that are loaded.

    Raises:
        ConfigError: there are none; one model hides another; a shard is not there, or not whole; or
            the index names what no shard holds.
    """
    if (folder / "adapter_config.json").is_file():
        raise ConfigError(
            f"{who} is a folder with adapter_config.json: an adapter of another model, which would "
            "be loaded in its place; give the folder of the merged model (merge_and_unload, then "
            "save_pretrained)"
        )
    refuse_quantised(str(folder), who=who)
    for whole in WHOLE:
        index = folder / f"{whole}.index.json"
        if not index.is_file():
            if (folder / whole).is_file():
                return [whole]
            continue
        places = _places(index, who)
        shards = set(places.values())
        if (folder / whole).is_file() and shards != {whole}:
            raise ConfigError(
                f"{who} holds two models: {whole}, and {len(shards)} shards of {index.name}; "
                "remove the older one, since programs differ in which of the two they load"
            )
        if gone := sorted(shard for shard in shards if not (folder / shard).is_file()):
            raise ConfigError(
                f"{who} lacks {len(gone)} of the {len(shards)} shards that {index.name} lists: "
                f"{some_of(gone)}; copy the folder, or fetch it, once more"
            )
        try:
            _refuse_ghosts(folder, index.name, places, who)
        except (SafetensorError, OSError) as error:
            raise ConfigError(f"{who} cannot be loaded: {why_torn(folder, error)}") from None
        return sorted(shards)
    held = some_of(sorted(entry.name for entry in folder.iterdir()))
    raise ConfigError(f"{who} cannot be loaded: it has none of {_KNOWN}; it holds: {held}")


def checkpoint_folder(source: str, *, who: str) -> Path:
    """The folder of a checkpoint: that in the hub's cache for a name, fetched if need be.

    Args:
        source: folder or hub name.
        who: names the model at the beginning of messages.

    Raises:
        ConfigError: it is quantised, or a file cannot be fetched.
    """
    folder = Path(source).expanduser()
    refuse_quantised(source, who=who)
    if folder.is_dir():
        return folder
    from transformers.utils.hub import cached_file

    def get(name: str) -> str | None:
        return cached_file(source, name, _raise_exceptions_for_missing_entries=False)

    try:
        for whole in WHOLE:
            if (found := get(whole)) is not None:
                return Path(found).parent
            if (index := get(f"{whole}.index.json")) is not None:
                for shard in sorted(set(_places(Path(index), who).values())):
                    get(shard)
                return Path(index).parent
    except OSError as error:
        raise ConfigError(f"{who} cannot be fetched: {last_line(error)}") from None
    raise ConfigError(f"{who} cannot be loaded: the hub has none of {_KNOWN} under this name")


def _places(index: Path, who: str) -> dict[str, str]:
    """The file of each tensor, by an index of shards."""
    try:
        return dict(json.loads(index.read_text())["weight_map"].items())
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise ConfigError(f"{who}: {index.name} is no index of shards: {error!r}") from None


def _refuse_ghosts(folder: Path, index: str, places: Mapping[str, str], who: str) -> None:
    """Refuse an index that names tensors which their files do not hold."""
    held = {
        file: set(shapes_in(folder / file))
        for file in set(places.values())
        if file.endswith(".safetensors")
    }
    ghosts = sorted(name for name, file in places.items() if name not in held.get(file, places))
    if ghosts:
        raise ConfigError(
            f"{who}: {index} names {len(ghosts)} tensors that their files do not hold: "
            f"{some_of([f'{name} ({places[name]})' for name in ghosts])}; take index and shards "
            "from one copy of the checkpoint"
        )


def why_torn(folder: Path, error: Exception) -> str:
    """The file that is torn or the tensor that does not fit, where that can be seen."""
    kinds: dict[str, list[tuple[str, tuple[int, ...]]]] = defaultdict(list)
    for path in sorted(folder.expanduser().glob("*.safetensors")):
        try:
            for name, shape in shapes_in(path).items():
                kinds[re.sub(r"\d+", "*", name)].append((name, shape))
        except (SafetensorError, OSError) as torn:
            start = path.read_bytes()[:64] if path.stat().st_size < 2**16 else b""
            if start.startswith(b"version https://git-lfs"):
                return f"{path.name} is a pointer of git LFS; fetch the file itself (git lfs pull)"
            return f"{path.name} is not whole ({torn}); copy it once more"
    odd = [
        f"{name} {list(shape)}, expected {list(usual)}"
        for alike in kinds.values()
        for usual in [Counter(shape for _, shape in alike).most_common(1)[0][0]]
        for name, shape in alike
        if shape != usual
    ]
    if odd and isinstance(error, RuntimeError):  # tensors that could not be put together
        return f"{len(odd)} of another shape than their like: {some_of(odd)}"
    if isinstance(error, KeyError):
        return f"transformers knows no {error}, which its config.json names"
    return last_line(error)
