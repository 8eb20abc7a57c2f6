"""`balance_lengths`: afterwards no bound on the ratio of lengths tells the chosen one."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from agentrl.errors import DataError
from agentrl.fit.data.preferences.balance import balance_lengths
from agentrl.fit.data.preferences.check import length_bias
from agentrl.fit.data.preferences.load import load_pairs
from agentrl.fit.data.preferences.write import write_pairs
from agentrl.types import PreferencePair
from agentrl.types.finding import Status
from tests.fit.data.preferences.test_check import pair


def biased(count: int = 600, *, seed: int = 1) -> list[PreferencePair]:
    """Three of four longer ones are chosen; every tenth pair has equal lengths."""
    draw, found = random.Random(seed), list[PreferencePair]()
    for number in range(count):
        first, second = draw.randint(5, 80), draw.randint(5, 80)
        if number % 10 == 0:
            second = first
        longer, shorter = max(first, second), min(first, second)
        sizes = (longer, shorter) if draw.random() < 0.75 else (shorter, longer)
        found.append(pair(number, "a" * sizes[0], "b" * sizes[1]))
    return found


def accuracy(pairs: list[PreferencePair], bound: float) -> float:
    """Of choosing the longer one where it is more than `bound` times as long, else the shorter."""
    right = total = 0
    for each in pairs:
        chosen, rejected = each.chosen.length + 1, each.rejected.length + 1
        far = max(chosen, rejected) > bound * min(chosen, rejected)
        right += chosen != rejected and (chosen > rejected) == far
        total += chosen != rejected
    return right / total


def test_length_no_longer_tells_the_chosen_one() -> None:
    pairs = biased()
    assert length_bias(pairs).status is Status.WARN
    found = balance_lengths(pairs)
    after = length_bias(found.pairs)
    assert after.status is Status.OK
    assert ", 50 % [" in after.detail
    assert 60 <= found.equal == sum(p.chosen.length == p.rejected.length for p in found.pairs)
    assert len(found.pairs) == 2 * found.each + found.equal
    left = found.longer_left_out + found.shorter_left_out
    assert len(found.pairs) + left == len(pairs)
    numbers = [int(each.id) for each in found.pairs]
    assert numbers == sorted(numbers)


def test_no_bound_on_the_ratio_tells_it_either() -> None:
    """Far longer ones are chosen and little longer ones are not: half of all longer ones.

    Fails if as many of both kinds are kept without regard to how far lengths are apart: one bound
    then finds every label.
    """
    far = [pair(n, "a" * 90, "b" * 10) for n in range(100)]
    near = [pair(100 + n, "a" * 20, "b" * 21) for n in range(100)]
    few = [pair(200 + n, "a" * 10, "b" * 90) for n in range(7)]
    pairs = [*far, *near, *few, pair(300, "a" * 21, "b" * 20)]
    assert accuracy(pairs, 2.0) > 0.9
    found = balance_lengths(pairs)
    assert accuracy(list(found.pairs), 2.0) == 0.5
    assert Counter(each.chosen.length for each in found.pairs) == {90: 7, 10: 7, 20: 1, 21: 1}
    assert (found.longer_left_out, found.shorter_left_out, found.classes) == (93, 99, 2)


def test_the_same_pairs_stay_for_a_seed_whatever_their_order() -> None:
    pairs = biased()
    names = {each.id for each in balance_lengths(pairs).pairs}
    assert {each.id for each in balance_lengths(pairs[::-1]).pairs} == names
    assert {each.id for each in balance_lengths(pairs, seed=1).pairs} != names


@pytest.mark.parametrize(
    "pairs",
    [
        [pair(n, "long answer", "short") for n in range(5)],
        [pair(n, "same", "size") for n in range(5)],
        [pair(0, "a" * 90, "b"), pair(1, "a" * 20, "b" * 21)],
    ],
    ids=["one kind", "equal", "other classes"],
)
def test_what_cannot_be_balanced_is_refused(pairs: list[PreferencePair]) -> None:
    with pytest.raises(
        DataError, match=r"lengths cannot be balanced: of .* one class of width 0\.2"
    ):
        balance_lengths(pairs)


def test_written_pairs_of_messages_are_read_again(tmp_path) -> None:
    call = {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "add", "arguments": {"a": [1]}}}
        ],
    }
    result = {"role": "tool", "tool_call_id": "c1", "name": "add", "content": "3"}
    said = {"role": "assistant", "content": "\u00e9 \ud800"}
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"x": None}}}]
    rows = [
        {"id": "one", "prompt": "2?", "chosen": [call, result, said], "rejected": "no",
         "tools": tools, "margin": 0.5, "weight": 2.0, "label_probability": 0.8},
        {"prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}],
         "chosen": "yes", "rejected": [said]},
        {"prompt": "three", "completions": ["x", "y", "z"], "scores": [1, 2, 3]},
    ]  # fmt: skip
    (tmp_path / "rows.py").write_text(f"def rows(split):\n    return {rows!r}\n")
    pairs = load_pairs("rows.py:rows", base=tmp_path)
    assert len(pairs) == 5
    out = tmp_path / "out.jsonl"
    write_pairs(out, pairs, source=tmp_path)
    assert load_pairs(str(out))[0].source.endswith("out.jsonl, line 1")

    def kept(found: list[PreferencePair]) -> list[tuple]:
        return [
            (p.id, p.prompt, p.chosen, p.rejected, p.tools, p.margin, p.weight, p.label_probability)
            for p in found
        ]

    assert kept(load_pairs(str(out))) == kept(pairs)
