"""Runs named tests inside a sandbox and reports how each ended. This file is that program.

It is sent whole to `python3 -I -S -c`, so it imports only the standard library. Tests run in a
child with its own session; what they report comes over a pipe, what they print is kept as a tail.
The child receives neither the nonce nor the names that count, and this process cannot be read by it
(it is not dumpable), so a line forged on the output is not taken for the report.

    stdin   {"nonce", "command", "log": kind of output that results are read from, or empty where
            the plugin reports them, "cwd", "env", "wall_s", "names", "plugin", "only": functions to
            run or none for all, "keys": probes to report, or null for all there are}
    stdout  the nonce and "start"; then the nonce and {"states": one letter a name, "hello": whether
            the test runner came up, "timed_out": bool, "exit": status or None, "tail": text,
            "values": what probes gave, packed}
    states  p passed, x failed as expected, s skipped or passed unexpectedly, f failed,
            m never ended
"""

import base64
import contextlib
import ctypes
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zlib

TAIL = 4000
LINE = 1 << 20
VALUES = 1500
_RANK = {"p": 0, "x": 1, "s": 2, "f": 3}


def hide():
    """Make this process unreadable for others of the same user, its children included."""
    # Where there is no such call, the nonce is as safe as the sandbox keeps it.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE


def say(nonce, text):
    """One line to the environment; the leading newline ends whatever else was printed."""
    data = f"\n{nonce} {text}\n".encode()
    while data:
        data = data[os.write(1, data) :]


class Reports:
    """Results of tests, by the name that the runner gives them."""

    def __init__(self):
        self.hello = False
        self.state = {}
        self.values = {}
        self._rest = b""

    def read(self, data):
        """Take more of the output; here it means nothing."""

    def feed(self, data):
        """Take more of the stream; a line that is no report is left out."""
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()[:LINE]
        for line in lines:
            try:
                self._take(json.loads(line))
            except (ValueError, TypeError, AttributeError, IndexError, RecursionError):
                continue

    def _take(self, words):
        if words[0] == "hello":
            self.hello = True
        elif words[0] == "value":
            _, key, digest = map(str, words)
            if len(self.values) < 100 * VALUES:
                # The first: nothing that is said later takes it back.
                self.values.setdefault(key[:40], digest[:8])
        elif words[0] == "test":
            _, name, when, outcome = map(str, words)
            if outcome == "passed":
                # Only the test itself passes; its set-up and tear-down can just fail.
                new = "p" if when == "call" else None
            else:
                new = {"failed": "f", "xfailed": "x"}.get(outcome, "s")
            old = self.state.get(name)
            if new is not None and (old is None or _RANK[new] > _RANK[old]):
                self.state[name] = new

    def report(self, job):
        """Those parts of the report that the runner sent."""
        return {
            "states": self.states(job["names"]),
            "hello": self.hello,
            "values": self.packed(job["keys"]),
        }

    def packed(self, keys):
        """Values as short text: those of `keys`, or the first there are; output has a limit."""
        if keys is None:
            keys = list(self.values)[:VALUES]
        said = {key: self.values[key] for key in keys if key in self.values}
        return base64.b64encode(zlib.compress(json.dumps(said).encode())).decode()

    def states(self, names):
        """One letter for each name, of the worst test that it stands for."""
        worst = {}
        for reported, state in self.state.items():
            for name in also_called(reported):
                if name not in worst or _RANK[state] > _RANK[worst[name]]:
                    worst[name] = state
        return "".join(self.state.get(name) or worst.get(name, "m") for name in names)


