"""Paths within a run directory, which somebody else may have made: no link leads out of it."""

from __future__ import annotations

import os
from pathlib import Path

from agentrl.errors import UntrustedFile

TRUST = "AGENTRL_TRUST_RUNS"
"""Environment variable; `1` reads and writes runs without the bounds that a stranger's run needs:
links may leave a run, and its files may be of any size."""


def trusted() -> bool:
    """True where the user vouches for the runs that this process reads."""
    return os.environ.get(TRUST, "") not in ("", "0")


def within(folder: Path, path: Path) -> Path:
    """The path itself, once no link on its way leads out of a folder.

    Args:
        folder: of a run, or one within it that was checked; may be a link itself.
        path: below it; need not exist.

    Raises:
        UntrustedFile: it leads elsewhere.
    """
    if trusted():
        return path
    home, target = os.path.realpath(folder), os.path.realpath(path)
    if target == home or target.startswith(home.rstrip(os.sep) + os.sep):
        return path
    raise UntrustedFile(
        f"{path} is a link that leads out of {folder}, to {target}; no file outside of a run is "
        f"read or written for it. Put the file itself there, or set {TRUST}=1 if you made that link"
    )


def refuse_links(folder: Path) -> None:
    """Refuse a folder of a run, before anything is written there, if any link leads out of it.

    Raises:
        UntrustedFile: names the first link.
    """
    waiting = [folder]
    while waiting:
        try:
            entries = os.scandir(waiting.pop())
        except OSError:  # gone meanwhile, or not readable, so nothing is written there either
            continue
        with entries:
            for entry in entries:  # knows without asking the disk once more, in large runs
                if entry.is_symlink():
                    within(folder, Path(entry.path))
                elif entry.is_dir(follow_symlinks=False):
                    waiting.append(Path(entry.path))
