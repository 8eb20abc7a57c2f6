"""A function in a process of its own, which can be killed: the parent's end.

    ChildProcess  --frames over a socket pair-->  child_main: function(channel)

The child has the import path of this process, none of its threads and none of its open files. The
channel closes with its parent, however that ended, and the child ends when it next reads from it;
`end_with_parent` reads all the time. What it may take is limited from inside, by `child_main.limit`
and `limit_cpu`; how long it may take, from here.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from agentrl.machine.processes import child_main, tree
from agentrl.machine.processes.child_main import SIZES, Frame, encode

MOST_BYTES = 2**26
"""Default limit of a frame, since what a child sends is read into memory."""
_TICK_S = 0.1
_READ_BYTES = 2**20
_END_S = 5.0


class ChildEnded(EOFError):
    """The child ended before its answer came; `status` is as of `subprocess.Popen`."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status

    def __str__(self) -> str:
        return f"the process ended with status {self.status}"


class ChildProcess:
    """One child. One thread at a time sends and receives; any thread may kill it.

    On an event loop one task may send while another receives (`send_async`, `receive_async`).
    """

    def __init__(
        self,
        target: str,
        *,
        output: int | IO[bytes] = subprocess.DEVNULL,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        most_bytes: int = MOST_BYTES,
        grace_s: float | None = None,
    ) -> None:
        """Start the process; it imports its function in the background.

        Args:
            target: `module:function` or `file.py:function`, called with a `ChildChannel`.
            output: takes what it prints, to stdout and to stderr.
            env: instead of the environment of this process.
            cwd: directory it is started in.
            most_bytes: of one frame that it sends.
            grace_s: runs it below `tree`, which ends all processes that it leaves; it gets SIGTERM
                when it is to end, and SIGKILL so many seconds later. None kills it alone.
        """
        self._most_bytes = most_bytes
        self._unread = bytearray()
        self._ending = threading.Lock()
        self._closed = False
        self._awaited = 0
        """Tasks that wait for the link on an event loop."""
        self._link, theirs = _socket_pair()
        command = [sys.executable, "-P", str(Path(child_main.__file__)), str(theirs.fileno())]
        self._grace_s = grace_s
        if grace_s is not None:
            command = [*tree.command(grace_s), *command]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL if grace_s is None else subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=env,
                cwd=cwd,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C is for this process
            )
        except BaseException:
            self._link.close()
            raise
        finally:
            theirs.close()
        with contextlib.suppress(ChildEnded):  # `receive` raises it
            self.send({"path": _import_path(), "target": target})

    @property
    def pid(self) -> int:
        """Process id: of `tree`, if the child runs below it."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """True until it has ended."""
        return self._process.poll() is None

    @property
    def output(self) -> IO[bytes] | None:
        """Read end of the pipe that takes its output; None if that goes elsewhere."""
        return self._process.stdout

    def send(
        self,
        head: Mapping[str, Any],
        body: bytes | memoryview = b"",
        *,
        timeout_s: float | None = None,
    ) -> None:
        """Send one frame to the child.

        Raises:
            ChildEnded: the child cannot take it.
            TimeoutError: it does not read in time; only `close` may be called now.
        """
        try:
            self._link.settimeout(timeout_s)
            self._link.sendall(encode(head, body))
            self._link.sendall(body)
        except TimeoutError:
            raise
        except OSError as error:
            raise self._ended() from error

    def receive(
        self, timeout_s: float | None = None, cancelled: threading.Event | None = None
    ) -> Frame:
        """Wait for the next frame of the child.

        Args:
            timeout_s: None waits until the child ends.
            cancelled: looked at several times a second.

        Raises:
            ChildEnded: there is none, and the child has ended.
            TimeoutError: it did not come in time.
            InterruptedError: `cancelled` was set.
        """
        deadline = time.monotonic() + timeout_s if timeout_s is not None else None
        while (frame := self._parsed()) is None:
            if cancelled is not None and cancelled.is_set():
                raise InterruptedError
            left = _TICK_S if deadline is None else min(_TICK_S, deadline - time.monotonic())
            if left <= 0:
                raise TimeoutError
            alive = self.alive
            try:
                self._link.settimeout(left)
                data = self._link.recv(_READ_BYTES)
            except TimeoutError:
                if alive:
                    continue
                data = b""  # what it forked holds the channel open
            except OSError:  # reset by its end, or closed by `close`
                data = b""
            if not data:
                raise self._ended()
            self._unread += data
        return frame

    def ask(self, head: Mapping[str, Any], body: bytes = b"", *, timeout_s: float) -> Frame:
        """Send a frame and receive one; after any error the child is gone.

        Raises:
            ChildEnded, TimeoutError: as `receive`.
        """
        try:
            self.send(head, body, timeout_s=timeout_s)
            return self.receive(timeout_s)
        except BaseException:
            self.close()
            raise

    async def ask_async(self, head: Mapping[str, Any], *, timeout_s: float) -> Frame:
        """`ask` for code on an event loop. After any error, nothing but `close` may be called.

        Raises:
            ChildEnded, TimeoutError: as `receive`.
        """
        async with asyncio.timeout(timeout_s):
            await self.send_async(head)
            return await self.receive_async()

    async def send_async(self, head: Mapping[str, Any], body: bytes | memoryview = b"") -> None:
        """`send` for code on an event loop; one task at a time, beside one that receives.

        Raises:
            ChildEnded: the child cannot take it.
        """
        loop = asyncio.get_running_loop()
        try:
            with self._awaiting():
                await loop.sock_sendall(self._link, encode(head, body))
                await loop.sock_sendall(self._link, body)
        except ConnectionError as error:
            raise await asyncio.to_thread(self._ended) from error

    async def receive_async(self) -> Frame:
        """`receive` for code on an event loop; one task at a time, beside one that sends.

        Raises:
            ChildEnded: there is no frame, and the child has ended.
        """
        loop = asyncio.get_running_loop()
        try:
            with self._awaiting():
                while (frame := self._parsed()) is None:
                    data = await loop.sock_recv(self._link, _READ_BYTES)
                    if not data:
                        raise ConnectionResetError
                    self._unread += data
        except ConnectionError as error:
            raise await asyncio.to_thread(self._ended) from error
        return frame

    def kill(self) -> None:
        """End it, whatever it does; another thread that waits for a frame gets `ChildEnded`."""
        with self._ending:
            if self._grace_s is None or self._process.stdin is None:
                self._process.kill()
            else:
                self._process.stdin.close()
                self._process.send_signal(signal.SIGCONT)  # stopped, it would end nothing
                try:
                    self._process.wait(tree.longest_end_s(self._grace_s))
                except subprocess.TimeoutExpired:
                    self._process.kill()
            self._process.wait()

    def close(self) -> None:
        """Kill it and free the channel; again does nothing. A task that waits gets `ChildEnded`."""
        self.kill()
        self._closed = True
        with contextlib.suppress(OSError):  # it was closed before
            self._link.shutdown(socket.SHUT_RDWR)
        if not self._awaited:
            self._link.close()
        if self._process.stdout is not None:
            self._process.stdout.close()

    @contextlib.contextmanager
    def _awaiting(self) -> Iterator[None]:
        """Around waits of a task for the link.

        An event loop hears of the end of a socket, but not that it was closed; so `close` leaves
        that to the last task.
        """
        if self._closed:
            raise ConnectionResetError
        self._link.setblocking(False)
        self._awaited += 1
        try:
            yield
        finally:
            self._awaited -= 1
            if self._closed and not self._awaited:
                self._link.close()

    def _ended(self) -> ChildEnded:
        """The error of a child that has closed its channel, once it has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        self.kill()
        return ChildEnded(self._process.returncode)

    def _parsed(self) -> Frame | None:
        """The first frame of what has been read, if it is whole."""
        if len(self._unread) < SIZES.size:
            return None
        head, body = SIZES.unpack_from(self._unread)
        begin = SIZES.size + head
        size = begin + body
        if size > self._most_bytes:
            raise ValueError(f"a frame of {size} bytes, and at most {self._most_bytes} are read")
        if len(self._unread) < size:
            return None
        with memoryview(self._unread) as read:
            frame = Frame(json.loads(bytes(read[SIZES.size : begin])), bytes(read[begin:size]))
        del self._unread[:size]
        return frame


def _socket_pair() -> tuple[socket.socket, socket.socket]:
    """A socket pair beyond the standard streams, of which a daemon may have closed some.

    `subprocess` would put the streams of the child in place of a socket among them.
    """
    ours, theirs = socket.socketpair()
    with ours, theirs:
        return _above_streams(ours), _above_streams(theirs)


def _above_streams(link: socket.socket) -> socket.socket:
    return socket.socket(fileno=fcntl.fcntl(link, fcntl.F_DUPFD_CLOEXEC, 3))


def _import_path() -> list[str]:
    """The import path, as it reads in another working directory, too."""
    try:
        return [str(Path(entry).absolute()) for entry in sys.path]
    except FileNotFoundError:  # the working directory was removed
        return sys.path
