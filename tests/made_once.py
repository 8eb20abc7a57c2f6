"""Folders that are made once in a call of pytest, and used by all of its workers.

A fixture of the session is made again in every worker that needs it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], Path]) -> Path:
    """What `make` has left in its folder; other workers wait until it is there.

    Args:
        factory: gives the folder of this call of pytest.
        name: of what is made, the same in every worker.
        make: gets an empty folder, and returns a path below it.
    """
    base = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent
    folder, done = base / f"once-{name}", base / f"once-{name}.done"
    with (base / f"once-{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            done.write_text(str(make(folder)))
        return Path(done.read_text())
