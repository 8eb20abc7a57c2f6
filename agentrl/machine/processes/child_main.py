"""The main program of a `ChildProcess`: loads a function and gives it the channel.

    python -P child_main.py FILE_DESCRIPTOR

A frame is the sizes of two parts, a head (JSON) and a body (bytes), then the parts. The first frame
has the import path and the function, `module:function` or `file.py:function`. Run by path and made
of the standard library alone, so that a child starts as fast as what it imports.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import queue
import resource
import socket
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

SIZES = struct.Struct(">IQ")
"""Bytes of the head and of the body."""
OUT_OF_MEMORY = 77
"""Exit status of a child that needed more memory than there is."""
_ROUNDING_S = 1
"""The kernel counts processor time in whole seconds."""


class Frame(NamedTuple):
    """One message of a channel."""

    head: dict[str, Any]
    body: bytes = b""


def encode(head: Mapping[str, Any], body: bytes | memoryview = b"") -> bytes:
    """The bytes of a frame without its body, which follows them."""
    text = json.dumps(head).encode()
    return SIZES.pack(len(text), memoryview(body).nbytes) + text


class ChildChannel:
    """The child's end of the channel to its parent; `send` may be called by any thread."""

    def __init__(self, link: socket.socket) -> None:
        self._frames = link.makefile("rb")
        self._link = link
        self._sending = threading.Lock()
        self._read_ahead: queue.SimpleQueue[Frame] | None = None

    def receive(self) -> Frame:
        """The next frame of the parent.

        Raises:
            EOFError: the parent has closed the channel, or has ended.
        """
        if self._read_ahead is not None:
            return self._read_ahead.get()
        return self._read()

    def send(self, head: Mapping[str, Any], body: bytes | memoryview = b"") -> None:
        """Send a frame to the parent, unless it has gone."""
        with self._sending, contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._link.sendall(encode(head, body))
            self._link.sendall(body)

    def end_with_parent(self) -> None:
        """From now on this process ends as soon as the parent closes the channel or ends.

        A thread reads ahead, so code that keeps Python's lock delays the end: give it a limit of
        processor time, too.
        """
        frames = self._read_ahead = queue.SimpleQueue()

        def read() -> None:
            try:
                while True:
                    frames.put(self._read())
            except EOFError:
                os._exit(0)
            except MemoryError:
                os._exit(OUT_OF_MEMORY)
            except BaseException:  # nothing would read on, and the others would wait for ever
                traceback.print_exc()
                os._exit(1)

        threading.Thread(target=read, name="read-ahead", daemon=True).start()

    def _read(self) -> Frame:
        head, body = SIZES.unpack(self._exactly(SIZES.size))
        return Frame(json.loads(self._exactly(head)), self._exactly(body))

    def _exactly(self, size: int) -> bytes:
        try:
            data = self._frames.read(size)
        except ConnectionResetError:
            data = b""
        if len(data) < size:
            raise EOFError
        return data


def limit(
    *,
    address_bytes: int | None = None,
    data_bytes: int | None = None,
    file_bytes: int | None = None,
    processes: int | None = None,
) -> None:
    """Bound what this process may take from now on, and forbid it core files.

    Args:
        address_bytes: of address space, libraries and reserves included.
        data_bytes: of address space that is written to.
        file_bytes: that a file may grow to.
        processes: of this user; threads count. The kernel does not apply it to root.
    """
    for kind, most in (
        (resource.RLIMIT_AS, address_bytes),
        (resource.RLIMIT_DATA, data_bytes),
        (resource.RLIMIT_FSIZE, file_bytes),
        (resource.RLIMIT_NPROC, processes),
        (resource.RLIMIT_CORE, 0),
    ):
        if most is not None:
            hard = resource.getrlimit(kind)[1]
            allowed = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.setrlimit(kind, (allowed, allowed))


def limit_cpu(seconds: int) -> None:
    """Set how many more seconds of processor time this process has before SIGXCPU ends it."""
    soft = int(time.process_time()) + _ROUNDING_S + seconds
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]  # only root may raise it
    allowed = soft if hard == resource.RLIM_INFINITY else min(soft, hard)
    resource.setrlimit(resource.RLIMIT_CPU, (allowed, hard))


def serve_host(channel: ChildChannel) -> None:
    """Make an object, the host, then call its methods, one request at a time.

    The first request has `host`, a class as `load` takes it, its `arguments`, `address_bytes` and
    `cpu_s`, the processor seconds of one operation; every other one `operation` and `arguments`. A
    reply has `answer`, or `error` if something was raised. `OPERATIONS` of the class names the
    methods that may be called.
    """
    channel.end_with_parent()
    made = channel.receive().head
    host: Any = None

    def make() -> None:
        nonlocal host
        host = load(made["host"])(**made["arguments"])
        limit(address_bytes=made["address_bytes"])

    channel.send(_reply(make))
    while True:
        asked = channel.receive().head
        limit_cpu(made["cpu_s"])
        channel.send(_reply(_operation, host, asked["operation"], asked["arguments"]))


def _operation(host: Any, operation: str, arguments: dict[str, Any]) -> Any:
    if operation not in host.OPERATIONS:
        raise ValueError(f"unknown operation {operation!r}")
    return getattr(host, operation)(**arguments)


def _reply(function: Callable[..., Any], *arguments: Any) -> dict[str, Any]:
    try:
        reply = {"answer": function(*arguments)}
        json.dumps(reply)
    except MemoryError:
        os._exit(OUT_OF_MEMORY)
    except Exception as error:  # the parent raises it as its own
        reply = {"error": f"{type(error).__name__}: {error}"}
    return reply


def load(target: str) -> Any:
    """Import `module:name` or `file.py:name`."""
    source, _, name = target.rpartition(":")
    if not source.endswith(".py"):
        return getattr(importlib.import_module(source), name)
    spec = importlib.util.spec_from_file_location(f"{Path(source).stem}_of_child", source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return getattr(module, name)


def main() -> None:
    """Run the function; what it raises is printed, and the exit status is 1."""
    status = 1
    try:
        link = socket.socket(fileno=int(sys.argv[1]))
        # What the function starts must not hold the channel open.
        link.set_inheritable(False)
        channel = ChildChannel(link)
        start = channel.receive().head
        sys.path[:] = start["path"]
        target = serve_host if start["target"] == "host" else load(start["target"])
        target(channel)
        status = 0
    except SystemExit as error:
        if isinstance(error.code, str):
            sys.stderr.write(f"{error.code}\n")
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:  # the boundary of the process: nothing else would show it
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        # Nothing is left to be saved, taking large libraries apart takes a while, and threads that
        # the function has left would be waited for.
        os._exit(status)


if __name__ == "__main__":
    main()
