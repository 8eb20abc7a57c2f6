"""The form an answer must have to be judged at all, where a verifier pays for too much.

Some verifiers of reasoning-gym look for the numbers of a puzzle in the text of an answer and then
evaluate it, so `0xf5 + 0x0*(38 + 66)` is right for every pair of numbers; one forgets to look, and
one takes `nan` for a hit. One pays in full for the beginning of the right number (`0` for `0.375`),
one for every number where the right one is negative, one for the right one with the wrong sign.
Where a move that cannot be made is passed over, an answer that makes every move again and again
solves puzzles that it has not read.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

Entry = Mapping[str, Any]
"""An entry of a generator: `question`, `answer` and `metadata`."""
MOST_DETOURS = 3
"""Moves of an answer for each move of the shortest or the generator's own solution."""

_ARITHMETIC = re.compile(r"(?:[0-9+\-() ]|(?<!\*)\*(?!\*)|(?<!/)/(?!/))+")
"""Numbers written out, parentheses and + - * /; a power is none of them."""
_FRACTION = re.compile(
    r"[+-]?\d{1,30}(?:\.\d{0,30})?(?:e[+-]?\d{1,2})?|\d{1,30}/\d{1,30}|\.\d{1,30}",
    re.IGNORECASE,
)
_COMPLEX = re.compile(r"[0-9+\-.eij() ]+", re.IGNORECASE)


def refusal(family: str, answer: str, entry: Entry) -> str:
    """The reason an answer is wrong whatever its verifier returns; empty if that decides."""
    form = FORMS.get(family)
    return form(answer, entry) if form else ""


def _arithmetic(answer: str, entry: Entry) -> str:
    if not _ARITHMETIC.fullmatch(answer):
        return "expected numbers, parentheses and + - * / only"
    if sorted(map(int, re.findall("[0-9]+", answer))) != sorted(entry["metadata"]["numbers"]):
        return "expected each of the numbers once"
    return ""


def _twenty_four(answer: str, entry: Entry) -> str:
    if why := _arithmetic(answer, entry):
        return why
    from sympy import parse_expr

    return "" if parse_expr(answer) == 24 else "expected 24"  # the verifier rounds down


def _complex(answer: str, entry: Entry) -> str:
    return "" if _COMPLEX.fullmatch(answer) else "expected a complex number"


def _probability(answer: str, entry: Entry) -> str:
    """The verifier gives 1 to any beginning of the right number, and 0 is within its tolerance of
    15 heads in a row. Here the tolerance is 1 in 10,000, and at most a hundredth of the number; the
    number rounded to four decimal places is right, too, unless that is 0."""
    right = Fraction(entry["answer"].replace(",", ""))
    said = answer.strip().replace(",", "")
    expected = "expected the probability to 4 decimal places, or within a hundredth if these are 0"
    if not _FRACTION.fullmatch(said):
        return expected
    error = abs(Fraction(said) - right)
    places = Fraction(said) * 10**4
    rounded = places > 0 and places.denominator == 1 and error <= Fraction(1, 2 * 10**4)
    return "" if rounded or error <= min(Fraction(1, 10**4), right / 100) else expected


def _calendar(answer: str, entry: Entry) -> str:
    """The verifier divides an error by the right number, and pays for any error where that is
    negative: -1, for an event that does not happen."""
    right = entry["answer"].strip()
    negative = right.startswith("-") and right[1:].isdigit()
    return f"expected {right}" if negative and answer.strip() != right else ""


def _solutions(answer: str, entry: Entry) -> str:
    """The verifier passes over what it cannot read, and without solutions takes that for none; the
    question asks for `""` then, and saying nothing is not saying that."""
    if re.search("[0-9]", entry["answer"]) or answer.strip() in ('""', "''"):
        return ""
    return 'expected ""'


def _one_number(answer: str, entry: Entry) -> str:
    """The verifier looks for the first number and not at its sign."""
    found = re.findall(r"-?[0-9][0-9,]*+(?:\.[0-9]++)?+", answer)
    if len(found) != 1 or float(found[0].replace(",", "")) != float(entry["answer"]):
        return f"expected one number, {entry['answer']}"
    return ""


def _sorted_numbers(answer: str, entry: Entry) -> str:
    """The verifier compares with a tolerance of 1, within which NaN is of every number."""
    try:
        numbers = [float(number) for number in json.loads(answer.replace("'", '"'))]
    except (ValueError, TypeError, RecursionError):
        return "expected a list of numbers"
    known = sorted(map(float, entry["metadata"]["original_numbers"]))
    if not all(map(math.isfinite, numbers)) or sorted(numbers) != known:
        return "expected the numbers of the question"
    return ""


def _cars(answer: str, entry: Entry) -> str:
    moves = len(re.findall("[A-Z][+-][0-9]", answer))
    return _too_many(moves, entry["metadata"].get("min_moves", moves))


def _pushes(answer: str, entry: Entry) -> str:
    return _too_many(len(answer), len(entry["answer"] or answer))


def _boxes(answer: str, entry: Entry) -> str:
    """A box is at most as far from its target as the board is wide and high."""
    try:
        moves = sum(len(plan) for plan in json.loads(answer))
    except (ValueError, TypeError, RecursionError):
        return "expected a list of plans"
    metadata = entry["metadata"]
    boxes = sum(
        item.startswith("box_") for items in metadata["initial_state"].values() for item in items
    )
    return _too_many(moves, boxes * (metadata["row_num"] + metadata["column_num"]), detours=1)


def _too_many(moves: int, needed: int, detours: int = MOST_DETOURS) -> str:
    most = detours * needed
    return f"expected at most {most} moves, got {moves}" if moves > most else ""


FORMS: Mapping[str, Callable[[str, Entry], str]] = {
    "boxnet": _boxes,
    "calendar_arithmetic": _calendar,
    "coin_flip": _probability,
    "complex_arithmetic": _complex,
    "countdown": _arithmetic,
    "gsm_symbolic": _one_number,
    "number_sorting": _sorted_numbers,
    "polynomial_equations": _solutions,
    "puzzle24": _twenty_four,
    "rush_hour": _cars,
    "sokoban": _pushes,
}
"""By generator, what gives the reason to refuse an answer."""
