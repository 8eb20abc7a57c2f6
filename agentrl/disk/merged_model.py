"""The policy with `model.overrides`: a folder of links to its files, with another config.json.

Every reader of a model (trainer, reference, engines, checks, vLLM on its command line) takes a
folder, so all of them have the same config, and none needs to know that it was changed. Checkpoints
carry it on: overrides that a folder has already leave it alone. The folders are in the user's
cache, one for each content; each machine makes its own.
"""

from __future__ import annotations

import copy
import difflib
import hashlib
import json
import logging
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agentrl.errors import ConfigError
from agentrl.machine.files import cache_dir
from agentrl.models.source import stored_config

Table = dict[str, Any]

_OURS = {
    "model_type": "it says which model the weights are of",
    "architectures": "they say which model the weights are of",
    "dtype": "set model.dtype",
    "torch_dtype": "set model.dtype",
    "head_dtype": "set model.head_dtype",
}
"""Keys that cannot be changed here, and why."""
_ROPE = ("rope_parameters", "rope_scaling")
_IN_ROPE = ("rope_theta", "partial_rotary_factor")
"""Keys that stood beside the others once; `transformers` reads them from `rope_parameters`."""
_FIRST_LENGTH = "original_max_position_embeddings"
_OF_ONE_TYPE = frozenset(
    {
        *("factor", _FIRST_LENGTH, "attention_factor", "beta_fast", "beta_slow", "mscale"),
        *("mscale_all_dim", "truncate", "short_factor", "long_factor"),
        *("low_freq_factor", "high_freq_factor"),
    }
)
"""Parameters of a rotary embedding that mean nothing to one of another `rope_type`."""
_NEED_FIRST_LENGTH = ("yarn", "llama3", "longrope")


def merged_config(source: str, overrides: Mapping[str, Any]) -> Any:
    """The `transformers` config of a folder or hub name, with overrides; no weight is fetched.

    Args:
        source: folder or hub name.
        overrides: as `model.overrides`.

    Raises:
        ConfigError: as `check_model_path`; or a key that the config does not have, a value that
            `transformers` does not take, or one that changes nothing.
        OSError, ValueError: it is there and cannot be read.
    """
    stored = stored_config(source)
    return _merge(stored, source, overrides)[0] if overrides else stored


