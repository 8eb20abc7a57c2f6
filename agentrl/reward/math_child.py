"""The child process of `math_answers`: a frame with a label, then one with an answer to it.

Each answer is judged in a fork, which its limits end; the child, with its imports, lives on.
Nothing that is compared ends in `eval`: what math-verify evaluates as Python are digits, operators
and brackets, and LaTeX goes through a grammar. Memory, files and processor time are limited.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from agentrl.machine.processes.child_main import OUT_OF_MEMORY, ChildChannel, limit, limit_cpu

LABEL_CPU_S = 4
"""Processor seconds of a label. Beyond it, as beyond the limit of an answer, the kernel ends the
process, in the middle of a long multiplication, too."""
RIGHT, WRONG = 10, 11
"""Exit statuses of a fork; neither Python's own nor those of a shell."""
MEMORY_BYTES = 4 * 2**30
"""Address space; the imports alone reserve about half a GiB."""
MARKED = re.compile(r"\\boxed|(?<!\\)\$[^$]+\$|\\\(|\\\[")
"""What marks where the formula of a text is. A single dollar sign is a price."""
SCIENTIFIC = re.compile(r"[+-]?\d+(?:\.\d+)?[eE][+-]?\d{1,3}")
"""LaTeX would read the `e` as Euler's number."""


def as_formula(label: str) -> str:
    """The label as math-verify finds the whole of it; `####` is GSM8K's.

    Example:
        >>> as_formula("{1, 2}")
        '$\\\\{1, 2\\\\}$'
        >>> as_formula("48 / 2 = 24 #### 24"), as_formula("so $x = 2$")
        ('$24$', 'so $x = 2$')
        >>> as_formula("$100"), as_formula("1e-2")
        ('$100$', '$0.01$')
    """
    label = label.rpartition("####")[2].strip()
    if MARKED.search(label):
        return label
    if SCIENTIFIC.fullmatch(label):
        label = f"{Decimal(label):f}"
    label = label.removeprefix("$")
    if label.startswith("{") and label.endswith("}"):
        label = f"\\{{{label[1:-1]}\\}}"
    return f"${label}$"


def serve(channel: ChildChannel) -> None:
    """Reply until the parent closes the channel; `ChildProcess` calls it."""
    channel.end_with_parent()
    try:
        from math_verify import parse, verify
    except ImportError as error:
        channel.send({"error": f"{type(error).__name__}: {error}"})
        return
    limit(address_bytes=MEMORY_BYTES, file_bytes=0)
    channel.send({"ready": True})
    label: list[Any] = []
    while True:
        asked = channel.receive().head
        if "label" in asked:
            limit_cpu(LABEL_CPU_S)
            label = parse(as_formula(asked["label"]), parsing_timeout=None)  # pyright: ignore[reportArgumentType]
            channel.send({"read": any(not isinstance(found, str) for found in label)})
            continue

        def is_right(text: str = asked["answer"], label: list[Any] = label) -> bool:
            found = parse(text, parsing_timeout=None)  # pyright: ignore[reportArgumentType]
            return bool(verify(label, found, timeout_seconds=None))

        status = _judged_in_fork(is_right, asked["cpu_s"])
        channel.send({"right": status == RIGHT, "unjudged": status not in (RIGHT, WRONG)})


def _judged_in_fork(is_right: Callable[[], bool], cpu_s: float) -> int:
    """The exit status of a fork that judges; negative for the signal that ended it.

    What ends it from outside ends this process, too, so that the parent asks another.
    """
    if (pid := os.fork()) == 0:
        try:
            signal.signal(signal.SIGPROF, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_PROF, cpu_s)
            os._exit(RIGHT if is_right() else WRONG)
        except BaseException:  # a fork must never come back; what has no verdict is not judged
            os._exit(OUT_OF_MEMORY)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status == -signal.SIGKILL:
        os.kill(os.getpid(), signal.SIGKILL)
    return status