class LogReports(Reports):
    """Results of tests as a runner of its own prints them.

    The rules are those of SWE-bench's `parse_log_django` and `parse_log_sympy`, as its lists of
    names were made with them.
    """

    def __init__(self, kind):
        """Read the output of `django` or `sympy`, or find results by patterns, JSON by state."""
        super().__init__()
        if kind.startswith("{"):
            found = json.loads(kind).items()
            self._patterns = [(state, re.compile(text)) for state, text in found]
            self._line = self._by_pattern
        else:
            self._line = {"django": self._django, "sympy": self._sympy}[kind]
        self._printed = b""
        self._before = None

    def read(self, data):
        """Take more of the output."""
        lines = (self._printed + data).split(b"\n")
        self._printed = lines.pop()[:LINE]
        for line in lines:
            self._line(line[:LINE].decode("utf-8", "replace").strip())

    def _ended(self, name, state):
        old = self.state.get(name)
        if old is None or _RANK[state] > _RANK[old]:
            self.state[name] = state

    def _by_pattern(self, line):
        for state, pattern in self._patterns:
            match = pattern.search(line)
            if match and match["name"]:
                self.hello = True
                self._ended(match["name"], state)

    def _django(self, line):
        if line.startswith(("Testing against Django", "Ran ")):
            self.hello = True
        if " ... " in line:
            self._before = line.split(" ... ")[0]
        for suffix in (" ... ok", " ... OK", " ...  OK"):
            if line.endswith(suffix):
                self._ended(line[: -len(suffix)], "p")
                break
        if " ... skipped" in line:
            self._ended(line.split(" ... skipped")[0], "s")
        if line.endswith(" ... expected failure"):
            self._ended(line[: -len(" ... expected failure")], "x")
        for suffix in (" ... FAIL", " ... ERROR"):
            if line.endswith(suffix):
                self._ended(line[: -len(suffix)], "f")
        # What a test prints stands between its name and its result.
        if line.startswith("ok") and self._before is not None:
            self._ended(self._before, "p")
        elif line in ("FAIL", "ERROR") and self._before is not None:
            self._ended(self._before, "f")
        if line.startswith(("FAIL: ", "ERROR: ")):
            self._ended(line.partition(": ")[2], "f")

    def _sympy(self, line):
        if "test process starts" in line or line.startswith("tests finished"):
            self.hello = True
        words = line.split()
        if len(words) > 1 and words[0].startswith("test_"):
            state = {"ok": "p", "E": "f", "F": "f", "f": "x", "s": "s", "w": "s"}.get(words[-1])
            if state:
                self._ended(words[0], state)


def also_called(name):
    """The names that data sets use for a test.

    Logs truncate a parametrised name at its first space, and some suites name the function alone.
    """
    last = name.rpartition("::")[2]
    dotted = ".".join(name.split("::")[1:])
    return {name, name.split(" ")[0], last, last.partition("[")[0], dotted}


def run(job):
    """Run the command to its end, or to its limit; give the report."""
    folder = tempfile.mkdtemp(prefix="judge-")
    report_read, report_write = os.pipe()
    output_read, output_write = os.pipe()
    try:
        with open(os.path.join(folder, "agentrl_report.py"), "w") as file:  # noqa: PTH118, PTH123
            file.write(job["plugin"])
        with open(os.path.join(folder, "agentrl_only.json"), "w") as file:  # noqa: PTH118, PTH123
            json.dump(job["only"], file)
        env = {**os.environ, **job["env"], "AGENTRL_REPORT_FD": str(report_write)}
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, env.get("PYTHONPATH")]))
        try:
            child = subprocess.Popen(
                job["command"],
                cwd=job["cwd"],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output_write,
                stderr=output_write,
                pass_fds=(report_write,),
                start_new_session=True,
            )
        except OSError as error:
            tail = f"{job['command'][0]}: {error}"
            return {**Reports().report(job), "timed_out": False, "exit": None, "tail": tail}
        os.close(report_write)
        os.close(output_write)
        report_write = output_write = -1
        return watch(child, report_read, output_read, job)
    finally:
        for fd in (report_read, report_write, output_read, output_write):
            if fd >= 0:
                os.close(fd)
        shutil.rmtree(folder, ignore_errors=True)


def watch(child, report_read, output_read, job):
    """Read both pipes until the child is gone and they are empty."""
    reports, tail = (LogReports(job["log"]) if job["log"] else Reports()), b""
    deadline = time.monotonic() + job["wall_s"]
    timed_out = gone = False
    reading = [report_read, output_read]
    while reading:
        left = deadline - time.monotonic()
        if left <= 0:
            timed_out = True
            break
        # A program left behind may hold a pipe open: once the child is gone, take what is there.
        ready, _, _ = select.select(reading, [], [], 0 if gone else min(left, 0.05))
        if not ready and gone:
            break
        gone = gone or child.poll() is not None
        for fd in ready:
            data = os.read(fd, 65536)
            if not data:
                reading.remove(fd)
            elif fd == report_read:
                reports.feed(data)
            else:
                tail = (tail + data)[-TAIL:]
                reports.read(data)
    if not timed_out:
        try:
            child.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            timed_out = True
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    return {
        **reports.report(job),
        "timed_out": timed_out,
        "exit": child.returncode,
        "tail": tail.decode("utf-8", "replace"),
    }


def main():
    """Read the job, run it, report."""
    hide()
    job = json.loads(sys.stdin.buffer.read())
    say(job["nonce"], "start")
    say(job["nonce"], json.dumps(run(job)))


if __name__ == "__main__":
    main()