def merged_folder(source: str, overrides: Mapping[str, Any]) -> str:
    """A folder with the files of a model and the config of `merged_config`.

    Args:
        source: folder or hub name; a name that is to be changed is fetched whole.
        overrides: as `model.overrides`.

    Returns:
        `source` itself where nothing changes.

    Raises:
        ConfigError: as `merged_config`, or the cache cannot be written.
        OSError, ValueError: the config is there and cannot be read.
    """
    if not overrides:
        return source
    stored = stored_config(source)
    made, data = _merge(stored, source, overrides)
    if made.to_dict() == _made(type(stored), _file_of(source)).to_dict():
        return source
    folder = Path(source).expanduser().absolute()
    if not folder.is_dir():
        from huggingface_hub import snapshot_download

        folder = Path(snapshot_download(source))
    text = json.dumps(data, indent=2, sort_keys=True)
    digest = hashlib.sha256(f"{folder}\n{text}".encode())
    for entry in sorted(folder.iterdir()):
        stat = entry.stat()
        digest.update(f"{entry.name} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    target = cache_dir() / "merged-models" / f"{folder.name}-{digest.hexdigest()[:12]}"
    try:
        if not target.is_dir():
            _write(folder, target, text)
    except OSError as error:
        raise ConfigError(
            f"model.overrides: the folder {target} cannot be written: {error.strerror}; free space "
            "there, or set AGENTRL_CACHE to another folder"
        ) from None
    return str(target)


def _write(folder: Path, target: Path, config: str) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    making = Path(tempfile.mkdtemp(dir=target.parent, prefix=".making-"))
    try:
        for entry in folder.iterdir():
            if entry.name != "config.json":
                (making / entry.name).symlink_to(entry.resolve())
        (making / "config.json").write_text(config, encoding="utf-8")
        making.chmod(0o755)
        making.rename(target)
    except OSError:
        shutil.rmtree(making, ignore_errors=True)
        if not target.is_dir():  # otherwise another process made the same one first
            raise


def _file_of(source: str) -> Table:
    from transformers import PretrainedConfig

    return PretrainedConfig.get_config_dict(source)[0]


def _made(kind: Any, data: Table) -> Any:
    return kind.from_dict(copy.deepcopy(data))


def _merge(stored: Any, source: str, overrides: Mapping[str, Any]) -> tuple[Any, Table]:
    """The changed config, and what its file holds."""
    data = _with(_file_of(source), stored, overrides, ())
    try:
        with _warnings() as said:
            made = _made(type(stored), data)
    except Exception as error:  # the code of a family's config may raise anything
        why = error.args[0] if isinstance(error, KeyError) else error
        raise ConfigError(_refused(" ".join(str(why).split()))) from None
    if said:
        raise ConfigError(_refused(said[0]))
    _check_effect(made, overrides, ())
    return made, data


def _refused(why: str) -> str:
    return f"model.overrides: transformers does not take this config: {why}"


@contextmanager
def _warnings() -> Iterator[list[str]]:
    """Warnings of transformers on rotary embeddings; a run would not see that they were heeded."""
    found: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(" ".join(record.getMessage().split()))

    watched, handler = logging.getLogger("transformers.modeling_rope_utils"), Handler()
    level = watched.level
    watched.addHandler(handler)
    watched.setLevel(logging.WARNING)
    try:
        yield found
    finally:
        watched.setLevel(level)
        watched.removeHandler(handler)


def _with(data: Table, config: Any, overrides: Mapping[str, Any], at: tuple[str, ...]) -> Table:
    """The contents of a config file, or of a part of it, with overrides."""
    data, rope = copy.deepcopy(data), Table()
    known = {name for name in config.to_dict() if not name.startswith("_")}
    for given, value in overrides.items():
        key = config.attribute_map.get(given, given)
        name = ".".join((*at, given))
        if key in _OURS:
            raise ConfigError(f"model.overrides.{name} cannot be changed: {_OURS[key]}")
        inner = getattr(config, key, None)
        if key in (*_ROPE, *_IN_ROPE) and isinstance(getattr(config, _ROPE[0], None), dict):
            if key in _ROPE:
                rope |= _table(value or {"rope_type": "default"}, name)
            else:
                rope[key] = value
        elif hasattr(inner, "to_dict"):
            data[key] = _with(data.get(key) or {}, inner, _table(value, name), (*at, key))
        elif key not in known or key == "transformers_version":
            raise ConfigError(_unknown(given, name, config, known))
        elif isinstance(inner, dict) and isinstance(value, dict):
            data[key] = {**inner, **value}
        else:
            data[key] = value
    if rope:
        for name in (*_ROPE, *_IN_ROPE):
            data.pop(name, None)
        first = getattr(config, "max_position_embeddings", None)
        data[_ROPE[0]] = _rotary(getattr(config, _ROPE[0]), rope, first, (*at, _ROPE[0]))
    return data


def _table(value: Any, name: str) -> Table:
    if isinstance(value, dict):
        return value
    raise ConfigError(f"model.overrides.{name} is {value!r}, expected a mapping")


def _unknown(given: str, name: str, config: Any, known: set[str]) -> str:
    near = difflib.get_close_matches(given, known, n=3)
    inner = [
        f"{part}.{given}"
        for part in getattr(config, "sub_configs", {})
        if given in getattr(config, part).to_dict()
    ]
    said = inner or near
    hint = f" (did you mean {', '.join(said)}?)" if said else ""
    return f"model.overrides.{name} is no key of the config of a {config.model_type}{hint}"


def _rotary(now: Table, given: Table, first: int | None, at: tuple[str, ...]) -> Table:
    """Parameters of the rotary embedding, of one kind of layers or by kind."""
    where = ".".join(at)
    kinds = {name: part for name, part in now.items() if isinstance(part, dict)}
    if kinds:
        if odd := sorted(given.keys() - kinds.keys()):
            raise ConfigError(
                f"model.overrides.{where}: {', '.join(odd)} is no kind of layers of this model; "
                f"they are {', '.join(sorted(kinds))}, each with parameters of its own"
            )
        changed = {
            name: _rotary(kinds[name], _table(part, f"{where}.{name}"), first, (*at, name))
            for name, part in given.items()
        }
        return {**now, **changed}
    if "type" in given:  # its older name
        given = {"rope_type": given["type"], **{k: v for k, v in given.items() if k != "type"}}
    known = {*now, *_OF_ONE_TYPE, *_IN_ROPE, "rope_type"}
    for key in given:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=3)
            hint = f" (did you mean {', '.join(near)}?)" if near else ""
            raise ConfigError(f"model.overrides.{where}.{key} is no parameter of RoPE{hint}")
    kept = dict(now)
    if given.get("rope_type", now.get("rope_type")) != now.get("rope_type"):
        kept = {key: value for key, value in now.items() if key not in _OF_ONE_TYPE}
        if given["rope_type"] in _NEED_FIRST_LENGTH and first is not None:
            # What the weights were trained with; transformers would take the new limit.
            kept[_FIRST_LENGTH] = first
    return {**kept, **given}


def _check_effect(made: Any, overrides: Mapping[str, Any], at: tuple[str, ...]) -> None:
    """Refuse what the code of the config has dropped, and a window that no layer has."""
    for given, value in overrides.items():
        name, now = ".".join((*at, given)), getattr(made, given, None)
        if given in (*_ROPE, *_IN_ROPE):
            continue
        if hasattr(now, "to_dict"):
            _check_effect(now, value, (*at, given))
        elif not isinstance(value, dict) and now != value:
            raise ConfigError(
                f"model.overrides.{name} is {value!r}, but the config that transformers makes has "
                f"{now!r}; other keys decide about it (of a window: use_sliding_window)"
            )
    kinds = getattr(made, "layer_types", None)
    if overrides.get("sliding_window") and kinds and "sliding_attention" not in kinds:
        raise ConfigError(
            f"model.overrides.{'.'.join((*at, 'sliding_window'))} would change nothing: no layer "
            f"has a window; set layer_types, a list of {len(kinds)} names, sliding_attention or "
            "full_attention"
        )
