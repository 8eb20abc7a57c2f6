"""The child process of `math_answers`: a frame with a label, then one with an answer to it.

Nothing that is compared ends in `eval`: what math-verify evaluates as Python are digits, operators
and brackets, and LaTeX goes through a grammar. Memory, files and processor time are limited.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

from agentrl.machine.processes.child_main import ChildChannel, limit, limit_cpu

CPU_S = 4
"""Processor seconds of a label or an answer. Beyond it the kernel ends the process, in the middle
of a long multiplication, too."""
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
        limit_cpu(CPU_S)
        if "label" in asked:
            label = parse(as_formula(asked["label"]), parsing_timeout=None)  # pyright: ignore[reportArgumentType]
            channel.send({"read": any(not isinstance(found, str) for found in label)})
            continue
        answer = parse(asked["answer"], parsing_timeout=None)  # pyright: ignore[reportArgumentType]
        channel.send({"right": bool(verify(label, answer, timeout_seconds=None))})
