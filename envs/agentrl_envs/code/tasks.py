"""Tasks from families: the fixed split, the prompts, the public and the hidden cases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentrl.errors import ConfigError, choices
from agentrl.types import Task
from agentrl_envs.code import lists, numbers, strings
from agentrl_envs.code.families import Arguments, Draw, FunctionFamily, Variant
from agentrl_envs.code.runner import same

FAMILIES: Mapping[str, FunctionFamily] = {
    family.name: family for module in (numbers, strings, lists) for family in module.family.families
}
"""Every family by name."""

HELD_OUT: tuple[str, ...] = (
    *("compare_zero", "power", "unit_conversion", "extreme_of_list", "sort_list", "repeat"),
    *("add_affix", "contains"),
    *("digit_count", "palindrome", "word_count", "filter_above", "remove_letters", "between"),
    *("second_extreme", "fibonacci", "longest_word", "anagram"),
)
"""Families that are never in the train split, from easy to hard."""

TRAIN: tuple[str, ...] = tuple(name for name in FAMILIES if name not in HELD_OUT)
"""The other families."""

PUBLIC_CASES = 2
HIDDEN_CASES = 8
_DRAWN_CASES = 6
"""Hidden cases beside the edges, at least: what only edges tell from the right function is rare."""
_ATTEMPTS = 20
Row = dict[str, Any]
"""A case as a task carries it: `{"args": [...], "expected": ...}`."""


def make_tasks(
    split: str = "train",
    n: int = 256,
    seed: int = 0,
    families: Sequence[str] | None = None,
    levels: Sequence[int] | None = None,
    examples: int = 1,
) -> list[Task]:
    """Draw tasks; the same arguments give the same tasks on every machine.

    Families take turns, so any prefix of the list is balanced over them.

    Args:
        split: `train` or `held_out`, which share no family.
        n: how many tasks.
        seed: draws constants, names, wording and test inputs.
        families: only these (they must belong to the split).
        levels: only families of these levels (1 easy, 2 middle, 3 hard).
        examples: how many public cases the prompt shows; prompts cost time in every step, and a
            public case that fails is shown then anyway.

    Raises:
        ConfigError: an unknown split or family, or a selection that leaves nothing.
    """
    splits = {"train": TRAIN, "held_out": HELD_OUT}
    if split not in splits:
        raise ConfigError(f"agentrl_envs.code split: {choices(split, splits)}")
    names = list(splits[split])
    if families is not None:
        for name in families:
            if name not in names:
                raise ConfigError(
                    f"agentrl_envs.code families of {split!r}: {choices(name, names)}"
                )
        names = [name for name in names if name in set(families)]
    if levels is not None:
        names = [name for name in names if FAMILIES[name].level in set(levels)]
    if not names or n < 1:
        raise ConfigError(
            f"agentrl_envs.code: n={n}, families={families}, levels={levels} leave no task in "
            f"split {split!r}"
        )
    order = Draw(f"{seed}/{split}").shuffled(names)
    return [
        _task(
            FAMILIES[order[i % len(order)]],
            index=i // len(order),
            seed=seed,
            examples=examples,
            split=split,
        )
        for i in range(n)
    ]


def _task(family: FunctionFamily, *, index: int, seed: int, examples: int, split: str) -> Task:
    variant, public, hidden = _drawn(family, f"{seed}/{family.name}/{index}")
    prompt = f"Write a Python function `{variant.name}({variant.params})` that {variant.task}."
    for case in public[:examples]:
        prompt += f"\nExample: {_call(variant.name, case)} == {case['expected']!r}"
    return Task(
        id=f"{family.name}-{seed}-{index}",
        prompt=prompt,
        label={"entry_point": variant.name, "public": public, "hidden": hidden},
        metadata={
            "family": family.name,
            "level": family.level,
            "reference": variant.reference,
        },
        split=split,
    )


def _drawn(family: FunctionFamily, seed: str) -> tuple[Variant, list[Row], list[Row]]:
    """A variant with public and hidden cases, drawn again while something trivial is right."""
    for attempt in range(_ATTEMPTS):
        draw = Draw(f"{seed}/{attempt}" if attempt else seed)
        variant = family.build(draw)
        public, hidden = _cases(variant, draw)
        if not pays_for_nothing(hidden):
            return variant, public, hidden
    raise AssertionError(f"family {family.name!r} draws nothing but cases with one answer")


def pays_for_nothing(hidden: Sequence[Row]) -> bool:
    """True if a constant, or one of the arguments as it is, passes all of these cases.

    Example:
        >>> pays_for_nothing([{"args": [2, 9], "expected": 9}, {"args": [0, 9], "expected": 9}])
        True
    """
    expected = [row["expected"] for row in hidden]
    arguments = zip(*(row["args"] for row in hidden), strict=True)
    guesses = [[expected[0]] * len(expected), *map(list, arguments)]
    return any(all(map(same, expected, guess)) for guess in guesses)


def _call(name: str, case: Mapping[str, Any]) -> str:
    return f"{name}({', '.join(map(repr, case['args']))})"


def _cases(variant: Variant, draw: Draw) -> tuple[list[Row], list[Row]]:
    """Public cases with different answers where there are any; then edges first, hidden."""
    solve = _function(variant)
    edges, drawn = variant.inputs[: variant.edges], variant.inputs[variant.edges :]
    shuffled = [_case(solve, arguments) for arguments in draw.shuffled(drawn)]
    cases = sorted(shuffled, key=_dullness) + [_case(solve, arguments) for arguments in edges]
    public = [cases[0]]
    for case in cases[1:]:
        if len(public) == PUBLIC_CASES:
            break
        if all(case["expected"] != other["expected"] for other in public):
            public.append(case)
    rest = [case for case in cases if case not in public]
    first = [case for case in rest if tuple(case["args"]) in edges]
    last = [case for case in rest if case not in first]
    return public, (first + last)[: max(HIDDEN_CASES, len(first) + _DRAWN_CASES)]


def _case(solve: Any, arguments: Arguments) -> Row:
    # The reference may change its arguments; the case keeps what goes in.
    return {"args": list(arguments), "expected": solve(*_copy(arguments))}


def _dullness(case: Mapping[str, Any]) -> tuple[bool, int]:
    """Sort key: informative cases first, then short ones (8 characters are about 3 tokens)."""
    expected = case["expected"]
    says_nothing = expected in case["args"] or expected in ([], "")
    return says_nothing, len(repr(case)) // 8


def _copy(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(_copy(item) for item in value)
    return value


def _function(variant: Variant) -> Any:
    namespace: dict[str, Any] = {}
    exec(variant.reference, namespace)
    return namespace[variant.name]
