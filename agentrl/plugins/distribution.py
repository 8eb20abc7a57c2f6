"""The name this program is published under, and the command that installs a part of it.

The package is `agentrl` and so is the command. On PyPI that name belongs to another program, which
`pip install agentrl` would bring, so the distribution has a name of its own.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path

DISTRIBUTION = "agentrl-platform"
"""The name in `pyproject.toml`; a test holds that they are equal."""
_OTHER = "agentrl"
"""Name of the other program on PyPI."""
_EXTRAS = {
    "PIL": "images",
    "aiodocker": "docker",
    "anthropic": "gateway",
    "gguf": "quickstart",
    "gymnasium": "envs",
    "math_verify": "math",
    "matplotlib": "screens",
    "mcp": "mcp",
    "openai": "gateway",
    "reasoning_gym": "envs",
    "safetensors": "train",
    "torch": "train",
    "transformers": "train",
}
"""By module that a user may lack, the extra that brings it."""
_OUR_COMMAND = "agentrl.cli:main"
_ROOT = Path(__file__).parents[2]


def install_command(*extras: str, root: Path | None = None) -> str:
    """Return the command that adds extras to the environment of this interpreter.

    Args:
        extras: as in `pyproject.toml`.
        root: folder that the package lies in. With a `pyproject.toml` it is a clone, which is
            installed from there and in place; else the distribution is taken from the index.

    Example:
        >>> install_command("inspect", root=Path("/usr/lib")).partition(" -m ")[2]
        "pip install 'agentrl-platform[inspect]'"
    """
    root = root or _ROOT
    wanted = f"[{','.join(extras)}]"
    pip = f"{shlex.quote(_near(sys.executable))} -m pip install"
    if (root / "pyproject.toml").is_file():
        return f"{pip} -e {shlex.quote(_near(str(root)) + wanted)}"
    return f"{pip} {shlex.quote(DISTRIBUTION + wanted)}"


def how_to_install(module: str | None) -> str:
    """End an error about a missing module with what installs it; empty where we cannot know.

    Args:
        module: dotted name, as in `ModuleNotFoundError.name`.
    """
    extra = _EXTRAS.get((module or "").partition(".")[0])
    return "" if extra is None else f"; run {install_command(extra)}"


def other_program(search: Iterable[str] | None = None) -> str | None:
    """Describe the other program called agentrl if it is installed; None if it is not.

    Where file names ignore case its folder `AgentRL` is the same as ours, so that each overwrites
    files of the other.

    Args:
        search: folders with installed packages; default `sys.path`.
    """
    for folder in sys.path if search is None else search:
        # Every command asks, and reading names takes a tenth of what `importlib.metadata` does.
        try:
            names = os.listdir(folder)  # noqa: PTH208 # a Path for each name takes ten times longer
        except OSError:
            continue  # a path that is no folder: an archive, or one that is gone
        for name in names:
            if name.lower().startswith(f"{_OTHER}-") and name.endswith(".dist-info"):
                found = Path(folder, name)
                points = found / "entry_points.txt"
                # An editable install from when our distribution was called like the package.
                if not points.is_file() or _OUR_COMMAND not in points.read_text(encoding="utf-8"):
                    return _described(found)
    return None


def _described(found: Path) -> str:
    version = found.name.removesuffix(".dist-info").partition("-")[2]
    return (
        f"the distribution {_OTHER!r} {version} is installed in {found.parent}; on PyPI that is "
        f"another program, which may overwrite files of this one: run "
        f"{shlex.quote(_near(sys.executable))} -m pip uninstall {_OTHER}, then install "
        f"{DISTRIBUTION} again"
    )


def _near(path: str) -> str:
    """The path from the working directory, where it lies below it."""
    try:
        here = str(Path.cwd())
    except FileNotFoundError:  # somebody has deleted the working directory
        return path
    if path == here:
        return "."
    return path.removeprefix(here.rstrip(os.sep) + os.sep)
