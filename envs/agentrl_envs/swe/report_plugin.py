"""A pytest plugin that reports how each test ended, over its own pipe. Sent into the sandbox.

It runs in the process of the tested code, so what it says can be forged by that code; it is only
the first half of a verdict, see `proof`. It is loaded before anything of the repository, and
names are bound here so that a later change of a module does not reach it.

Test files of a proof call `value` and `truth` where a test would compare: what the tested code gave
goes out as a digest, and no expected value is here to be read.
"""

import hashlib
import json
import os
import re
import signal as _signal
import threading

try:
    import pytest
except ImportError:  # another runner: only `value` and `truth` are called
    pytest = None

_FD = int(os.environ.pop("AGENTRL_REPORT_FD"))
# Programs that tests start must not hold the pipe open.
os.set_inheritable(_FD, False)
_write = os.write
_dumps = json.dumps
_sha256 = hashlib.sha256
_DEEPEST, _LONGEST, _MOST = 12, 1 << 20, 8
with open(os.path.join(os.path.dirname(__file__), "agentrl_only.json")) as _file:  # noqa: PTH118, PTH120, PTH123
    _ONLY = frozenset(json.load(_file))
_VARIANT, _VARIANT_S = re.compile(r"_v\d+$"), 3.0
_now = ["", ""]
_cases = {}
_counts = {}


def _hook(**order):
    return pytest.hookimpl(**order) if pytest else lambda function: function


def _say(*words):
    data = _dumps(words).encode() + b"\n"
    while data:
        data = data[_write(_FD, data) :]


@_hook(tryfirst=True)
def pytest_collection():
    """Report that the runner itself is in order; later failures are the repository's."""
    _say("hello")


@_hook(trylast=True)
def pytest_collection_modifyitems(items):
    """Leave out what this run does not ask for."""
    if _ONLY:
        items[:] = [item for item in items if item.name.partition("[")[0] in _ONLY]


@_hook(tryfirst=True)
def pytest_runtest_setup(item):
    """Remember which test runs now."""
    name = item.name.partition("[")[0]
    _now[:] = item.nodeid, _sha256(name.encode()).hexdigest()[:6]
    if _ONLY and _VARIANT.search(name):
        # Inputs that were drawn may have no end.
        _alarm(_VARIANT_S)


def pytest_runtest_teardown(item):
    """Give cleanup the time that it takes."""
    if _ONLY:
        _alarm(0)


def _alarm(seconds):
    if threading.current_thread() is threading.main_thread():
        _signal.signal(_signal.SIGALRM, _too_slow)
        _signal.setitimer(_signal.ITIMER_REAL, seconds)


def _too_slow(number, frame):
    raise AssertionError("no end")


def pytest_runtest_logreport(report):
    """Report how one phase of a test ended."""
    outcome = report.outcome
    if hasattr(report, "wasxfail"):
        # One that was expected to fail and did is reported as skipped.
        outcome = "xfailed" if outcome == "skipped" else "xpassed"
    _say("test", report.nodeid, report.when, outcome)


def value(probe, given):
    """Report what the tested code gave at a probe: of plain data a digest, of an object its text.

    A probe that ends in `-` lies in a function that several tests call.
    """
    if probe.endswith("-"):
        probe += _now[1]
    cases = _cases.setdefault(probe, {})
    case = cases.setdefault(_now[0], len(cases))
    number = _counts[probe, case] = _counts.get((probe, case), 0) + 1
    if number <= _MOST:
        _say("value", f"{probe}.{case}.{number}", _digest(given))


def truth(probe, given):
    """Report whether what the tested code gave is true."""
    value(probe, bool(given))


def _digest(given):
    if given is True or given is False or given is None:
        return {True: "T", False: "F", None: "N"}[given]
    try:
        text = _plain(given, 0)[:_LONGEST]
    except Exception as error:  # whatever the methods of a tested object raise
        text = f"no text: {type(error).__name__}"
    return _sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]


def _plain(given, depth):
    """The same text for values that compare equal, whatever `__eq__` an object brings."""
    if depth > _DEEPEST:
        return "..."
    if given is None:
        return "None"
    if isinstance(given, str):
        return "s" + repr(str.__str__(given))
    if isinstance(given, (bytes, bytearray)):
        return "b" + repr(bytes(given))
    if isinstance(given, int):
        return "n" + int.__repr__(given)
    if isinstance(given, float):
        whole = given == given and abs(given) < 1e15 and float.is_integer(given)
        return "n" + (int.__repr__(int(given)) if whole else f"{float.__float__(given):.9g}")
    if isinstance(given, complex):
        return f"c{complex.__repr__(given)}"
    if isinstance(given, (list, tuple)):
        kind = "l" if isinstance(given, list) else "t"
        return kind + "[" + ",".join([_plain(item, depth + 1) for item in given]) + "]"
    if isinstance(given, dict):
        pairs = [
            _plain(key, depth + 1) + ":" + _plain(dict.__getitem__(given, key), depth + 1)
            for key in dict.__iter__(given)
        ]
        return "d{" + ",".join(sorted(pairs)) + "}"
    if isinstance(given, (set, frozenset)):
        return "e{" + ",".join(sorted([_plain(item, depth + 1) for item in given])) + "}"
    text = repr(given)
    # An address says nothing, and is another one every time.
    return f"o{type(given).__name__}" + ("" if " at 0x" in text else text)
