"""A pytest plugin that writes down what each test did, as it happens.

It runs inside the sandbox, where agentrl is not installed: standard library only. The library under
test is a published one, so what it does to this file is not guarded against; grading a model's
work is, elsewhere.

Lines of the report, JSON each: `["start", test]`, `["end", test, outcome, seconds, message]`,
`["broken", file, message]` for a file that cannot be collected, `["modules", {name: file}]`,
`["covered", {file: [line, ...]}]`, `["seconds", of the whole run]` and `["done", exit status]`.
Seconds do not count the time in which others had the processors.
"""

import faulthandler
import json
import os
import signal
import sys
import threading
import time

_STREAM = open(os.environ["AGENTRL_REPORT"], "a", encoding="utf-8")  # noqa: PTH123, SIM115
_LIMIT_S = float(os.environ.get("AGENTRL_TEST_LIMIT", "0"))
_MODULES = os.environ.get("AGENTRL_MODULES", "").split()
_ROOT = os.getcwd()  # noqa: PTH109
_PATIENCE = 6
"""Wall seconds for one second of a test's limit: a loaded machine gives less than one processor."""
_RANK = {"passed": 0, "skipped": 1, "failed": 2}

_now = time.monotonic
_began_s = 0.0
_seen = {}
_covered = {}


def _write(*line):
    _STREAM.write(json.dumps(line) + "\n")
    _STREAM.flush()


def _on_call(frame, event, argument):
    if event == "call":
        code = frame.f_code
        if code.co_filename.startswith(_ROOT):
            _covered.setdefault(code.co_filename, set()).add(code.co_firstlineno)


def pytest_configure(config):
    """Begin to watch which functions run, if asked to."""
    if os.environ.get("AGENTRL_COVER"):
        threading.setprofile(_on_call)
        sys.setprofile(_on_call)


def pytest_runtest_logstart(nodeid, location):
    """Report that one test begins."""
    global _began_s
    _seen[nodeid] = ["passed", ""]
    _began_s = _own_s()
    _write("start", nodeid)
    if _LIMIT_S:
        # Of processor time, so that a loaded machine does not make a test look stuck. Both also end
        # what holds the interpreter's lock, as a runaway regex does: the signal is not handled, and
        # what waits for ever is ended by a watchdog in C.
        signal.setitimer(signal.ITIMER_PROF, _LIMIT_S)
        faulthandler.dump_traceback_later(_PATIENCE * _LIMIT_S, exit=True, file=_STREAM)


def pytest_runtest_logreport(report):
    """One phase of a test is over; the worst phase counts."""
    entry = _seen.setdefault(report.nodeid, ["passed", ""])
    outcome = report.outcome
    if hasattr(report, "wasxfail"):
        outcome = "skipped"
    if _RANK[outcome] > _RANK[entry[0]]:
        entry[0] = outcome
        entry[1] = _message(report) if outcome == "failed" else ""


def pytest_runtest_logfinish(nodeid, location):
    """One test is over."""
    signal.setitimer(signal.ITIMER_PROF, 0)
    faulthandler.cancel_dump_traceback_later()
    outcome, message = _seen[nodeid]
    _write("end", nodeid, outcome, round(_own_s() - _began_s, 4), message)


def pytest_collectreport(report):
    """Report a file that cannot be imported, with its error."""
    if report.failed:
        _write("broken", report.nodeid, _message(report))


def pytest_sessionfinish(session, exitstatus):
    """Write the last lines of the report."""
    sys.setprofile(None)
    threading.setprofile(None)
    modules = {}
    for name in _MODULES:
        module = sys.modules.get(name)
        if module is not None:
            modules[name] = getattr(module, "__file__", None) or ""
    _write("modules", modules)
    covered = {os.path.relpath(path, _ROOT): sorted(lines) for path, lines in _covered.items()}
    _write("covered", covered)
    _write("seconds", round(_own_s() - _STARTED_S, 4))
    _write("done", int(exitstatus))


def _own_s():
    """A clock that stands while this process waits for a processor."""
    return _now() - _waited_s()


def _waited_s():
    """Seconds in which it could have run and others did; 0 where the kernel does not count."""
    try:
        with open("/proc/self/schedstat") as file:  # noqa: PTH123
            return int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


# Before this line was read the process did little else than compute.
_STARTED_S = _own_s() - time.process_time()


def _message(report):
    """The message of a failure, without the lines of code around it."""
    text = report.longrepr
    crash = getattr(text, "reprcrash", None)
    if crash is not None:
        return str(crash.message)[:1000]
    lines = [line[2:] for line in str(text).splitlines() if line.startswith("E ")]
    return "\n".join(lines or str(text).strip().splitlines()[-1:])[:1000]
