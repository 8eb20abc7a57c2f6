"""Runs untrusted code inside a sandbox and answers calls of it. This file is that program.

It is sent whole to `python3 -I -S`, so it imports only fast modules of the standard library and
nothing of agentrl. It knows nothing that the tested code may not know: no expected value, no
verdict, and no hidden input before all that the model may see of the public ones has left. So
there is nothing here to read, and to forge an answer is to give it.

    stdin   {"code", "entry_point", "cpu_s", "wall_s"}, then any number of {"call": [argument, ...]}
    stdout  "start" before anything is read; then one line for each request, in order:
            {"value": encoded} | {"error": text}

Code that computes for `cpu_s`, or takes `wall_s` on the clock, is ended by SIGPROF or SIGALRM. It
can switch that off; the environment has a limit of its own.
"""

import os

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` takes longer to import than all the rest of this takes to run
    from typing import Any

MAX_DEPTH = 20
MAX_ITEMS = 20_000
MAX_BYTES = 1 << 16
MAX_HASHED = 256
TOO_LARGE = "ValueError: the returned value is too large"
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


def decode(data, depth=0, hashed=None):
    """The value that `encode` was given; ValueError or TypeError for anything else.

    Numbers can be chosen so that a set or a dict of them takes time that grows with the square of
    their count, so there may be few of these.
    """
    hashed = [MAX_HASHED] if hashed is None else hashed
    depth += 1
    if depth > MAX_DEPTH + 2:
        raise ValueError("not an encoded value")
    if isinstance(data, list):
        return [decode(item, depth, hashed) for item in data]
    if not isinstance(data, dict):
        return data
    tag, items = data.get("t"), data.get("v", ())
    if tag == "object":
        return Opaque(str(items)[:80])
    if tag not in ("tuple", "set", "frozenset", "dict"):
        raise ValueError("not an encoded value")
    if tag == "dict":
        items = [(decode(key, depth, hashed), decode(item, depth, hashed)) for key, item in items]
        keys = [key for key, _ in items]
    else:
        items = [decode(item, depth, hashed) for item in items]
        keys = items if tag != "tuple" else []
    hashed[0] -= sum(type(key) is not str for key in keys)
    if hashed[0] < 0:
        raise ValueError("a set or a dict is too large")
    return {"tuple": tuple, "set": set, "frozenset": frozenset, "dict": dict}[tag](items)


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


def own_streams():
    """Files for our lines, taken away from stdin and stdout, which lead nowhere from now on."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.dup(1)
    quiet = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(quiet, stream)
    return requests, answers


def set_timers(cpu_s, wall_s):
    """Let the kernel end us after so many seconds of a processor, or on the clock."""
    # Not `signal`, which loads `enum`.
    import _signal  # pyright: ignore[reportMissingImports] - it has no stub

    _signal.setitimer(_signal.ITIMER_PROF, cpu_s)
    _signal.setitimer(_signal.ITIMER_REAL, wall_s)


def serve():
    """Load the code of the first request, then answer calls of it until stdin ends."""
    requests, answers = own_streams()
    os.write(answers, b"start\n")
    namespace: dict = {"__name__": "solution"}
    function = noop
    for line in requests:
        request = loads(line)
        try:
            if "code" in request:
                set_timers(request["cpu_s"], request["wall_s"])
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


if __name__ == "__main__":
    serve()
