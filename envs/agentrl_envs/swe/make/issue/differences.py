"""Differences between a wrong result and the right one, in a user's words."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentrl_envs.swe.make.issue.observe import Effect


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast:
    """A difference in words."""

    titles: tuple[str, ...]
    """What the subject does, as the rest of a sentence that begins with it."""
    notes: tuple[str, ...] = ()
    """Sentences that add more; any or none of them."""


def difference(actual: Effect, expected: Effect) -> Contrast:
    """The difference of two effects, which are not the same."""
    if actual.error and expected.error:
        if actual.error == expected.error:
            return Contrast(
                titles=("raises the wrong error", "fails with a wrong message"),
                notes=("The kind of error is right, but not its text.",),
            )
        return Contrast(
            titles=(
                f"raises {actual.error} instead of {expected.error}",
                f"fails with {actual.error}, should be {expected.error}",
            ),
            notes=(f"Code that handles `{expected.error}` does not catch this.",),
        )
    if actual.error:
        return Contrast(
            titles=(
                f"raises {actual.error}",
                f"fails with {actual.error}",
                f"crashes with {actual.error}",
                f"does not work ({actual.error})",
            ),
            notes=(
                "The input looks perfectly valid to me.",
                "I don't see anything wrong with these arguments.",
            ),
        )
    if expected.error:
        return Contrast(
            titles=(
                f"does not raise {expected.error}",
                f"should raise {expected.error}",
                f"misses a {expected.error}",
            ),
            notes=(
                "It goes through silently, which hides mistakes.",
                "Without the error I only find out much later that something is off.",
            ),
        )
    return _of_values(actual, expected)


def _of_values(actual: Effect, expected: Effect) -> Contrast:
    try:
        got, want = ast.literal_eval(actual.value), ast.literal_eval(expected.value)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        if actual.type != expected.type:
            return _of_types(actual.type, expected.type)
        return Contrast(
            titles=(
                "returns the wrong result",
                "gives a wrong result",
                "does not give the expected result",
            )
        )
    if got is None:
        return Contrast(
            titles=("returns None", "gives nothing back"),
            notes=("I get `None`, as if nothing had been found.",),
        )
    if isinstance(got, bool) and isinstance(want, bool):
        return Contrast(
            titles=(
                f"is {got} where it should be {want}",
                f"gives {got}, not {want}",
                "gives the wrong answer",
            )
        )
    if isinstance(got, (int, float)) and isinstance(want, (int, float)):
        return _of_numbers(got, want)
    if type(got) is not type(want):
        return _of_types(type(got).__name__, type(want).__name__)
    if isinstance(got, str):
        return _of_texts(got, want)
    if isinstance(got, dict):
        return _of_mappings(got, want)
    if isinstance(got, (list, tuple)):
        return _of_sequences(got, want)
    if isinstance(got, (set, frozenset)):
        return _of_sequences(sorted(got, key=repr), sorted(want, key=repr))
    return Contrast(titles=("returns the wrong result",))


def _of_types(got: str, want: str) -> Contrast:
    article = "an" if got[:1].lower() in "aeiou" else "a"
    return Contrast(
        titles=(
            f"returns {article} {got} instead of {want}",
            "returns the wrong type",
            "gives back something of another type",
        ),
        notes=(f"The type is off: {got}, not {want}.",),
    )


def _of_numbers(got: float, want: float) -> Contrast:
    if isinstance(got, bool) or isinstance(want, bool) or type(got) is not type(want):
        return _of_types(type(got).__name__, type(want).__name__)
    if abs(got - want) == 1:
        side = "high" if got > want else "low"
        return Contrast(titles=("is off by one", f"gives a number that is one too {side}"))
    if got == -want:
        return Contrast(titles=("has the wrong sign", "gives a number with the wrong sign"))
    size = "large" if got > want else "small"
    return Contrast(titles=("gives the wrong number", f"gives a number that is too {size}"))


def _of_texts(got: str, want: str) -> Contrast:
    if not got:
        return Contrast(titles=("returns an empty string", "gives an empty text"))
    if got.lower() == want.lower():
        return Contrast(titles=("mixes up upper and lower case", "gets the case wrong"))
    if "".join(got.split()) == "".join(want.split()):
        return Contrast(titles=("gets the whitespace wrong", "puts spaces in the wrong places"))
    if got in want:
        return Contrast(titles=("drops part of the text", "returns only part of the text"))
    if want in got:
        return Contrast(titles=("returns more text than it should", "leaves in too much text"))
    return Contrast(titles=("returns the wrong string", "gives the wrong text"))


def _of_mappings(got: Mapping[Any, Any], want: Mapping[Any, Any]) -> Contrast:
    lost = [key for key in want if key not in got]
    extra = [key for key in got if key not in want]
    if not got:
        return Contrast(titles=("returns an empty dict", "loses all keys"))
    if lost and not extra:
        return Contrast(
            titles=("loses keys", "returns too few keys"), notes=(f"{_some(lost)} missing.",)
        )
    if extra and not lost:
        return Contrast(
            titles=("returns extra keys", "returns keys that should not be there"),
            notes=(f"{_some(extra)} not expected there.",),
        )
    if lost:
        return Contrast(titles=("returns a dict with the wrong keys", "gets the keys wrong"))
    if got == want:
        return Contrast(titles=("returns the keys in another order",))
    wrong = [key for key in want if got[key] != want[key]]
    one = f"The keys are fine, but the value of {wrong[0]!r} is wrong."
    note = one if len(wrong) == 1 else "The keys are right, the values are not."
    return Contrast(
        titles=("returns wrong values", "gets the values of a dict wrong"), notes=(note,)
    )


def _of_sequences(got: Sequence[Any], want: Sequence[Any]) -> Contrast:
    ours, theirs = list(map(repr, got)), list(map(repr, want))
    if not got:
        return Contrast(titles=("returns nothing", "comes back empty", "gives an empty result"))
    if Counter(ours) == Counter(theirs):
        return Contrast(
            titles=("returns the items in the wrong order", "mixes up the order"),
            notes=("The items are right, only the order is not.",),
        )
    lost = list((Counter(theirs) - Counter(ours)).elements())
    extra = list((Counter(ours) - Counter(theirs)).elements())
    if lost and not extra:
        end = " at the end" if theirs[: len(ours)] == ours else ""
        end = " at the beginning" if theirs[-len(ours) :] == ours else end
        return Contrast(
            titles=(f"loses items{end}", f"drops items{end}", "returns too few items"),
            notes=(f"{_some(lost, quoted=True)} missing.",),
        )
    if extra and not lost:
        return Contrast(
            titles=("returns too many items", "returns extra items"),
            notes=(f"{_some(extra, quoted=True)} too much.",),
        )
    if len(got) == len(want):
        wrong = sum(a != b for a, b in zip(ours, theirs, strict=True))
        note = f"{wrong} of the {len(got)} items {'is' if wrong == 1 else 'are'} wrong."
        return Contrast(
            titles=("returns the wrong items", "gets some items wrong", "gives a wrong result"),
            notes=(note,) if wrong < len(got) and len(got) > 2 else (),
        )
    count = "few" if len(got) < len(want) else "many"
    return Contrast(
        titles=("returns the wrong result", "gives a wrong result"),
        notes=(f"There are too {count} items, and not the right ones.",),
    )


def _some(items: Sequence[Any], *, quoted: bool = False) -> str:
    shown = [str(item) if quoted else repr(item) for item in items]
    if len(shown) == 1 and len(shown[0]) <= 40:
        return f"`{shown[0]}` is"
    if len(shown) <= 3 and sum(map(len, shown)) <= 60:
        return f"{', '.join(f'`{one}`' for one in shown)} are"
    return f"{len(shown)} of them are"
