"""Hidden cases tell every function near the right one from it."""

from __future__ import annotations

import pytest
from agentrl_envs.code.runner import same
from agentrl_envs.code.tasks import FAMILIES, make_tasks

from tests.envs.code.mutants import answers, mutants, typical

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
