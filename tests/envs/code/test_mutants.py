"""Hidden cases tell every function near the right one from it."""

from __future__ import annotations

from itertools import product

import pytest
from agentrl_envs.code.runner import same
from agentrl_envs.code.tasks import FAMILIES, HELD_OUT, TRAIN, make_tasks

from tests.envs.code.mutants import answers, habits, mutants, typical

_WIDE = 130
"""Whole numbers by which a change is found to change nothing."""


def survivors(label: dict, wrong: list[str], reference: str) -> list[str]:
    """Functions that pass all hidden cases and are not the right one in other words."""
    name, hidden = label["entry_point"], label["hidden"]
    inputs = [case["args"] for case in hidden]
    passed = []
    for source in wrong:
        got = answers(source, name, inputs)
        if all(same(case["expected"], one) for case, one in zip(hidden, got, strict=True)):
            passed.append(source)
    if passed and all(len(args) == 1 and type(args[0]) is int for args in inputs):
        wide = [[n] for n in range(_WIDE)]
        right = answers(reference, name, wide)
        return [s for s in passed if not all(map(same, right, answers(s, name, wide)))]
    return passed


@pytest.mark.parametrize("split", ["train", "held_out"])
def test_no_mutant_and_no_typical_wrong_answer_passes(split: str) -> None:
    """Fails if hidden cases pay `n % 2` for a test of primes, or first letters for a palindrome."""
    tasks = make_tasks(split, n=60 if split == "held_out" else 180)
    assert {task.metadata["family"] for task in tasks} <= FAMILIES.keys()
    found: dict[str, str] = {}
    count = 0
    for task in tasks:
        family, reference = task.metadata["family"], task.metadata["reference"]
        right = answers(
            reference, task.label["entry_point"], [c["args"] for c in task.label["hidden"]]
        )
        assert all(map(same, [c["expected"] for c in task.label["hidden"]], right))
        wrong = [*mutants(reference), *typical(family, reference)]
        count += len(wrong)
        for source in survivors(task.label, wrong, reference):
            found[task.id] = source
    assert not found, found
    assert count > (700 if split == "held_out" else 1800), count


_NATURAL = {
    *("count_up", "digit_count", "digit_sum", "discount", "factorial", "fibonacci", "gcd"),
    *("last_digit", "rectangle", "repeat", "sum_of_powers_up_to", "sum_up_to", "unit_conversion"),
}
"""Families that are about numbers from 0 on."""
_ONE_WORD = {"anagram", "palindrome"}
_SMALL_LETTERS = {*_ONE_WORD, "count_vowels", "remove_letters"}
"""Families whose sentence does not say what spaces, or capital letters, are to them."""
_LARGE = {"count_up": 60, "factorial": 15, "fibonacci": 30, "sum_of_powers_up_to": 60}
_LISTS = ([], [3], [-4], [2, 1], [1, 1], [0, 6], [-3, -8], [4, -9, 4, 0, 11, 2, 7, -6], [*range(9)])
_TEXTS = ("", "b", "ab", "aa", "level", "a long enough word", "Ab, c-9  De ", " two  Words", "x y")


def pool(family: str, label: dict) -> list[list]:
    """Inputs of a family beside its own, by which a habit is found to change nothing."""
    own = [case["args"] for case in label["hidden"] + label["public"]]
    numbers = [n for n in (-30, -7, -1, 0, 1, 2, 5, 12, 20, 60, 101, 137, 250)
               if n >= 0 or family not in _NATURAL if n <= _LARGE.get(family, 250)]  # fmt: skip
    texts = [text.lower() if family in _SMALL_LETTERS else text for text in _TEXTS]
    texts = [text for text in texts if text.isalpha() or not text or family not in _ONE_WORD]
    words = any(type(y) is str for args in own for x in args if type(x) is list for y in x)
    lists = [text.split(" ") for text in _TEXTS] if words else [*_LISTS]
    if family == "second_extreme":  # what is second after two that are equal?
        lists = [one for one in lists if len({*one}) == len(one)]
    options = [
        {int: numbers, str: texts, list: lists}[next(type(args[at]) for args in own)]
        for at in range(len(own[0]))
    ]
    every = [list(args) for args in product(*options)]
    return every[:: 1 + len(every) // 100] + own


@pytest.mark.parametrize("split", ["train", "held_out"])
def test_no_habit_passes(split: str) -> None:
    """Fails if hidden cases pay what is right for short, positive or sorted arguments alone."""
    tasks = make_tasks(split, n=len(HELD_OUT if split == "held_out" else TRAIN))
    found: list[tuple[str, str]] = []
    count = 0
    for task in tasks:
        name, reference = task.label["entry_point"], task.metadata["reference"]
        expected = [case["expected"] for case in task.label["hidden"]]
        inputs = [case["args"] for case in task.label["hidden"]]
        tried = habits(reference, task.label["public"])
        count += len(tried)
        passed = [
            habit
            for habit, source in tried.items()
            if all(map(same, expected, answers(source, name, inputs)))
        ]
        wide = pool(task.metadata["family"], task.label)
        right = answers(reference, name, wide)
        found += [
            (task.id, habit)
            for habit in passed
            if not all(map(_as_good, right, answers(tried[habit], name, wide)))
        ]
    assert not found, found
    assert count > (900 if split == "held_out" else 2800), count


def _as_good(right: object, got: object) -> bool:
    """True where a function is not worse: the right one may refuse what it is not made for."""
    return isinstance(right, type) or same(right, got)
