"""The form an answer must have to be judged at all, where a verifier pays for too much.

Some verifiers of reasoning-gym look for the numbers of a puzzle in the text of an answer and then
evaluate it, so `0xf5 + 0x0*(38 + 66)` is right for every pair of numbers; one forgets to look, and
one takes `nan` for a hit.
"""

from __future__ import annotations

import re
from typing import Any

_ARITHMETIC = re.compile(r"(?:[0-9+\-() ]|(?<!\*)\*(?!\*)|(?<!/)/(?!/))+")
"""Numbers written out, parentheses and + - * /; a power is none of them."""
_COMPLEX = re.compile(r"[0-9+\-.eij() ]+", re.IGNORECASE)


def refusal(family: str, answer: str, entry: dict[str, Any]) -> str:
    """The reason an answer is wrong whatever its verifier says; empty if the verifier decides."""
    if family in ("countdown", "puzzle24"):
        if not _ARITHMETIC.fullmatch(answer):
            return "expected numbers, parentheses and + - * / only"
        if sorted(map(int, re.findall("[0-9]+", answer))) != sorted(entry["metadata"]["numbers"]):
            return "expected each of the numbers once"
    if family == "puzzle24":
        from sympy import parse_expr

        if parse_expr(answer) != 24:  # the verifier rounds down
            return "expected 24"
    if family == "complex_arithmetic" and not _COMPLEX.fullmatch(answer):
        return "expected a complex number"
    return ""
