"""Runs a HumanEval-style `check` in a sandbox of its own. This file is that program.

It is sent after the functions of `harness`, whose source stands before it. The tested code is in
another sandbox, which sees neither this process nor a file of it; the environment carries every
call there and the answer back, and nothing but plain data can cross.

    stdin   {"setup", "check", "entry_point"}, then one answer of `harness` for each call
    stdout  "start" before anything is read; then any number of {"call": [argument, ...], "named":
            {name: argument}}, and at last {"verdict": "" if the check passed, else why not}
"""

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from agentrl_envs.code.harness import MAX_ITEMS, decode, dumps, encode, loads, own_streams

PR_SET_DUMPABLE = 4


def hide():
    """Forbid every process of our user to read our memory or our open files.

    Where sandboxes have namespaces nobody could; with the backend `process` and no root, every
    program is of one user.
    """
    try:
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    except (ImportError, OSError, AttributeError):
        return  # an interpreter without ctypes, or no Linux


class Candidate:
    """Stands for the tested function: calls go out on one stream, answers come in on the other."""

    def __init__(self, requests, answers):
        self.requests = requests
        self.answers = answers
        self.namespace: dict = {"__name__": "check"}
        self.calls = 0
        self.silent = False

    def __call__(self, *args, **named):
        """The value that the tested function returned, or what it raised.

        Arguments that it has changed are changed here as well.
        """
        self.calls += 1
        given = {**{str(place): item for place, item in enumerate(args)}, **named}
        call = {
            "call": [encode(item) for item in args],
            "named": {name: encode(item) for name, item in named.items()},
        }
        os.write(self.answers, dumps(call).encode() + b"\n")
        try:
            answer = loads(self.requests.readline())
            if "value" in answer:
                for key, value in answer.get("changed", {}).items():
                    change(given[key], decode(value, 0, [MAX_ITEMS]))
                return decode(answer["value"], 0, [MAX_ITEMS])
            error = self.raised(answer["kinds"], str(answer["error"]))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            # Whatever a check expects, it is not this.
            self.silent = True
            error = RuntimeError("no answer")
        raise error

    def raised(self, kinds, text):
        """The exception of the tested code: its first class that there is here, too."""
        import builtins

        for name in kinds:
            kind = self.namespace.get(name) or getattr(builtins, str(name), None)
            if isinstance(kind, type) and issubclass(kind, Exception):
                try:
                    return kind(text)
                except TypeError:
                    break  # one that wants other arguments
        return RuntimeError(text)


def change(argument, value):
    """Make a list, dict or set of the check what the tested code has made of it."""
    if type(argument) is not type(value):
        return
    if type(argument) is list:
        argument[:] = value
    elif type(argument) in (dict, set):
        argument.clear()
        argument.update(value)


def verdict_on(candidate, job):
    """Why the candidate does not pass; empty if it does."""
    namespace = candidate.namespace
    try:
        exec(compile(job["setup"], "<setup>", "exec"), namespace)
        namespace[job["entry_point"]] = candidate
        exec(compile(job["check"], "<check>", "exec"), namespace)
        if "check" in namespace:
            namespace["check"](candidate)
    except AssertionError:
        return "a test failed"
    except Exception as error:
        # A check may fail in any way on what the candidate returned; all of them mean "no".
        return str(error)[:300] or type(error).__name__
    if candidate.silent:
        return "the code gave no answer"
    # A check that never asks the candidate proves nothing.
    return "" if candidate.calls else "the check made no call"


def judge():
    """Hide, take the job, and write the verdict."""
    hide()
    requests, answers = own_streams()
    os.write(answers, b"start\n")
    verdict = verdict_on(Candidate(requests, answers), loads(requests.readline()))
    os.write(answers, dumps({"verdict": verdict}).encode() + b"\n")
    os._exit(0)


if __name__ == "__main__":
    judge()
