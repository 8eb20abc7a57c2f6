"""The child process of `judge`: frames with a marshalled request in, frames with a reply out.
A request without an answer only makes its verifier ready.

What an answer may make it evaluate is decided on the code object, just before it runs: no
attribute, no import, no function of its own, no names but those of a formula. So whichever verifier
evaluates text, today or in a later release, the text cannot reach anything: neither the machine,
nor the expected answer in a variable beside it, nor an `Integral` that sympy would differentiate
back into the question.
"""

from __future__ import annotations

import dis
import marshal
import os
import re
import signal
import sys
from types import CodeType
from typing import Any

from agentrl.machine.processes.child_main import ChildChannel, limit
from agentrl_envs.reasoning.forms import refusal

NUMBERS = ("Float", "Integer", "Rational", "Symbol")
"""What sympy's parser puts around the numbers and letters of a formula."""
FUNCTIONS = ("Abs", "abs", "exp", "ln", "log", "sqrt")
ANGLES = ("sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh", "asin", "acos", "atan")
NAMES = frozenset({*NUMBERS, *FUNCTIONS, *ANGLES, "pi"})
VARIABLE = re.compile("[A-Za-z]")
NO_VARIABLE = frozenset("NOQS")
"""Functions of sympy; `S` would parse a text of its own."""
SETTINGS = {"word_ladder": {"min_word_length": 3, "max_word_length": 5}}
"""Of verifiers that know by default less than their generators can make."""
EVENTS = ("os.", "subprocess.", "socket.", "shutil.", "ctypes.", "pty.", "signal.", "winreg.")
MEMORY_BYTES = 4 * 2**30
"""Address space; the imports alone reserve about one GiB."""

ALARM_S = 20
"""Longer than `judge` waits."""

SYMPY_NAMES = compile("from sympy import *", "<string>", "exec")
"""How sympy's parser makes the names that a formula may use."""

_guarding = False


class Refused(Exception):
    """An answer wanted to evaluate more than a value or a formula."""


def hook(event: str, args: tuple[Any, ...]) -> None:
    """See every evaluation and every call to the system while an answer is judged."""
    if not _guarding:
        return
    if event == "exec":
        check_code(args[0])
    elif event.startswith(EVENTS) or (event == "open" and _writes(args)):
        raise Refused(f"an answer may not use {event}")


def check_code(code: Any) -> None:
    """Refuse code from text unless it is a value or a formula."""
    if not isinstance(code, CodeType) or not code.co_filename.startswith("<"):
        return  # a module that a verifier imports late
    if code == SYMPY_NAMES:
        return
    if any(isinstance(const, CodeType) for const in code.co_consts):
        raise Refused("an answer may not define functions")
    for step in dis.get_instructions(code):
        if "ATTR" in step.opname or "METHOD" in step.opname or "IMPORT" in step.opname:
            raise Refused("an answer may not use attributes")
        if "STORE" in step.opname or "DELETE" in step.opname:
            raise Refused("an answer may not assign")
    if bad := sorted(name for name in set(code.co_names) if not _harmless(name)):
        raise Refused(f"an answer may not use {', '.join(bad)}")


def _harmless(name: str) -> bool:
    variable = VARIABLE.fullmatch(name) is not None and name not in NO_VARIABLE
    return variable or name in NAMES


def _writes(args: tuple[Any, ...]) -> bool:
    mode, flags = args[1], args[2]
    if isinstance(mode, str):
        return bool(set(mode) & set("wax+"))
    return bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC))


def warm(verifier: Any, entry: dict[str, Any]) -> Any:
    """Make a verifier import what it imports late, some of which is code made from text."""
    if entry["answer"] is not None:
        verifier(answer=entry["answer"], entry=entry)
    return verifier


def score(verifiers: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    """The reply to one request. What an answer does wrong is a score of 0."""
    global _guarding
    family, answer, entry = request["family"], request["answer"], request["entry"]
    _guarding = True
    try:
        if why := refusal(family, answer, entry):
            return {"score": 0.0, "refused": why}
        return {"score": float(verifiers[family](answer=answer, entry=entry))}
    except Refused as refused:
        return {"score": 0.0, "refused": str(refused)}
    except (Exception, MemoryError):  # verifiers raise anything on text they did not expect
        return {"score": 0.0}
    finally:
        _guarding = False


def serve(channel: ChildChannel) -> None:
    """Reply until the parent closes the channel; `ChildProcess` calls it."""
    channel.end_with_parent()
    try:
        from reasoning_gym.factory import DATASETS, create_dataset
    except ImportError as error:
        channel.send({"error": str(error)})
        return
    verifiers: dict[str, Any] = {}
    sys.addaudithook(hook)
    limit(address_bytes=MEMORY_BYTES, file_bytes=0, processes=0)
    while True:
        request = marshal.loads(channel.receive().body)
        family = request["family"]
        try:
            if family not in verifiers:
                if family not in DATASETS:
                    raise KeyError(f"there is no generator {family!r}")
                verifier = create_dataset(family, **SETTINGS.get(family, {})).score_answer
                verifiers[family] = warm(verifier, request["entry"])
        except Exception as error:  # the name, or the package: reported, never a score
            reply: dict[str, Any] = {"error": f"{type(error).__name__}: {error}"}
        else:
            # Ends this process in the middle of a long multiplication that outlives its parent.
            signal.alarm(ALARM_S)
            judged = request["answer"] is not None
            reply = score(verifiers, request) if judged else {"score": 0.0}
            signal.alarm(0)
        channel.send(reply)
