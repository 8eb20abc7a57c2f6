"""The sandboxes of a rollout: one shared by environment and tools, and fresh ones to grade in.

The shared one is opened on first use; all are closed with the rollout. Three things are kept that
the loop must know, whatever environment and tools make of them: how long commands ran, which is the
model's own doing even when an environment started them; how long sandboxes took to open, which
no part is charged for; and whether one of them failed, after which no reward of this rollout can be
trusted, even if the error was caught.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext

from agentrl.errors import EnvError, SandboxError, SandboxUnavailable
from agentrl.rollout.sandbox_use import SandboxUse
from agentrl.rollout.under_way.in_flight import Activity, WaitsFor
from agentrl.rollout.watch import DeadlineWatch
from agentrl.sandbox import ExecResult, Sandbox, SandboxBackend, SandboxLimits, SandboxSpec
from agentrl.sandbox.wrapper import Operation, SandboxWrapper


class SharedSandbox:
    """Opens what a rollout asks for and closes it."""

    def __init__(
        self,
        backend: SandboxBackend | None,
        limits: SandboxLimits,
        *,
        open_timeout_s: float,
        use: SandboxUse | None = None,
    ) -> None:
        """Take the parts.

        Args:
            backend: makes sandboxes; None if the run has none.
            limits: of every sandbox whose spec names none.
            open_timeout_s: bounds the start of a sandbox, not the wait for a slot.
            use: where to count, with other attempts at the same rollout.
        """
        self._use = SandboxUse() if use is None else use
        self.watch: DeadlineWatch | None = None
        """Stopped while a sandbox is being opened."""
        self.activity: Activity | None = None
        """Waits for the sandbox meanwhile."""
        self._backend = backend
        self._limits = limits
        self._open_timeout_s = open_timeout_s
        self._sandbox: _TimedSandbox | None = None
        self._spec = SandboxSpec()
        self._others: list[_TimedSandbox] = []
        self._asked = 0
        self._closed = False
        self._opening_time = _Stopwatch()
        # What failed, by which sandbox: the shared one, or the one opened last to grade in.
        self._failed: dict[str, str] = {}
        # Protects `_sandbox` while it is being made: parallel tool calls must get the same one.
        self._opening = asyncio.Lock()

    @property
    def opened(self) -> bool:
        """True if there is something to close, or will be."""
        return self._asked > 0

    @property
    def busy_s(self) -> float:
        """Seconds in which at least one command ran, those still running included."""
        return sum(sandbox.busy.seconds() for sandbox in self._all())

    @property
    def opening_s(self) -> float:
        """Seconds in which a sandbox was being opened, the wait for a slot included."""
        return self._opening_time.seconds()

    @property
    def failure(self) -> str:
        """Why nothing that this rollout returns now can be trusted; empty if nothing is wrong.

        The shared sandbox broke; or one to grade in did, and no other was opened since.
        """
        return next(iter(self._failed.values()), "")

    async def open(self, spec: SandboxSpec | None = None) -> Sandbox:
        """The sandbox of this rollout.

        Args:
            spec: what is wanted; only the call that opens it may want something.

        Raises:
            EnvError: the run has no sandbox, or the one that is open is not what is wanted.
            SandboxError: it could not be made in time.
        """
        async with self._opening:
            if self._sandbox is None:
                self._spec = spec or SandboxSpec()
                self._sandbox = await self._make(self._spec, "the sandbox")
            elif spec is not None and spec != self._spec:
                raise EnvError(
                    "open_sandbox: the sandbox of this rollout is open already and was not made "
                    "from this SandboxSpec; say what is wanted in the first call, in reset"
                )
        return self._sandbox

    async def fresh(self, spec: SandboxSpec | None = None) -> Sandbox:
        """Another sandbox, which nothing of this rollout has touched.

        Raises:
            EnvError: the run has no sandbox.
            SandboxError: it could not be made in time.
        """
        sandbox = await self._make(spec or SandboxSpec(), "a fresh sandbox")
        self._others.append(sandbox)
        return sandbox

    async def close(self) -> None:
        """Close what was opened. Idempotent."""
        self._closed = True
        await asyncio.gather(*(sandbox.close() for sandbox in self._all()))

    def _all(self) -> list[_TimedSandbox]:
        return self._others if self._sandbox is None else [self._sandbox, *self._others]

    async def _make(self, spec: SandboxSpec, which: str) -> _TimedSandbox:
        if self._backend is None:
            raise EnvError(
                "a sandbox was asked for, but the rollout worker was given no sandbox backend"
            )
        # A rollout that asked for one before, open yet or not, must not wait for a slot.
        more, self._asked = self._asked > 0, self._asked + 1
        began = time.monotonic()
        try:
            with self._clocks_stopped():
                made = await self._backend.take(
                    spec, self._limits, timeout_s=self._open_timeout_s, more=more
                )
        except BaseException as error:
            self._asked -= 1
            self._note(which, error)
            raise
        if self._closed:
            # A task that the environment left behind.
            await made.close()
            raise EnvError("a sandbox was asked for after the rollout had ended")
        self._failed.pop(which, None)
        self._use.opened(made.origin, time.monotonic() - began)
        return _TimedSandbox(made, self._use, lambda error: self._note(which, error))

    @contextmanager
    def _clocks_stopped(self) -> Iterator[None]:
        watch, activity = self.watch, self.activity
        if watch is not None:
            watch.hold()
        try:
            with (
                self._opening_time.running(),
                activity.waiting(WaitsFor.SANDBOX) if activity else nullcontext(),
            ):
                yield
        finally:
            if watch is not None:
                watch.release()

    def _note(self, which: str, error: BaseException) -> None:
        if isinstance(error, SandboxError):
            self._use.failed()
            if not isinstance(error, SandboxUnavailable):
                self._failed[which] = f"{which} failed: {error}"


class _Stopwatch:
    """Counts the seconds in which at least one thing was going on."""

    def __init__(self) -> None:
        self._running = 0
        self._since = 0.0
        self._done_s = 0.0

    def seconds(self) -> float:
        return self._done_s + (time.monotonic() - self._since if self._running else 0.0)

    @contextmanager
    def running(self) -> Iterator[None]:
        if self._running == 0:
            self._since = time.monotonic()
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1
            if self._running == 0:
                self._done_s += time.monotonic() - self._since


class _TimedSandbox(SandboxWrapper):
    """Passes everything on, measures programs and counts how they end."""

    def __init__(
        self, inner: Sandbox, use: SandboxUse, note: Callable[[BaseException], None]
    ) -> None:
        super().__init__(inner)
        self.busy = _Stopwatch()
        self._use = use
        self._note = note
        self._closed = False

    @contextmanager
    def around(self, operation: Operation) -> Iterator[None]:
        try:
            if operation in ("files", "listen"):
                yield
            else:
                with self.busy.running():
                    yield
        except SandboxUnavailable:
            # This kind of sandbox does not offer it; nothing has failed.
            raise
        except SandboxError as error:
            # Who closes it while something runs has not found a failure.
            if not self._closed:
                self._note(error)
            raise

    async def close(self) -> None:
        self._closed = True
        await super().close()

    async def exec(
        self,
        command: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout_s: float | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> ExecResult:
        result = await super().exec(command, stdin=stdin, timeout_s=timeout_s, cwd=cwd, env=env)
        self._use.ran(result.outcome)
        return result
