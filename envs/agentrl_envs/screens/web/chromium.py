"""One Chromium for all rollouts of a process, driven over a pipe by the DevTools protocol.

Chromium runs below `agentrl.machine.processes.tree`, which gives it a temporary folder and ends all
of its processes, however this process ended. The protocol goes over two pipes, so no port is open,
and no other program can drive it. No name resolves in it, so nothing is ever asked of a network.
Each episode has a browser context of its own: pages share neither storage nor processes of a page.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import sys
import threading
from collections import deque
from concurrent.futures import Future
from concurrent.futures import TimeoutError as WaitedTooLong
from typing import Any

from agentrl.errors import ConfigError, EnvError
from agentrl.machine.processes import tree

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
"""Programs looked for on PATH."""
_FLAGS = (
    "--headless",
    # A process of root cannot have it, and many containers neither. The pages are files of this
    # machine, and what a model sends to them are clicks and keys.
    "--no-sandbox",
    "--remote-debugging-pipe",
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-gpu",
    "--disable-lcd-text",
    "--disable-sync",
    "--font-render-hinting=none",
    "--force-color-profile=srgb",
    "--hide-scrollbars",
    "--mute-audio",
    "--no-first-run",
)
_BEGIN = """\
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.dup2(int(sys.argv[2]), 4)
profile = os.path.join(os.environ["TMPDIR"], "profile")
os.execv(sys.argv[3], [*sys.argv[3:], f"--user-data-dir={profile}"])
"""
"""Becomes Chromium, with its pipes at 3 and 4 and a profile that is removed with the tree."""
_START_S = 60.0
"""To start on a machine that is very busy."""
_ANSWER_S = 30.0
_GRACE_S = 2.0
_READ_BYTES = 2**20
_KEPT_LINES = 20
"""Of what Chromium prints, for the error if it does not start."""


class ChromiumRefused(EnvError):
    """Chromium did not do what was asked: the page is another one by now, or was closed."""


class Chromium:
    """A browser process; `shared` is the one of this process, started on first use."""

    def __init__(self, program: str) -> None:
        """Start it. Blocks until it answers.

        Raises:
            EnvError: it does not start.
        """
        self._lock = threading.Lock()
        self._number = 0
        self._answers: dict[int, tuple[str, Future[dict[str, Any]]]] = {}
        self._events: dict[tuple[str, str], Future[dict[str, Any]]] = {}
        self._printed: deque[str] = deque(maxlen=_KEPT_LINES)
        self._ended = False
        theirs_in, self._to = _pipe()
        self._from, theirs_out = _pipe()
        try:
            self._process = subprocess.Popen(
                [
                    *tree.command(_GRACE_S, scratch=True),
                    *(sys.executable, "-I", "-c", _BEGIN, str(theirs_in), str(theirs_out)),
                    program,
                    *_FLAGS,
                    "about:blank",
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs_in, theirs_out],
                start_new_session=True,  # Ctrl-C is for this process
            )
        except BaseException:
            os.close(self._to)
            os.close(self._from)
            raise
        finally:
            os.close(theirs_in)
            os.close(theirs_out)
        for target in (self._read, self._keep_printed):
            threading.Thread(target=target, name="chromium", daemon=True).start()
        try:
            self._send("Browser.getVersion", {}, "").result(_START_S)
        except (EnvError, WaitedTooLong) as error:
            self.close()
            text = " | ".join(self._printed) or str(error) or f"no answer within {_START_S:g} s"
            raise EnvError(f"{program} did not start: {text[-2000:]}") from error

    @property
    def alive(self) -> bool:
        """True until it has ended."""
        return not self._ended

    @property
    def pid(self) -> int:
        """Process id of the program above the browser, which ends all of it."""
        return self._process.pid

    async def call(self, method: str, session: str = "", **parameters: Any) -> dict[str, Any]:
        """The answer to a command of the protocol.

        Raises:
            ChromiumRefused: Chromium refused it.
            EnvError: it has ended, or did not answer in time.
        """
        answer = self._send(method, parameters, session)
        try:
            async with asyncio.timeout(_ANSWER_S):
                return await asyncio.wrap_future(answer)
        except TimeoutError:
            raise EnvError(f"Chromium did not answer {method} within {_ANSWER_S:g} s") from None

    def expect(self, event: str, session: str) -> Future[dict[str, Any]]:
        """A future for the next event of a session; `forget` it where it need not come."""
        with self._lock:
            future: Future[dict[str, Any]] = Future()
            if self._ended:
                future.set_exception(EnvError("Chromium has ended"))
            else:
                self._events[session, event] = future
        return future

    def forget(self, session: str) -> None:
        """Fail everything that waits for a session, which is about to be closed."""
        with self._lock:
            waiting = [
                number for number, (of, _) in self._answers.items() if session and of == session
            ]
            futures = [self._answers.pop(number)[1] for number in waiting]
            keys = [key for key in self._events if key[0] == session]
            futures += [self._events.pop(key) for key in keys]
        for future in futures:
            _fail(future, "the page was closed")

    def close(self) -> None:
        """End the browser and all of its processes. Idempotent."""
        with self._lock:
            ended, self._ended = self._ended, True
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        # A forked process may hold a copy of the pipe.
        self._process.terminate()
        try:
            self._process.wait(tree.longest_end_s(_GRACE_S))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if not ended:
            self._fail_all()

    def _send(
        self, method: str, parameters: dict[str, Any], session: str
    ) -> Future[dict[str, Any]]:
        future: Future[dict[str, Any]] = Future()
        message: dict[str, Any] = {"method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        with self._lock:
            if self._ended:
                raise EnvError("Chromium has ended")
            self._number += 1
            self._answers[self._number] = session, future
            data = json.dumps({"id": self._number, **message}).encode() + b"\0"
            try:
                while data:
                    data = data[os.write(self._to, data) :]
            except OSError as error:
                self._answers.pop(self._number)
                raise EnvError(f"Chromium has ended: {error}") from error
        return future

    def _read(self) -> None:
        """Pass answers and events on until the pipe is closed; the main function of a thread."""
        unread = b""
        while data := os.read(self._from, _READ_BYTES):
            *messages, unread = (unread + data).split(b"\0")
            for message in messages:
                self._receive(json.loads(message))
        with self._lock:
            self._ended = True
            os.close(self._to)
            os.close(self._from)
        self._fail_all()

    def _receive(self, message: dict[str, Any]) -> None:
        with self._lock:
            if "id" in message:
                _, future = self._answers.pop(message["id"], ("", None))
            else:
                key = message.get("sessionId", ""), message["method"]
                future = self._events.pop(key, None)
        if future is None or not future.set_running_or_notify_cancel():
            return  # whoever asked has gone
        if "error" in message:
            future.set_exception(ChromiumRefused(f"Chromium: {message['error'].get('message')}"))
        else:
            future.set_result(message.get("result", message.get("params", {})))

    def _keep_printed(self) -> None:
        """Read what Chromium prints, so that it never waits for a reader; in a thread."""
        assert self._process.stdout is not None
        with self._process.stdout as stream:
            for line in stream:
                self._printed.append(line.decode(errors="replace").strip())

    def _fail_all(self) -> None:
        with self._lock:
            futures = [future for _, future in self._answers.values()]
            futures += self._events.values()
            self._answers.clear()
            self._events.clear()
        for future in futures:
            _fail(future, "Chromium has ended")


def _pipe() -> tuple[int, int]:
    """A pipe beyond the descriptors 3 and 4, which Chromium reads and writes."""
    ends = os.pipe()
    try:
        reading, writing = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 5) for end in ends)
    finally:
        for end in ends:
            os.close(end)
    return reading, writing


def _fail(future: Future[dict[str, Any]], why: str) -> None:
    if future.set_running_or_notify_cancel():
        future.set_exception(EnvError(why))


_starting = threading.Lock()
_shared: Chromium | None = None


def program() -> str:
    """The browser to run: `CHROMIUM` of the environment, or the first of `NAMES` on PATH.

    Raises:
        ConfigError: there is none.
    """
    named = os.environ.get("CHROMIUM")
    found = next(filter(None, map(shutil.which, [named] if named else NAMES)), None)
    if found is None:
        looked = f"CHROMIUM={named}" if named else ", ".join(NAMES)
        raise ConfigError(
            f"agentrl_envs.screens.web needs Chromium, and none of {looked} is a program on PATH; "
            "install it (Debian: apt-get install chromium), or name its file in the variable "
            "CHROMIUM"
        )
    return found


def shared() -> Chromium:
    """The Chromium of this process, started if there is none or it has ended. Blocks.

    Raises:
        ConfigError: Chromium is not installed.
        EnvError: it does not start.
    """
    global _shared
    with _starting:
        if _shared is None or not _shared.alive:
            end()
            _shared = Chromium(program())
        return _shared


def end() -> None:
    """End the Chromium of this process; a later `shared` starts another."""
    global _shared
    browser, _shared = _shared, None
    if browser is not None:
        browser.close()


def _leave_to_parent() -> None:
    """In a forked process: it starts a Chromium of its own, and leaves this one alone."""
    global _shared, _starting
    _shared, _starting = None, threading.Lock()


os.register_at_fork(after_in_child=_leave_to_parent)
atexit.register(end)
