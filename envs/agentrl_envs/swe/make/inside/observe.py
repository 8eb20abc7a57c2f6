"""Run programs made from tests step by step and write down what each step gives.

It runs inside the sandbox, where agentrl is not installed: standard library only. Takes the file of
a request and the file for the answer. A request holds scripts, see `Script.request`; the answer has
for each the runs with each set of parameters, and for each run what its steps gave, in order.
"""

import ast
import importlib
import itertools
import json
import os
import signal
import sys

_FILE = "<snippet>"
_ROOT = os.getcwd() + os.sep  # noqa: PTH109
_MOST_RUNS = 60
_MOST_ITEMS = 40
_MOST_TEXT = 4000
_MOST_LITERAL = 400
_RUN_S = 5.0


class Slow(BaseException):
    """A run takes too long; no library catches this by mistake."""


def main():
    """Answer the request of the first file in the second."""
    with open(sys.argv[1], encoding="utf-8") as file:  # noqa: PTH123
        scripts = json.load(file)
    signal.signal(signal.SIGALRM, _too_slow)
    answers = [_script(script) for script in scripts]
    with open(sys.argv[2], "w", encoding="utf-8") as file:  # noqa: PTH123
        json.dump(answers, file)


def _too_slow(number, frame):
    raise Slow


def _script(script):
    runs = []
    try:
        for bound in itertools.islice(_bindings(script), _MOST_RUNS):
            runs.append({"bound": bound, **_run(script, bound)})
    except Exception as error:
        return {"error": _error(error), "runs": runs}
    return {"error": "", "runs": runs}


def _bindings(script):
    """Each set of parameters as assignments."""
    choices = []
    for names, over, sources in script["cases"]:
        if sources is None:
            names_here = {}
            for code in script["prelude"]:
                exec(_compiled(code, "exec"), names_here)
            values = list(itertools.islice(eval(_compiled(over, "eval"), names_here), _MOST_RUNS))
            sources = [text for text in map(_literal, values) if text]
        choices.append([f"{names} = {source}" for source in sources])
    return map(list, itertools.product(*choices))


def _run(script, bound):
    state = {
        "names": {"__name__": "snippet"},
        "seen": [],
        "marks": script.get("marks", []),
        "depths": {},
    }
    for code in script["prelude"]:
        exec(_compiled(code, "exec"), state["names"])
    state["given"] = set(state["names"])
    signal.setitimer(signal.ITIMER_REAL, _RUN_S)
    try:
        for line in bound:
            exec(_compiled(line, "exec"), state["names"])
        _steps(state, script["steps"], [])
    except Slow:
        state["seen"].append([[], {"slow": True}, {}])
    except Exception as error:
        # Of a parameter: a step writes its own errors down.
        state["seen"].append([[], {"error": _error(error), "message": str(error)}, {}])
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return {"seen": state["seen"], "depths": state["depths"]}


def _steps(state, steps, path):
    """True if all of them could be run."""
    for number, step in enumerate(steps):
        here = [*path, number]
        if step["do"] == "loop":
            if not _loop(state, step, here):
                return False
            continue
        names = _literals(state, step["code"])
        look = _value if step["do"] == "probe" else _statement
        found = look(state, step["code"])
        state["seen"].append([here, found, names])
        if "error" in found and step["do"] != "raises":
            return False
    return True


def _loop(state, step, path):
    try:
        values = list(
            itertools.islice(eval(_compiled(step["code"], "eval"), state["names"]), _MOST_ITEMS)
        )
    except Exception as error:
        state["seen"].append([path, {"error": _error(error), "message": str(error)}, {}])
        return False
    for number, value in enumerate(values):
        state["names"]["__item__"] = value
        exec(_compiled(f"{step['target']} = __item__", "exec"), state["names"])
        if not _steps(state, step["steps"], [*path, number]):
            return False
    return True


def _value(state, text):
    try:
        _watch(state)
        try:
            value = eval(_compiled(text, "eval"), state["names"])
        finally:
            sys.setprofile(None)
        shown = repr(value)
    except Exception as error:
        return {"error": _error(error), "message": str(error)[:_MOST_TEXT]}
    return {"value": shown[:_MOST_TEXT], "type": type(value).__name__}


def _statement(state, code):
    try:
        _watch(state)
        try:
            exec(_compiled(code, "exec"), state["names"])
        finally:
            sys.setprofile(None)
    except Exception as error:
        return {"error": _error(error), "message": str(error)[:_MOST_TEXT]}
    return {"done": True}


def _watch(state):
    """Write down how many calls below the snippet each marked function is called."""
    marks = state["marks"]
    if not marks:
        return

    def on_call(frame, event, argument):
        if event != "call":
            return
        code = frame.f_code
        name = getattr(code, "co_qualname", code.co_name).replace("<locals>.", "")
        for number, (file, function) in enumerate(marks):
            if code.co_filename == _ROOT + file and name == function:
                depth, at = 0, frame
                while at is not None and at.f_code.co_filename != _FILE:
                    depth += at.f_code.co_filename.startswith(_ROOT)
                    at = at.f_back
                known = state["depths"].get(number)
                if at is not None and (known is None or depth < known):
                    state["depths"][number] = depth

    sys.setprofile(on_call)


def _literals(state, text):
    """Values, as source, of the names in a piece of code that the script itself has bound."""
    found = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Name) and node.id in state["names"]:
            source = node.id not in state["given"] and _literal(state["names"][node.id])
            if source:
                found[node.id] = source
    return found


def _literal(value):
    """Source that gives an equal value; empty if there is none that is short."""
    try:
        text = repr(value)
        same = len(text) <= _MOST_LITERAL and ast.literal_eval(text) == value
    except Exception:
        return ""
    return text if same else ""


def _error(error):
    kind = type(error)
    plain = kind.__module__ in ("builtins", "__main__")
    # The name that a user can import it by, which is seldom that of the module it is defined in.
    root = kind.__module__.partition(".")[0]
    short = not plain and getattr(importlib.import_module(root), kind.__name__, None) is kind
    prefix = "" if plain else f"{root}." if short else f"{kind.__module__}."
    return f"{prefix}{kind.__qualname__}"


def _compiled(text, mode):
    return compile(text, _FILE, mode)


main()
