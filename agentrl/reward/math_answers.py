"""Answers of mathematics, compared by math-verify as a function of `reward.functions`.

math-verify gives an answer to sympy, which may compute for ever (`9**9**9**9`), and its own time
limits are signals, which threads do not get. So it runs without them in children that are killed
(`math_child`). One child judges answer after answer; it is replaced when it hangs or dies.
"""

from __future__ import annotations

import asyncio
import atexit
import importlib.util
import math
import queue
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from agentrl.errors import ConfigError, GraderError
from agentrl.machine.processes.child import ChildEnded, ChildProcess
from agentrl.machine.processes.child_main import OUT_OF_MEMORY
from agentrl.plugins.distribution import install_command
from agentrl.served.waiting import in_line
from agentrl.types import Explanation, RewardValue, Task, Trajectory
from agentrl.types.thoughts import opening_before, split_thought

EXTRA = "math"
"""Of `pyproject.toml`."""
LIBRARIES = ("math_verify", "latex2sympy2_extended", "antlr4", "sympy")
AT_ONCE = 4
"""Children of a process, so that answers that hang hold up few others. Each starts when all before
it are busy."""
START_S = 120.0
"""The imports take about a second, and longer on a machine that has much to do."""
ANSWER_S = 30.0
"""Wall clock of an answer, or of a label; their processor time ends most before."""
ANSWER_CPU_S, HASTY_CPU_S = 2.0, 0.25
"""Processor seconds of an answer; an honest one takes a few hundredths. Each answer of a version of
the policy that has no verdict lowers its limit, to the second number with `MOST_UNJUDGED`."""
MOST_UNJUDGED = 3
"""A policy that learns to write what computes for ever pays nobody, and must not stop the run."""
TAIL_CHARS = 10_000
"""What is read of an answer: its end. The answer stands there, and regular expressions of
math-verify take time with the square of the length."""
_TRIES = 2
"""A child may be killed for what other processes do to the machine."""
_CHILD = "agentrl.reward.math_child:serve"


@dataclass(frozen=True, slots=True, kw_only=True)
class MathVerdict:
    """Result of one comparison."""

    right: bool
    """Whether the answer equals the label."""
    unjudged: bool = False
    """Whether the comparison took too long, or ended its process; `right` is False then."""


class MathJudge:
    """One child process, started on first use and again after it was lost; one caller at a time."""

    def __init__(self, target: str = _CHILD, *, answer_s: float = ANSWER_S) -> None:
        """Take the function that the child runs, and the limit of an answer in seconds."""
        self._target, self._answer_s = target, answer_s
        self._child: ChildProcess | None = None

    @property
    def pid(self) -> int | None:
        """Process id of the child; None while there is none."""
        return None if self._child is None else self._child.pid

    def ask(self, answer: str, label: str, cpu_s: float = ANSWER_CPU_S) -> MathVerdict:
        """Compare an answer with a label, in `cpu_s` seconds of processor time.

        Raises:
            GraderError: the child cannot be started, or the label cannot be read.
        """
        for left in reversed(range(_TRIES)):
            child = self._running()
            try:
                known = child.ask({"label": label}, timeout_s=self._answer_s).head["read"]
            except (ChildEnded, TimeoutError) as error:
                if left and not _own_doing(error):
                    continue
                raise GraderError(
                    f"math-verify cannot read the label {label[:200]!r} in time or memory: {error}"
                ) from error
            if not known:
                raise GraderError(
                    f"math-verify finds no formula in the label {label[:200]!r}; expected one, as "
                    r"'1/2', '\frac{1}{2}', '{1, 2}' or text with \boxed{...}"
                )
            try:
                asked = {"answer": answer, "cpu_s": cpu_s}
                verdict = child.ask(asked, timeout_s=self._answer_s).head
            except (ChildEnded, TimeoutError) as error:
                if left and not _own_doing(error):
                    continue
                return MathVerdict(right=False, unjudged=True)
            return MathVerdict(right=verdict["right"], unjudged=verdict["unjudged"])
        raise AssertionError("the last try returns or raises")

    def close(self) -> None:
        """End the child. Idempotent; a later `ask` starts another."""
        child, self._child = self._child, None
        if child is not None:
            child.close()

    def _running(self) -> ChildProcess:
        if self._child is not None and self._child.alive:
            return self._child
        self.close()
        env = {"PATH": "", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        child = ChildProcess(self._target, env=env, cwd="/")
        try:
            reply = child.receive(START_S).head
        except (ChildEnded, TimeoutError) as error:
            reply = {"error": str(error) or f"it took over {START_S:g} s"}
        if "error" in reply:
            child.close()
            raise GraderError(f"math-verify does not start: {reply['error']}")
        self._child = child
        return child


def _own_doing(error: ChildEnded | TimeoutError) -> bool:
    """Whether what was judged, and nothing outside, took the time or the memory."""
    ends = (-signal.SIGXCPU, OUT_OF_MEMORY)
    return isinstance(error, TimeoutError) or error.status in ends


_JUDGES = tuple(MathJudge() for _ in range(AT_ONCE))
_idle: queue.LifoQueue[MathJudge] = queue.LifoQueue()
for _one in _JUDGES:
    _idle.put(_one)
    atexit.register(_one.close)
_threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="math-verify")


