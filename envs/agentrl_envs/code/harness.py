"""Runs untrusted code inside a sandbox and says what it returned. This file is that program.

It is sent whole to `python3 -I -S`, so it imports only fast modules of the standard library and
nothing of agentrl. Two processes: the judge, which holds the hidden cases and the nonce, and its
child, which runs the tested code and is forked before the judge has read any of that. The child is
asked one call at a time over a pipe and answers with plain data; an object with an `__eq__` of its
own cannot leave it. The report carries the nonce, so a line forged on stdout is not read.

    stdin   {"nonce", "code", "entry_point", "wall_s", "cases": [[argument, ...], ...],
             "setup", "check"}
    stdout  the nonce and "start"; then the nonce and {"load": answer, "cases": [answer, ...],
            "check": answer}
    answer  {"value": encoded} | {"error": text} | {"timeout": true} | {"died": true}

`cases` are answered in order and compared by the environment, outside the sandbox. `check` is the
source of a HumanEval-style `check(candidate)`; it runs in the judge, with a candidate that forwards
to the child, after `setup` (source of helpers the check may use).
"""

import os
import select
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` takes longer to import than all the rest of this takes to run
    from typing import Any

MAX_DEPTH = 20
MAX_ITEMS = 20_000
MAX_BYTES = 1 << 16
MAX_REPORT_BYTES = 1 << 15
TOO_LARGE = "ValueError: the returned value is too large"
PATIENCE = 4
SIGKILL = 9  # `signal` loads `enum`
_PLAIN = (type(None), bool, int, float, str)


def json_functions():
    """`loads` and `dumps` of plain data, without `re`, half of what starting this program costs."""
    try:
        from _json import encode_basestring_ascii, make_encoder, make_scanner

        class Options:
            strict, object_hook, object_pairs_hook, array_hook = True, None, None, None
            parse_float, parse_int, parse_constant = float, int, float

        options: Any = Options
        nothing: Any = None
        scan = make_scanner(options)
        write = make_encoder(
            None, nothing, encode_basestring_ascii, None, ":", ",", False, False, True
        )
    except (ImportError, TypeError, AttributeError):  # not CPython, or one that has changed
        import json

        return json.loads, json.dumps

    def loads(data):
        text = data.decode("utf-8", "surrogatepass").strip()
        try:
            value, end = scan(text, 0)
        except (StopIteration, SystemError):
            # Until Python 3.12 the reader finds its own error only where `json` is loaded.
            raise ValueError("no JSON") from None
        if end != len(text):
            raise ValueError("more than one value")
        return value

    return loads, lambda value: "".join(write(value, 0))


loads, dumps = json_functions()


def encode(value, depth=0, budget=None):
    """A plain Python value as JSON data; tuples, sets and dicts are tagged, the rest refused."""
    budget = [MAX_ITEMS] if budget is None else budget
    budget[0] -= 1
    if budget[0] < 0 or depth > MAX_DEPTH:
        raise ValueError("the returned value is too large")
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is list:
        return [encode(item, depth + 1, budget) for item in value]
    if kind in (tuple, set, frozenset):
        return {"t": kind.__name__, "v": [encode(item, depth + 1, budget) for item in value]}
    if kind is dict:
        pairs = [
            [encode(key, depth + 1, budget), encode(item, depth + 1, budget)]
            for key, item in value.items()
        ]
        return {"t": "dict", "v": pairs}
    return {"t": "object", "v": kind.__name__}


def noop():
    """Stands for the function until the code has run."""


class Opaque:
    """Stands for a value that is no plain data; equal to nothing but itself."""

    def __init__(self, name):
        self.name = name

    def __repr__(self):
        return f"<{self.name} object>"


def decode(data):
    """The value that `encode` was given; raises ValueError for anything else."""
    if isinstance(data, list):
        return [decode(item) for item in data]
    if not isinstance(data, dict):
        return data
    tag, items = data.get("t"), data.get("v", ())
    if tag == "object":
        return Opaque(str(items)[:80])
    if tag == "dict":
        return {decode(key): decode(item) for key, item in items}
    if tag in ("tuple", "set", "frozenset"):
        return {"tuple": tuple, "set": set, "frozenset": frozenset}[tag](map(decode, items))
    raise ValueError("not an encoded value")


def explain(error):
    """The last line of a traceback, with the line number in the tested code where there is one."""
    lines = []
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<solution>":
            lines.append(trace.tb_lineno)
        trace = trace.tb_next
    if isinstance(error, SyntaxError):
        lines, text = [error.lineno], error.msg
    else:
        text = str(error)
    where = f" (line {lines[-1]})" if lines and lines[-1] else ""
    return f"{type(error).__name__}: {text}"[:300] + where


# --- the child: runs the tested code ------------------------------------------------------------


def serve(requests, answers):
    """Answer requests until the judge hangs up. Never returns."""
    quiet = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(quiet, stream)
    namespace: dict = {"__name__": "solution"}
    function = noop
    for line in os.fdopen(requests, "rb"):
        request = loads(line)
        try:
            if "code" in request:
                exec(compile(request["code"], "<solution>", "exec"), namespace)
                name = request["entry_point"]
                function = namespace.get(name, noop)
                if name not in namespace or not callable(function):
                    raise NameError(f"the function {name} is not defined")
                answer = {"value": None}
            else:
                answer = {"value": encode(function(*map(decode, request["call"])))}
                dumps(answer)  # an integer of too many digits fails here
        except BaseException as error:
            # The tested code may raise anything, SystemExit included; that is its answer.
            answer = {"error": explain(error)}
        data = dumps(answer).encode()
        if len(data) > MAX_BYTES:
            data = dumps({"error": TOO_LARGE}).encode()
        os.write(answers, data + b"\n")
    os._exit(0)


# --- the judge ----------------------------------------------------------------------------------


class Hangup(Exception):
    """The child cannot answer any more: out of time, or dead."""

    def __init__(self, answer):
        super().__init__()
        self.answer = answer


class Child:
    """The judge's end of the pipes."""

    def __init__(self):
        request_read, self.requests = os.pipe()
        self.answers, answer_write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.requests)
            os.close(self.answers)
            serve(request_read, answer_write)
        os.close(request_read)
        os.close(answer_write)
        self.over = None
        self.start_clock(0.0)

    def start_clock(self, wall_s):
        """Everything asked from now on must be answered in this time."""
        self.wall_s = wall_s
        self.deadline = time.monotonic() + wall_s
        self.extensions = PATIENCE - 1

    def ask(self, request):
        """Send one request and wait for its answer; after a hang-up always the same answer."""
        if self.over is None:
            try:
                return self._ask(request)
            except Hangup as hangup:
                self.over = hangup.answer
                os.kill(self.pid, SIGKILL)
        return self.over

    def _left(self):
        """Seconds until the deadline. Code that got little of a busy machine has not been slow."""
        left = self.deadline - time.monotonic()
        if left <= 0 and self.extensions and cpu_seconds(self.pid) < self.wall_s / 2:
            self.extensions -= 1
            self.deadline += self.wall_s
            left += self.wall_s
        if left <= 0:
            raise Hangup({"timeout": True})
        return left

    def _ask(self, request):
        data = dumps(request).encode() + b"\n"
        os.set_blocking(self.requests, False)
        received = b""
        while not received.endswith(b"\n"):
            left = self._left()
            writing = [self.requests] if data else []
            readable, writable, _ = select.select([self.answers], writing, [], left)
            if writable:
                try:
                    data = data[os.write(self.requests, data[:65536]) :]
                except BrokenPipeError:
                    raise Hangup({"died": True}) from None
            if readable:
                chunk = os.read(self.answers, 65536)
                received += chunk
                if not chunk or len(received) > MAX_BYTES + 1:
                    raise Hangup({"died": True})
        try:
            answer = loads(received)
            if "value" in answer:
                decode(answer["value"])
            elif not isinstance(answer.get("error"), str):
                raise ValueError("not an answer")
        except (ValueError, TypeError, AttributeError, RecursionError):
            raise Hangup({"died": True}) from None
        return answer


def cpu_seconds(pid):
    """CPU seconds of a process so far; infinite where they cannot be known."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - pathlib loads slowly
            user, system = file.read().rpartition(b")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        return float("inf")


def run_check(child, setup, check, entry_point):
    """Run a HumanEval-style check against the child; the answer's value is None if it passed."""

    def candidate(*args):
        called.append(True)
        answer = child.ask({"call": [encode(item) for item in args]})
        if "value" not in answer:
            raise RuntimeError(
                answer.get("error") or ("timed out" if "timeout" in answer else "it exited")
            )
        return decode(answer["value"])

    namespace: dict = {"__name__": "check"}
    called = []
    try:
        exec(compile(setup, "<setup>", "exec"), namespace)
        namespace[entry_point] = candidate
        exec(compile(check, "<check>", "exec"), namespace)
        if "check" in namespace:
            namespace["check"](candidate)
    except AssertionError:
        return {"error": "a test failed"}
    except Exception as error:
        # A check may fail in any way on what the candidate returned; all of them mean "no".
        return {"error": str(error)[:300] or type(error).__name__}
    # A check that never asks the candidate proves nothing.
    return {"value": None} if called else {"error": "the check made no call"}


def within_budget(answers):
    """The answers as a list, those replaced that would make the report longer than is kept."""
    kept, left = [], MAX_REPORT_BYTES
    for answer in answers:
        left -= len(dumps(answer))
        kept.append(answer if left >= 0 else {"error": TOO_LARGE})
    return kept


def say(nonce, text):
    """One line to the environment; the leading newline ends whatever else was printed."""
    os.write(1, f"\n{nonce} {text}\n".encode())


def main():
    """Fork first, read the job second, report last."""
    child = Child()
    job = loads(sys.stdin.buffer.read())
    say(job["nonce"], "start")
    child.start_clock(job["wall_s"])
    report = {"load": child.ask({"code": job["code"], "entry_point": job["entry_point"]})}
    report["cases"] = []
    if "value" in report["load"]:
        report["cases"] = within_budget(child.ask({"call": case}) for case in job["cases"])
        if job.get("check"):
            report["check"] = run_check(child, job["setup"], job["check"], job["entry_point"])
    os.kill(child.pid, SIGKILL)
    say(job["nonce"], dumps(report))
    os._exit(0)


if __name__ == "__main__":
    main()
