"""Sources of rows: files, a Hugging Face dataset, or a function the user wrote."""

from __future__ import annotations

import contextlib
import importlib
import inspect
from collections.abc import Generator, Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from agentrl.config import resolve
from agentrl.config.schema import DatasetSection
from agentrl.data.tasks.files import (
    SUFFIXES,
    SourceRow,
    directory_files,
    file_kind,
    read_file,
    read_files,
)
from agentrl.data.tasks.merged_nulls import MergedNulls
from agentrl.errors import ConfigError, DataError, choices
from agentrl.models.hub import require_on_hub
from agentrl.plugins.imports import require_callable
from agentrl.plugins.user_code import text_of, user_code


def open_source(section: DatasetSection, *, base: Path | None = None) -> Generator[SourceRow]:
    """The rows a dataset section names, lazily.

    Args:
        section: `source`, `split` and `args`; columns and limit are for the caller.
        base: folder that relative paths start from; default the working directory.

    Raises:
        DataError: the source is not there or cannot be read.
        ConfigError: an import string that leads nowhere, or arguments that do not fit it.
    """
    source = section.source
    if source.startswith("hf:"):
        return _hugging_face(source.removeprefix("hf:"), section.split, base=base)
    path = (base or Path.cwd()) / Path(source).expanduser()
    if path.is_dir():
        if _saved_by_datasets(path):
            return _hugging_face(source, section.split, base=base)
        return read_files(directory_files(path, section.split))
    if path.is_file():
        return read_file(path)
    if file_kind(path) is None and ":" in source:
        return _function(section, base=base)
    if path.exists():
        raise DataError(f"dataset source {source!r}: {path} is no plain file and no folder")
    raise DataError(_not_there(source, path))


def _not_there(source: str, path: Path) -> str:
    siblings = (
        [p.name for p in path.parent.iterdir() if p.is_dir() or file_kind(p)]
        if path.parent.is_dir()
        else []
    )
    near = f" In {path.parent}: {choices(path.name, siblings)}." if siblings else ""
    return (
        f"dataset source {source!r}: {path} does not exist.{near} A source is a file "
        f"({', '.join(SUFFIXES)}), a folder of them, 'hf:NAME' or the import string "
        "'package.module:function'"
    )


def _function(section: DatasetSection, *, base: Path | None) -> Generator[SourceRow]:
    target = section.source
    function = resolve(target, base=base)
    if not callable(function) and not section.args and section.split == _ONLY_SPLIT:
        return _called(target, lambda: function, {}, base=base)
    require_callable(target, function)
    arguments = {**section.args, "split": section.split}
    signature = inspect.signature(function)
    if section.split == _ONLY_SPLIT and "split" not in signature.parameters:
        # One without splits; any other split of it would be the tasks that are trained on.
        with contextlib.suppress(TypeError):
            signature.bind(**section.args)
            del arguments["split"]
    if "base_dir" in signature.parameters:
        # For functions that read files: where relative paths of this config start.
        arguments.setdefault("base_dir", base or Path.cwd())
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise ConfigError(
            f"dataset source {target!r}: {error}; it is called with split and dataset.args, here "
            f"{sorted(arguments)}"
        ) from None
    return _called(target, function, arguments, base=base)


_ONLY_SPLIT = "train"
_END = object()


def _called(
    target: str, function: Any, arguments: Mapping[str, Any], *, base: Path | None
) -> Generator[SourceRow]:
    where = f"dataset source {target!r}"
    number = 0
    try:
        with user_code():
            rows = function(**arguments)
        if not isinstance(rows, Iterable) or isinstance(rows, (str, bytes, Mapping)):
            raise DataError(
                f"{where}: returned {type(rows).__name__}, expected an iterable of Task or of "
                "mappings"
            )
        left = iter(rows)
        while True:
            with user_code():
                values = next(left, _END)
            if values is _END:
                return
            number += 1
            yield SourceRow(where=f"{where}, row {number}", values=values, base=base)
    except DataError:
        raise
    except Exception as error:  # the user's function may raise anything; this is its boundary
        raise DataError(
            f"{where}: raised {type(error).__name__} after {number} rows: {text_of(error)}"
        ) from error


def _saved_by_datasets(path: Path) -> bool:
    return (path / "dataset_dict.json").is_file() or (path / "state.json").is_file()


def _hugging_face(name: str, split: str, *, base: Path | None) -> Generator[SourceRow]:
    try:
        datasets = importlib.import_module("datasets")
    except ModuleNotFoundError as error:
        raise DataError(
            f"dataset source 'hf:{name}' needs the package 'datasets' ({error}); install it with "
            "pip install datasets"
        ) from error
    bars = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        dataset = _load(datasets, name, split, base=base)
    finally:
        if bars:
            datasets.enable_progress_bars()
    return _dataset_rows(f"hf:{name} [{split}]", dataset)


def _load(datasets: Any, name: str, split: str, *, base: Path | None) -> Any:
    folder = (base or Path.cwd()) / Path(name).expanduser()
    try:
        if folder.is_dir() and _saved_by_datasets(folder):
            return _split(datasets.load_from_disk(str(folder)), name, split)
        if folder.is_dir():
            return datasets.load_dataset(str(folder), split=split)
        repository, _, config = name.partition(":")
        require_on_hub(repository, key="the dataset", kind="dataset", base=base)
        return datasets.load_dataset(repository, config or None, split=split)
    except DataError:
        raise
    except ConfigError as error:
        raise DataError(f"dataset source 'hf:{name}', split {split!r}: {error}") from None
    # The library and the network stack below it raise anything from ValueError to bare Exception;
    # to the user all of them mean that the dataset could not be had.
    except Exception as error:
        raise DataError(
            f"dataset source 'hf:{name}', split {split!r}: {type(error).__name__}: {error}. Check "
            "the name ('hf:owner/name' or 'hf:owner/name:config') and the network; a copy made "
            "with save_to_disk can be given as 'hf:FOLDER'"
        ) from error


def _split(dataset: Any, name: str, split: str) -> Any:
    if not isinstance(dataset, Mapping):
        return dataset
    if split not in dataset:
        raise DataError(f"dataset source 'hf:{name}': split {choices(split, dataset)}")
    return dataset[split]


def _dataset_rows(where: str, dataset: Iterable[Any]) -> Generator[SourceRow]:
    features = getattr(dataset, "features", None)
    nulls = MergedNulls(where, pa.schema([]) if features is None else features.arrow_schema)
    for number, values in enumerate(dataset, start=1):
        yield SourceRow(where=f"{where}, row {number}", values=nulls.clean(values))
    nulls.log()
