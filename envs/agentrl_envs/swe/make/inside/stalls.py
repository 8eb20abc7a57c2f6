"""A pytest plugin that plays a machine under heavy load: tests that then fail measure the machine.

It runs inside the sandbox, where agentrl is not installed: standard library only. Load itself would
disturb others on the machine, and would find a test that measures time by luck only, so the
clocks that the library and its tests read are what falls behind: at every reading by a little more
(`more`), which nothing passes that compares a first time with a second one, or at the first by very
much and then by less (`less`), which no limit passes. All that waits without a reading of its own,
such as threads, is stopped for real, again and again, where `AGENTRL_STOPS` is set.
"""

import os
import random
import signal
import sys
import time

_ROOT = os.getcwd()  # noqa: PTH109
_TIMEIT = "<timeit-src>"
_GROWS = os.environ.get("AGENTRL_STALLS") == "more"
_FIRST_S = 0.01 if _GROWS else 30.0
_FACTOR = 2.0 if _GROWS else 0.5
_MOST_S = 60.0
"""A test loses no more than that, so that what waits for a time to come still sees it come."""
_CLOCKS = ("time", "monotonic", "perf_counter", "process_time", "thread_time")
_RUN_S, _STOP_S = 0.04, 0.08
_sleep = time.sleep

_behind = 0.0
_lost = 0.0
_next = _FIRST_S


class _Clock:
    """A clock that falls behind; an object, as a function in a class would become a method."""

    def __init__(self, real, unit):
        self._real = real
        self._unit = unit

    def __call__(self):
        global _behind, _lost, _next
        # Clocks of pytest, asyncio and the like only move with the others.
        file = sys._getframe(1).f_code.co_filename
        if _lost + _next <= _MOST_S and (file.startswith(_ROOT) or file == _TIMEIT):
            _behind += _next
            _lost += _next
            _next *= _FACTOR
        return self._real() + self._unit(_behind)


def _stop_and_go(pid):
    """Stop a process for a while, resume it for a while, until it is gone."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    chance = random.Random(0)
    try:
        while True:
            _sleep(chance.expovariate(1 / _RUN_S))
            os.kill(pid, signal.SIGSTOP)
            _sleep(chance.expovariate(1 / _STOP_S))
            os.kill(pid, signal.SIGCONT)
    finally:
        os._exit(0)


def pytest_configure(config):
    """Begin; what pytest has imported so far keeps the real clocks."""
    for name in _CLOCKS if os.environ.get("AGENTRL_STALLS") else ():
        setattr(time, name, _Clock(getattr(time, name), float))
        in_ns = f"{name}_ns"
        setattr(time, in_ns, _Clock(getattr(time, in_ns), lambda seconds: int(seconds * 1e9)))
    if os.environ.get("AGENTRL_STOPS"):
        me = os.getpid()
        child = os.fork()
        if child == 0:
            # Not a child of the tests' process, which may wait for all of its own.
            if os.fork() == 0:
                _stop_and_go(me)
            os._exit(0)
        os.waitpid(child, 0)


def pytest_runtest_logstart(nodeid, location):
    """Every test begins alike."""
    global _lost, _next
    _lost, _next = 0.0, _FIRST_S
