"""A program that leaves all it can: segment, semaphore, socket and files, and waits to be killed.

    leaver.py [deaf] [no-socket] [bare]     prints one line of JSON: pid, folder, segments

Nothing of it is known to the tracker of multiprocessing, as after an attach in another process.
With `deaf` it ignores SIGTERM, with `no-socket` it has none, with `bare` no segments either.
"""

import json
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import time
from multiprocessing import resource_tracker, shared_memory
from pathlib import Path

if "deaf" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
segments: list[str] = []
if "bare" not in sys.argv:
    segment = shared_memory.SharedMemory(create=True, size=4096)
    resource_tracker.unregister(f"/{segment.name}", "shared_memory")
    semaphore = multiprocessing.get_context("spawn").Semaphore()
    name: str = vars(semaphore)["_semlock"].name
    resource_tracker.unregister(name, "semaphore")
    segments = [segment.name, f"sem.{name.lstrip('/')}"]
folder = Path(tempfile.mkdtemp())
if not {"bare", "no-socket"} & {*sys.argv}:
    link = socket.socket(socket.AF_UNIX)
    link.bind(str(folder / "socket"))
    link.listen()
(folder / "file").write_text("left")
told = {"pid": os.getpid(), "folder": tempfile.gettempdir(), "segments": segments}
print(json.dumps(told), flush=True)
time.sleep(600)
