"""What `agentrl prefs check` finds in pairs with one planted fault each."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from agentrl.fit.data.preferences.check import check_pairs
from agentrl.fit.data.preferences.load import LoadedPairs
from agentrl.types import Completion, Message, PreferencePair
from agentrl.types.finding import Status

USER = Message(role="user", content="And 3 + 3?")


def said(text: str) -> Completion:
    return Completion(messages=(Message(role="assistant", content=text),))


def pair(number: int, chosen: str, rejected: str, **values) -> PreferencePair:
    return PreferencePair(
        id=str(number), prompt=(Message(role="user", content=f"question {number}"),),
        chosen=said(chosen), rejected=said(rejected), source=f"line {number}", **values,
    )  # fmt: skip


def sound(count: int = 200) -> LoadedPairs:
    """Lengths that say nothing about the label."""
    draw = random.Random(0)
    return LoadedPairs(
        pair(n, "a" * draw.randint(5, 60), "b" * draw.randint(5, 60), margin=draw.random())
        for n in range(count)
    )


def found(pairs: LoadedPairs, against: LoadedPairs | None = None) -> dict[str, Status]:
    findings = check_pairs(pairs, against)
    return {f.name: f.status for f in findings if f.status is not Status.OK}


def test_sound_pairs_have_no_findings() -> None:
    assert found(sound()) == {}
    other = LoadedPairs(pair(n, "a", "bb") for n in range(200, 300))
    assert found(sound(), other) == {}


def changed(number: int, **values) -> LoadedPairs:
    pairs = sound()
    pairs[number] = replace(pairs[number], **values)
    return pairs


@pytest.mark.parametrize(
    ("pairs", "name", "status"),
    [
        (changed(3, chosen=sound()[3].rejected), "equal completions", Status.FAIL),
        (changed(3, chosen=said("")), "empty completions", Status.FAIL),
        (changed(3, rejected=said(" ")), "empty completions", Status.WARN),
        (changed(3, margin=0.0), "ties", Status.WARN),
        (
            changed(3, chosen=Completion(messages=(*said("a" * 30).messages, USER))),
            "ends",
            Status.WARN,
        ),
        (LoadedPairs([*sound(), sound()[7]]), "duplicates", Status.WARN),
        (changed(3, margin=-1.0), "scores against labels", Status.WARN),
        (
            LoadedPairs(replace(p, margin=-(p.margin or 0)) for p in sound()),
            "scores against labels",
            Status.FAIL,
        ),
        (LoadedPairs(), "pairs", Status.FAIL),
    ],
)
def test_a_planted_fault_is_found_alone(pairs: LoadedPairs, name: str, status: Status) -> None:
    statuses = found(pairs)
    if pairs:
        assert statuses == {name: status}
    assert statuses[name] is status


def test_two_labels_that_contradict_each_other_are_found_unless_they_were_drawn() -> None:
    first = sound()[5]
    turned = replace(first, id="again", chosen=first.rejected, rejected=first.chosen)
    assert found(LoadedPairs([*sound(), turned])) == {"contradictions": Status.WARN}
    drawn = LoadedPairs(replace(p, label_probability=0.7) for p in [*sound(), turned])
    assert found(drawn) == {}


@pytest.mark.parametrize("longer", [True, False])
def test_labels_that_length_alone_tells_are_found(longer: bool) -> None:
    """Fails if only a taste for long answers is named."""
    pairs = LoadedPairs(
        replace(p, chosen=p.rejected, rejected=p.chosen)
        if (p.chosen.length > p.rejected.length) != longer else p
        for p in sound()
    )  # fmt: skip
    assert found(pairs) == {"length": Status.WARN}
    text = next(f.detail for f in check_pairs(pairs) if f.name == "length")
    assert (", 100 %" if longer else " in 0 of ") in text


def test_a_prompt_or_a_task_of_the_other_part_is_a_leak() -> None:
    other = LoadedPairs([pair(12, "another", "answer")])
    findings = {f.name: f for f in check_pairs(sound(), other)}
    assert findings["leaks"].status is Status.FAIL
    assert "1 of 200" in findings["leaks"].detail
    assert "line 12" in findings["leaks"].detail
    ids = Completion(ids=(1,), mask=(1,))
    sampled = PreferencePair(id="s", prompt_ids=(1,), chosen=ids, rejected=ids)
    assert found(sound(), LoadedPairs([sampled])) == {"leaks": Status.UNKNOWN}
    by_task = LoadedPairs([pair(999, "x", "yy", task_id="t")])
    assert found(changed(4, task_id="t"), by_task) == {"leaks": Status.FAIL}
