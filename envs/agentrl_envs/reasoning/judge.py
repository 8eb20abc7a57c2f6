"""The verifiers of reasoning-gym, in a process of their own.

Several of them hand the model's answer to `eval`, some through sympy, so an answer is a program:
it could loop for ever, use up the memory, or change the verifier that judges the next answer. They
run in a child with limits that refuses to evaluate anything but values and formulas (`verify`),
and is replaced when it hangs or dies.
"""

from __future__ import annotations

import atexit
import json
import marshal
import queue
import selectors
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentrl.errors import GraderError

START_S = 60.0
"""Importing the generators takes about a second."""
ANSWER_S = 5.0
"""A verdict takes milliseconds; what takes this long is the answer's doing."""
AT_ONCE = 4
"""Judges of a process, so that answers that hang hold up few others. Each starts when all before it
are busy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerVerdict:
    """The score that a verifier gave to one answer."""

    score: float
    """0-1."""
    hung: bool = False
    """Whether the answer made the verifier hang or die; the score is 0 then."""


class Judge:
    """One child process, started on first use and again after it was lost; one caller at a time."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        # Families whose verifier has loaded what it needs.
        self._ready: set[str] = set()

    def ask(self, family: str, answer: str, entry: Mapping[str, Any]) -> AnswerVerdict:
        """The verdict on one answer.

        Raises:
            GraderError: the child cannot be started, or the verifier fails on its own entry.
        """
        request = {"family": family, "answer": None, "entry": dict(entry)}
        child = self._running()
        if family not in self._ready:
            # Some load word lists for seconds, which is not the answer's doing.
            reply = self._exchange(child, request, START_S)
            if reply is None or "error" in reply:
                why = "it did not start" if reply is None else reply["error"]
                raise GraderError(f"reasoning-gym cannot judge {family!r}: {why}")
            self._ready.add(family)
        reply = self._exchange(child, {**request, "answer": answer}, ANSWER_S)
        if reply is None:
            return AnswerVerdict(score=0.0, hung=True)
        return AnswerVerdict(score=min(1.0, max(0.0, float(reply["score"]))))

    def close(self) -> None:
        """End the child. Idempotent; a later `ask` starts another."""
        child, self._child = self._child, None
        self._ready.clear()
        if child is not None:
            child.kill()
            child.communicate()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._child is not None and self._child.poll() is None:
            return self._child
        self.close()
        child = self._child = subprocess.Popen(
            [sys.executable, "-I", "-m", "agentrl_envs.reasoning.verify"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={"PATH": "", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )
        if _read_line(child, START_S) != b"ready\n":
            self.close()
            raise GraderError(
                f"the judge of reasoning-gym did not start in {START_S:g} s; "
                "'python -m agentrl_envs.reasoning.verify' says why"
            )
        return child

    def _exchange(
        self, child: subprocess.Popen[bytes], request: dict[str, Any], timeout_s: float
    ) -> dict[str, Any] | None:
        """The reply, or None if there was none and the child is gone."""
        assert child.stdin is not None
        # Not JSON: a verifier may tell tuples from lists.
        body = marshal.dumps(request, 2)
        try:
            child.stdin.write(len(body).to_bytes(8, "big") + body)
            child.stdin.flush()
            return json.loads(_read_line(child, timeout_s))
        except (OSError, ValueError):  # ValueError: half a line, or none
            self.close()
            return None


def _read_line(child: subprocess.Popen[bytes], timeout_s: float) -> bytes:
    """A line of its stdout; shorter without a newline if it ended or time ran out."""
    assert child.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(child.stdout, selectors.EVENT_READ)
        # Replies are one short write, so what can be read is a whole line.
        return child.stdout.readline() if selector.select(timeout_s) else b""


_JUDGES = tuple(Judge() for _ in range(AT_ONCE))
_idle: queue.LifoQueue[Judge] = queue.LifoQueue()
for _one in _JUDGES:
    _idle.put(_one)
    atexit.register(_one.close)


def judge(family: str, answer: str, entry: Mapping[str, Any]) -> AnswerVerdict:
    """The verdict of whichever judge is idle, the one that was busy last first: it is warm.

    Raises:
        GraderError: as `Judge.ask`.
    """
    chosen = _idle.get()
    try:
        return chosen.ask(family, answer, entry)
    finally:
        _idle.put(chosen)
