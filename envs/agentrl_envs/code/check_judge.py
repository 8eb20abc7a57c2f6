"""Runs a HumanEval-style `check` in a sandbox of its own. This file is that program.

It is sent after the functions of `harness`, whose source stands before it. The tested code is in
another sandbox, which sees neither this process nor a file of it; the environment carries every
call there and the answer back, and nothing but plain data can cross.

    stdin   {"setup", "check", "entry_point"}, then one answer of `harness` for each call
    stdout  "start" before anything is read; then any number of {"call": [argument, ...]}, and at
            last {"verdict": "" if the check passed, else why not}
"""

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from agentrl_envs.code.harness import MAX_ITEMS, decode, dumps, encode, loads, own_streams

PR_SET_DUMPABLE = 4


def hide():
    """Let no process of our user read our memory or our open files.

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
        self.calls = 0

    def __call__(self, *args):
        """The value that the tested function returned; RuntimeError if it returned none."""
        self.calls += 1
        call = {"call": [encode(item) for item in args]}
        os.write(self.answers, dumps(call).encode() + b"\n")
        try:
            answer = loads(self.requests.readline())
            if "value" in answer:
                return decode(answer["value"], 0, [MAX_ITEMS])
            error = str(answer["error"])
        except (ValueError, TypeError, KeyError, RecursionError):
            # Not one of those that a check may expect.
            error = "no answer"
        raise RuntimeError(error)


def verdict_on(candidate, job):
    """Why the candidate does not pass; empty if it does."""
    namespace: dict = {"__name__": "check"}
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
    # A check that never asks the candidate proves nothing.
    return "" if candidate.calls else "the check made no call"


def judge():
    """Hide, take the job, and say the verdict."""
    hide()
    requests, answers = own_streams()
    os.write(answers, b"start\n")
    verdict = verdict_on(Candidate(requests, answers), loads(requests.readline()))
    os.write(answers, dumps({"verdict": verdict}).encode() + b"\n")
    os._exit(0)


if __name__ == "__main__":
    judge()
