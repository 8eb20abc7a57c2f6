"""Import strings: `package.module:Name` or `path/to/file.py:Name`, resolved in one place."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from agentrl.errors import ConfigError, choices
from agentrl.plugins.distribution import how_to_install
from agentrl.plugins.peer_imports import others_importable
from agentrl.plugins.thread_alarm import answer_in_threads
from agentrl.plugins.user_code import described, user_code

_FILE_MODULE = "agentrl_file_"
"""What the module name of a file begins with."""


def resolve(target: str, *, base: Path | None = None) -> Any:
    """The object an import string names.

    Args:
        target: `package.module:Name` or `path/to/file.py:Name`; `Name` may be dotted.
        base: folder that relative file paths start from; default the working directory.

    Raises:
        ConfigError: the string, the module or the name is wrong; says which, and what is there.

    Example:
        >>> resolve("pathlib:Path").__name__
        'Path'
    """
    module_name, colon, attribute = target.rpartition(":")
    if not colon or not module_name or not attribute:
        raise ConfigError(
            f"import string {target!r}: expected 'package.module:Name' or 'path/to/file.py:Name'"
        )
    value: Any = load_module(module_name, base=base)
    for part in attribute.split("."):
        if not hasattr(value, part):
            public = [name for name in vars(value) if not name.startswith("_")]
            raise ConfigError(
                f"import string {target!r}: {module_name!r} was imported but has no {part!r}: "
                f"{choices(part, public)}"
            )
        value = getattr(value, part)
    return value


def load_module(name: str, *, base: Path | None = None) -> ModuleType:
    """Import a dotted module, or a file by its path.

    Raises:
        ConfigError: it is not there, or it raised while being imported.
    """
    if name.endswith(".py") or "/" in name:
        return _load_file((base or Path.cwd()) / Path(name).expanduser())
    answer_in_threads()
    try:
        with others_importable(), user_code():
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or name
        if name == missing or name.startswith(missing + "."):
            raise ConfigError(
                f"module {name!r} was not found ({missing!r} is missing); install the package, or "
                "name a file as 'path/to/file.py:Name'"
            ) from error
        raise ConfigError(
            f"module {name!r} was found but needs {missing!r}, which is not installed"
            f"{how_to_install(missing)}"
        ) from error
    except Exception as error:  # any module body may raise anything; this is the boundary
        raise ConfigError(
            f"module {name!r} raised while being imported: {described(error)}"
        ) from error


def import_string_of(value: Any) -> str:
    """An import string that names a class or function from any folder and in any process."""
    module = value.__module__
    if module.startswith(_FILE_MODULE):
        module = str(sys.modules[module].__file__)
    return f"{module}:{value.__qualname__}"


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        siblings = sorted(p.name for p in path.parent.glob("*.py")) if path.parent.is_dir() else []
        where = f"in {path.parent}: {choices(path.name, siblings)}" if siblings else ""
        raise ConfigError(f"file {path} does not exist {where}".rstrip())
    path = path.resolve()
    key = f"{_FILE_MODULE}{path.stem}_{abs(hash(str(path))):x}"
    if key in sys.modules:
        return sys.modules[key]
    spec = importlib.util.spec_from_file_location(key, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"file {path} is not a Python source file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[key] = module
    # A user's file may import its neighbours, as it could when run as a script.
    parent = str(path.parent)
    sys.path.insert(0, parent)
    answer_in_threads()
    try:
        with others_importable(), user_code():
            spec.loader.exec_module(module)
    except ModuleNotFoundError as error:
        del sys.modules[key]
        raise ConfigError(
            f"file {path} needs {error.name!r}, which is not installed{how_to_install(error.name)}"
        ) from error
    except Exception as error:  # any file may raise anything; this is the boundary
        del sys.modules[key]
        raise ConfigError(f"file {path} raised while being imported: {described(error)}") from error
    finally:
        sys.path.remove(parent)
    return module


def resolve_callable(target: str, *, base: Path | None = None) -> Callable[..., Any]:
    """As `resolve`, for something that must be callable.

    Raises:
        ConfigError: it is not.
    """
    return require_callable(target, resolve(target, base=base))


def require_callable(target: str, value: Any) -> Callable[..., Any]:
    """Refuse what an import string names if it cannot be called.

    Raises:
        ConfigError: it cannot.
    """
    if not callable(value):
        raise ConfigError(f"import string {target!r} names a {type(value).__name__}, not callable")
    return value
