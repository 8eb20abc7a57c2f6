"""Runs untrusted code inside a sandbox and answers calls of it. This file is that program.

It is sent whole to `python3 -I -S`, so it imports only fast modules of the standard library and
nothing of agentrl. It knows nothing that the tested code may not know: no expected value, no
verdict, and no hidden input before all that the model may see of the public ones has left. So
there is nothing here to read, and to forge an answer is to give it.

    stdin   {"code", "entry_point", "cpu_s", "wall_s"}, then any number of {"call": [argument,
            ...]}, of a check also with "named": {name: argument}
    stdout  "start" before anything is read; then one line for each request, in order:
            {"value": encoded} | {"error": text, "kinds": [class of the exception, its base, ...]};
            for a call with "named" also "changed": {place or name: encoded}, the arguments that the
            code has changed

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
MAX_CARRIED = 1000
TOO_LARGE = "ValueError: the returned value is too large"
_PLAIN = (type(None), bool, int, float, str)
_SCALARS: "tuple[tuple[Any, Any], ...]" = (
    (str, str.__str__),
    (int, int.__int__),
    (float, float.__float__),
)
_CONTAINERS: "tuple[Any, ...]" = (list, tuple, dict, set, frozenset)


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
    """A plain Python value as JSON data; all but lists is tagged, and what is not plain is named.

    A subclass is sent as the plain values in it (a `Counter` as a dict, a named tuple as a tuple),
    an iterator as the values that it gives, `MAX_CARRIED` at most.
    """
    budget = [MAX_ITEMS] if budget is None else budget
    budget[0] -= 1
    if budget[0] < 0 or depth > MAX_DEPTH:
        raise ValueError("the returned value is too large")
    kind = type(value)
    if kind in _PLAIN:
        return value
    name = kind.__name__
    for base, exactly in _SCALARS:
        if isinstance(value, base):
            return exactly(value)
    for base in _CONTAINERS:
        if isinstance(value, base):
            # Their own methods, not those of a subclass.
            if base is dict:
                items = [part for pair in dict.items(value) for part in pair]
            else:
                items = base.__iter__(value)
            items = [encode(item, depth + 1, budget) for item in items]
            return items if base is list else {"t": base.__name__, "v": items}
    if kind is complex:
        return {"t": "complex", "v": [value.real, value.imag]}
    if kind is bytes:
        return {"t": "bytes", "v": value.hex()}
    if kind is range:
        return {"t": "range", "v": [value.start, value.stop, value.step]}
    if hasattr(kind, "__next__"):
        items = []
        for item in value:
            if len(items) == MAX_CARRIED:
                return {"t": "iterator", "v": items, "name": name, "more": True}
            items.append(encode(item, depth + 1, budget))
        return {"t": "iterator", "v": items, "name": name}
    return {"t": "object", "v": name}


def noop():
    """Stands for the function until the code has run."""


class Opaque:
    """Stands for a value that is no plain data; equal to nothing but itself."""

    def __init__(self, name):
        self.name = name

    def __repr__(self):
        return f"<{self.name} object>"


class Carried(Opaque):
    """Stands for an iterator: gives the values that were carried over."""

    def __init__(self, name, items, more):
        super().__init__(name)
        self.items = iter(items)
        self.more = more

    def __iter__(self):
        return self

    def __next__(self):
        for item in self.items:
            return item
        if self.more:
            raise RuntimeError(f"only the first {MAX_CARRIED} values of an iterator are here")
        raise StopIteration


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
    if tag == "complex":
        return complex(*items)
    if tag == "bytes":
        return bytes.fromhex(items)
    if tag == "range":
        return range(*items)
    if tag not in ("tuple", "set", "frozenset", "dict", "iterator"):
        raise ValueError("not an encoded value")
    items = [decode(item, depth, hashed) for item in items]
    if tag == "iterator":
        return Carried(str(data.get("name"))[:80], items, bool(data.get("more")))
    keys = items if tag in ("set", "frozenset") else []
    if tag == "dict":
        if len(items) % 2:
            raise ValueError("not an encoded value")
        keys = items[::2]
        items = [(key, items[2 * place + 1]) for place, key in enumerate(keys)]
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


def refused(error):
    """The answer for an exception of the tested code."""
    kinds = [kind.__name__ for kind in type(error).__mro__ if issubclass(kind, BaseException)]
    return {"error": explain(error), "kinds": kinds[:20]}


def called(function, request):
    """The answer for a call; with the arguments that it changed where these are asked for."""
    given = [decode(item) for item in request["call"]]
    named = {name: decode(item) for name, item in request.get("named", {}).items()}
    answer: dict = {"value": encode(function(*given, **named))}
    if "named" in request:
        before = {**dict(enumerate(request["call"])), **request["named"]}
        after = {**dict(enumerate(given)), **named}
        changed = {str(key): encode(value) for key, value in after.items()}
        answer["changed"] = {
            str(key): changed[str(key)] for key in after if changed[str(key)] != before[key]
        }
    return answer


def own_streams():
    """Files for our lines, taken away from stdin and stdout, which lead nowhere from now on."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.dup(1)
    quiet = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(quiet, stream)
    return requests, answers


def set_timers(cpu_s, wall_s):
    """Set the timers with which the kernel ends us, by seconds of a processor and of the clock."""
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
                answer = called(function, request)
                dumps(answer)  # an integer of too many digits fails here
        except BaseException as error:
            # The tested code may raise anything, SystemExit included; that is its answer.
            answer = refused(error)
        data = dumps(answer).encode()
        if len(data) > MAX_BYTES:
            data = dumps({"error": TOO_LARGE}).encode()
        os.write(answers, data + b"\n")
    os._exit(0)


if __name__ == "__main__":
    serve()
