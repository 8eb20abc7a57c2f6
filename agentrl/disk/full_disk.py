"""The message for a disk that is full."""

from __future__ import annotations

import shutil
from pathlib import Path


def disk_full(run: Path, error: BaseException) -> str:
    """The message for a disk that does not take something of a run."""
    free = shutil.disk_usage(run).free / 2**30
    return (
        f"{run} could not be written ({error}); {free:.1f} GiB are free there; "
        "earlier checkpoints and trajectories are intact"
    )