class PatienceBudget:
    """Limit of an answer's processor time, by how many of its policy's version had no verdict."""

    def __init__(self) -> None:
        """Nothing was judged yet."""
        self._lock = threading.Lock()
        self._version, self._unjudged = -1, 0

    def cpu_s(self, version: int) -> float:
        """Processor seconds that the next answer of a version has; a newer version starts anew."""
        with self._lock:
            if version > self._version:
                self._version, self._unjudged = version, 0
            share = min(1.0, self._unjudged / MOST_UNJUDGED)
            return ANSWER_CPU_S * (HASTY_CPU_S / ANSWER_CPU_S) ** share

    def count(self, verdict: MathVerdict) -> None:
        """Take note of a verdict."""
        with self._lock:
            self._unjudged += verdict.unjudged


_patience = PatienceBudget()


def compare(answer: str, label: str, version: int = 0) -> MathVerdict:
    """The verdict of whichever judge is idle, the one that was busy last first.

    Args:
        answer: text of the policy.
        label: what is right.
        version: of the policy that wrote it.

    Raises:
        GraderError: as `MathJudge.ask`.
    """
    chosen = _idle.get()
    try:
        verdict = chosen.ask(answer, label, _patience.cpu_s(version))
    finally:
        _idle.put(chosen)
    _patience.count(verdict)
    return verdict


async def math_verify(trajectory: Trajectory, task: Task) -> RewardValue:
    """1 if the last answer of the policy equals the label of the task as mathematics, else 0.

    The label is a number or a formula, `1/2`, `\\frac{1}{2}`, `{1, 2}`, `(1, 2]`, `50%`; or text
    that marks it by `\\boxed{}`, dollar signs or GSM8K's `####`. The answer is the last formula or
    number that math-verify finds in the last 10,000 characters of what the last assistant turn
    says behind its thought, boxed ones first. Forms that are equal count as equal, so `2 + 2` is a
    right answer to `4`.

    The part `unjudged` is 1 where the comparison ran into its limit of time or memory: the answer
    gets 0. Once three answers of a version of the policy did, its others have a quarter of a second
    of processor time, so that they cannot stop the run. No time counts against
    `rollout.env_timeout_s`.

    Raises:
        GraderError: a label that holds no formula, or math-verify does not start.
    """
    label = _label_text(task)
    text = next((turn.text for turn in reversed(trajectory.turns) if turn.role == "assistant"), "")
    said = ""
    if isinstance(text, str):
        _, said = split_thought(text, begun=opening_before(trajectory.prompt_text))
    if not said.strip():
        reason = f"The last turn {'says nothing behind its thought' if text else 'is empty'}."
        why = Explanation(reference=label, reason=reason)
        return RewardValue(value=0.0, parts={"unjudged": 0.0}, explanation=why)
    # The judge has a limit of its own.
    version = max(trajectory.policy_versions, default=0)
    with in_line():
        verdict = await asyncio.get_running_loop().run_in_executor(
            _threads, compare, said[-TAIL_CHARS:], label, version
        )
    return RewardValue(
        value=float(verdict.right),
        parts={"unjudged": float(verdict.unjudged)},
        explanation=Explanation(reference=label, reason=_reason(verdict)),
    )


def _reason(verdict: MathVerdict) -> str:
    if verdict.unjudged:
        return "The comparison with the label ran into its limit of time or memory."
    return f"The last formula of the answer {'equals' if verdict.right else 'is not'} the label."


def check_math() -> None:
    """Check before anything runs that the library is installed.

    Raises:
        ConfigError: it is not; names the extra.
    """
    missing = [name for name in LIBRARIES if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"it needs {', '.join(missing)}, which this Python has not: {install_command(EXTRA)}"
        )


math_verify.check_args = check_math  # type: ignore[attr-defined]
math_verify.needs_label = True  # type: ignore[attr-defined]


def _label_text(task: Task) -> str:
    label = task.label
    number = isinstance(label, int | float) and not isinstance(label, bool)
    if number and math.isfinite(label):
        label = str(label)
    if not isinstance(label, str) or not label.strip():
        raise GraderError(
            f"task {task.id!r}: its label is {label!r:.200}, expected a number or a text with a "
            "formula; correct the data, or the dataset's key of the label"
        )
    return label
