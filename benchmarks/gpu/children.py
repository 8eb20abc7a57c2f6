"""One part in a process of its own: its limit, its output, and whatever ended it.

Only the standard library: the wheels that a part needs are on the path of the child alone.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

CHECKPOINT = "checkpoint"
"""Folder, beside the answers, of the checkpoint that is made of a `.gguf` file."""
TAIL = 4000
"""Characters of the output of a part that did not pass that are kept."""


def run_child(
    part: str, options: argparse.Namespace, *, limit_s: float, folder: Path, path: Path | None
) -> dict[str, Any]:
    """Run a part and return its record: state, seconds, reason, readings.

    The state is `passed`, `failed` (a reading is out of its bound), `skipped`, `crashed` or
    `timed out`; the readings before that are kept.

    Args:
        part: name of the part.
        options: device, size and model are passed on.
        limit_s: the process and all that it started are killed after this.
        folder: for its result, its output, and what it leaves behind when it is killed.
        path: of installed wheels; None for none.
    """
    answer, log = folder / f"{part}.json", folder / f"{part}.log"
    command = [sys.executable, str(Path(__file__).with_name("run.py")), "--child", part]
    command += ["--device", options.device, "--out", str(answer)]
    command += ["--small"] if options.small else []
    command += ["--model", str(options.model)] if options.model else []
    began = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            env=environment(path, folder), start_new_session=True,
        )  # fmt: skip
        try:
            status: int | None = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            # What it started must not compute beside the next part.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    seconds = time.monotonic() - began
    found = read_answer(answer) or {"state": "running", "readings": []}
    if found["state"] == "running":
        why = f"longer than {limit_s:.0f} s" if status is None else f"exit status {status}"
        found |= {"state": "timed out" if status is None else "crashed", "reason": why}
    if found["state"] not in ("passed", "skipped"):
        tail = log.read_text(errors="replace")[-TAIL:]
        found["reason"] = f"{found['reason']}\nits output ends with:\n{tail}".strip()
    return {**found, "seconds": round(seconds, 1)}


def end_with_parent() -> None:
    """End this process, and all that it starts, soon after the one that started it has ended.

    A runner that is killed cannot end a part, which would compute beside those of the next run.
    """
    parent = os.getppid()
    if os.getpgrp() != os.getpid():
        return  # started by hand, in a group with others

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os.killpg(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def read_answer(path: Path) -> dict[str, Any] | None:
    """What the child wrote; None where it did not come so far."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def environment(path: Path | None, scratch: Path) -> dict[str, str]:
    """Environment of a child: wheels first, then this checkout, no hub, files in `scratch`."""
    root = Path(__file__).resolve().parents[2]
    places = [path, root, root / "envs", root / "tools", root / "sandboxes"]
    inherited = os.environ.get("PYTHONPATH", "")
    words = [str(place) for place in places if place is not None] + [inherited] * bool(inherited)
    # Where torch keeps what it has compiled: outside of `scratch`, for all parts and later runs.
    compiled = Path(tempfile.gettempdir()) / f"torchinductor_{os.getuid()}"
    return {
        "TORCHINDUCTOR_CACHE_DIR": str(compiled),
        **os.environ,
        "TMPDIR": str(scratch),
        "PYTHONPATH": os.pathsep.join(words),
        "PYTHONUNBUFFERED": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
