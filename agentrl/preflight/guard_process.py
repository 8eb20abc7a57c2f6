"""The processes of a preflight below the one that watches.

    watch  --starts-->  guard  --forks-->  checks  --start-->  sandboxes, servers, ...

The guard is a program of its own, so it has none of the threads of the process that watches and
none of the locks that they hold, and it forks before it has a thread itself. It reads the end of a
pipe that nobody but the watch can write to. Once the checks have ended, or the watch has (by
kill -9 too), it ends whatever was started below it.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import os
import pickle
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import IO, Any, NoReturn

from agentrl.preflight.process_tree import adopt_orphans, end_offspring, end_with_parent

PATIENCE_S = 5.0
"""For checks that were asked to end, to close their sandboxes."""
_TICK_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What the checks are made of, in another process."""

    make: str
    """`module:function`; called with the arguments and `found`, it returns a `Plan`."""
    arguments: Mapping[str, Any]
    """By name; they are pickled."""
    done: int = 0
    """Steps of the plan to leave out."""


@dataclass(kw_only=True)
class Guarded:
    """A guard that was started, seen from the process that watches."""

    guard: subprocess.Popen[bytes]
    """It ends after everything below it."""
    heard: Connection
    """What the checks say, as `Course` tells it."""
    report: Connection
    """What the guard says: the process id of the checks, then how they ended."""
    lifeline: Connection
    """Closing it ends the checks."""

    def close(self) -> None:
        """End what is left, and wait for it."""
        self.lifeline.close()
        try:
            self.guard.wait(3 * PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.guard.kill()
            self.guard.wait()
        finally:
            self.heard.close()
            self.report.close()


def start_guard(order: Order, frames: IO[bytes]) -> Guarded:
    """Start the checks in processes of their own.

    Args:
        order: what they are.
        frames: file that takes the stacks of all threads whenever the checks get SIGUSR1.
    """
    reads_order, lifeline = Pipe(duplex=False)
    heard, says = Pipe(duplex=False)
    report, reports = Pipe(duplex=False)
    inherited = (reads_order.fileno(), says.fileno(), reports.fileno(), frames.fileno())
    program = (
        f"import sys; sys.path[:] = {sys.path!r}; "
        f"from agentrl.preflight.guard_process import main; main(*{inherited})"
    )
    # A session of its own: Ctrl-C is for the process that watches, which passes it on.
    guard = subprocess.Popen(
        [sys.executable, "-c", program], pass_fds=inherited, start_new_session=True
    )
    for end in (reads_order, says, reports):
        end.close()
    with contextlib.suppress(BrokenPipeError):  # it ended at once, which `report` shows
        lifeline.send_bytes(pickle.dumps(order))
    return Guarded(guard=guard, heard=heard, report=report, lifeline=lifeline)


def main(reads_order: int, says: int, reports: int, frames: int) -> None:
    """What the guard does, given file descriptors of `start_guard`."""
    for inherited in (reads_order, says, reports, frames):
        os.set_inheritable(inherited, False)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    lifeline = Connection(reads_order, writable=False)
    report = Connection(reports, readable=False)
    order = lifeline.recv_bytes()
    adopt_orphans()
    assert threading.active_count() == 1, "a fork would leave their locks held for ever"
    checks = os.fork()
    if checks == 0:
        lifeline.close()
        report.close()
        _check(order, Connection(says, readable=False), frames)
    os.close(says)
    status: int | None = None
    with contextlib.suppress(BrokenPipeError):
        report.send(checks)
    try:
        status = _until_its_end(checks, lifeline)
    finally:
        end_offspring()
        with contextlib.suppress(BrokenPipeError):
            report.send(status)


def _until_its_end(checks: int, lifeline: Connection) -> int:
    poll = select.poll()
    poll.register(lifeline.fileno(), 0)  # that the other end is closed is always told
    asked: float | None = None
    while True:
        done, status = os.waitpid(checks, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if asked is None:
            if poll.poll(1000 * _TICK_S):
                asked = time.monotonic()
                os.kill(checks, signal.SIGINT)
            continue
        if time.monotonic() - asked > PATIENCE_S:
            os.kill(checks, signal.SIGKILL)
        time.sleep(_TICK_S)


def _check(order: bytes, says: Connection, frames: int) -> NoReturn:
    """What the process of the checks does."""
    end_with_parent()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    faulthandler.register(signal.SIGUSR1, file=frames, all_threads=True)
    os.dup2(2, 1)  # what an environment prints stands beside the result, not in it
    lock = threading.Lock()  # of several threads that speak, one at a time writes its message

    def tell(what: str, value: object) -> None:
        with contextlib.suppress(BrokenPipeError), lock:
            says.send((what, value))

    status = 1
    try:
        _course(order, tell).run()
        status = 0
    except KeyboardInterrupt:
        status = 130
    except BaseException:  # the boundary of the process: nothing else would show it
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _course(pickled: bytes, tell: Any) -> Any:
    from agentrl.preflight.checks.facts import PreflightFacts
    from agentrl.preflight.runner import Course

    order: Order = pickle.loads(pickled)
    module, _, function = order.make.partition(":")
    found = PreflightFacts()
    plan = getattr(importlib.import_module(module), function)(**order.arguments, found=found)
    return Course(plan.steps[order.done :], limits=plan.limits, found=found, tell=tell)
