"""One rule for where the tasks of an environment are found, for every command that needs them.

The first that is there: `tasks`, `make_tasks` or `TASKS` on the class, then in its module; a file
`tasks.jsonl` (or `.json`, `.csv`, `.parquet`) in the folder of the module; a module `tasks` there;
and the same again for each package around it.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from agentrl.errors import ConfigError
from agentrl.plugins.imports import import_string_of, load_module, resolve

NAMES = ("tasks", "make_tasks", "TASKS")
"""Names of a function that returns tasks, or of the tasks themselves, in order of preference."""
FILES = tuple(f"tasks{suffix}" for suffix in (".jsonl", ".json", ".csv", ".parquet"))
"""Names of a file of tasks, in order of preference."""
WHERE = (
    f"{', '.join(NAMES)} on the class, in its module or a package around it, or {FILES[0]} beside "
    "it"
)
"""Places that are looked at, for messages."""


def tasks_beside(target: str, *, base: Path | None = None) -> str | None:
    """The source of the tasks of an environment, as `dataset.source` has it; None without any.

    Args:
        target: import string of a class or function that makes environments.
        base: folder that relative file paths start from; default the working directory.

    Raises:
        ConfigError: the target, or a module beside it, cannot be imported.
    """
    module_name = target.rpartition(":")[0]
    found = resolve(target, base=base)
    if inspect.isclass(found) and (name := _name_in(found)):
        return f"{target}.{name}"
    named = [(module_name, load_module(module_name, base=base))]
    if inspect.isclass(found) and found.__module__ != named[0][1].__name__:
        home = import_string_of(found).partition(":")[0]
        named.append((home, sys.modules[found.__module__]))
    for name, module in named:
        for part, part_module in ((name, module), *_packages(module)):
            if source := _in_module(part, part_module):
                return source
    return None


def _in_module(name: str, module: ModuleType) -> str | None:
    if attribute := _name_in(module):
        return f"{name}:{attribute}"
    if (module_file := getattr(module, "__file__", None)) is None:
        return None  # a package without a file of its own has no folder of its own either
    folder = Path(module_file).parent
    for file in FILES:
        if (folder / file).is_file():
            return str(folder / file)
    beside = folder / "tasks.py"
    if not beside.is_file() or str(beside) == module_file:
        return None
    package = module.__name__ if hasattr(module, "__path__") else module.__package__
    own = f"{package}.tasks" if package and package in sys.modules else str(beside)
    attribute = _name_in(load_module(own))
    return f"{own}:{attribute}" if attribute else None


def _packages(module: ModuleType) -> Iterator[tuple[str, ModuleType]]:
    """Packages around a module, the innermost first; none for a file."""
    parts = module.__name__.split(".")[:-1]
    for end in range(len(parts), 0, -1):
        name = ".".join(parts[:end])
        if name in sys.modules:
            yield name, sys.modules[name]


def _name_in(owner: Any) -> str | None:
    names = (name for name in NAMES if _gives_tasks(getattr(owner, name, None)))
    return next(names, None)


def _gives_tasks(value: Any) -> bool:
    """True for a sequence of rows, and a function that can be called with `split` alone."""
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return len(cast("Sequence[Any]", value)) > 0
    if not callable(value) or inspect.isclass(value):
        return False
    try:
        parameters = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):  # a built-in that does not say
        return False
    plain = (p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD))
    return not {p.name for p in plain if p.default is p.empty} - {"split"}


def require_tasks(target: str, *, base: Path | None = None) -> str:
    """As `tasks_beside`, for what cannot do without.

    Raises:
        ConfigError: there are none; says where was looked.
    """
    found = tasks_beside(target, base=base)
    if found is None:
        raise ConfigError(
            f"{target} has no tasks beside it: looked for {WHERE}; write one, or name the tasks "
            "(dataset.source of a run file, --dataset on the command line)"
        )
    return found
