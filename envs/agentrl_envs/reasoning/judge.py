"""The verifiers of reasoning-gym, in a process of their own.

Several of them hand the model's answer to `eval`, some through sympy, so an answer is a program:
it could loop for ever, use up the memory, or change the verifier that judges the next answer. They
run in a child with limits that refuses to evaluate anything but values and formulas (`verify`),
and is replaced when it hangs or dies.
"""

from __future__ import annotations

import atexit
import marshal
import queue
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentrl.errors import GraderError
from agentrl.machine.processes.child import ChildEnded, ChildProcess

START_S = 60.0
"""Importing the generators takes about a second."""
ANSWER_S = 5.0
"""A verdict takes milliseconds; what takes this long is the answer's doing."""
_VERIFY = "agentrl_envs.reasoning.verify:serve"
_NO_REPLY = (ChildEnded, TimeoutError, ValueError)
"""`ValueError`: what the child sent is no frame."""
_TRIES = 2
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

    def __init__(self, target: str = _VERIFY) -> None:
        """Take the function that the child runs."""
        self._target = target
        self._child: ChildProcess | None = None
        # Families whose verifier has loaded what it needs.
        self._ready: set[str] = set()

    def ask(self, family: str, answer: str, entry: Mapping[str, Any]) -> AnswerVerdict:
        """The verdict on one answer.

        A child that ends with it is asked once more, since a machine that is short of memory kills
        one, too; each has judged the entry's own answer before.

        Raises:
            GraderError: the child cannot be started, or the verifier fails on its own entry.
        """
        request = {"family": family, "entry": dict(entry)}
        # Packed here, since what cannot be packed is no doing of the answer. Not JSON: a verifier
        # may tell tuples from lists.
        warm, judged = (marshal.dumps({**request, "answer": text}, 2) for text in (None, answer))
        for _ in range(_TRIES):
            child = self._warm(family, warm)
            try:
                reply = child.ask({}, judged, timeout_s=ANSWER_S).head
            except TimeoutError:
                break
            except _NO_REPLY:
                self.close()
                continue
            return AnswerVerdict(score=min(1.0, max(0.0, float(reply["score"]))))
        return AnswerVerdict(score=0.0, hung=True)

    def _warm(self, family: str, warm: bytes) -> ChildProcess:
        """The child, with what the verifier loads: some word lists take seconds, which is not the
        answer's doing."""
        child = self._running()
        if family in self._ready:
            return child
        try:
            reply = child.ask({}, warm, timeout_s=START_S).head
        except _NO_REPLY as error:
            reply = {"error": str(error) or f"it took over {START_S:g} s"}
        if "error" in reply:
            raise GraderError(f"reasoning-gym cannot judge {family!r}: {reply['error']}")
        self._ready.add(family)
        return child

    def close(self) -> None:
        """End the child. Idempotent; a later `ask` starts another."""
        child, self._child = self._child, None
        self._ready.clear()
        if child is not None:
            child.close()

    def _running(self) -> ChildProcess:
        if self._child is None or not self._child.alive:
            self.close()
            env = {"PATH": "", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
            self._child = ChildProcess(self._target, env=env, cwd="/")
        return self._child


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
