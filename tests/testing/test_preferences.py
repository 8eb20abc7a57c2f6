"""Planted preference pairs: drawn as they say, and learnable from their words."""

from __future__ import annotations

import math
import zlib
from collections import Counter
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from agentrl.errors import DataError
from agentrl.fit.data.preferences.check import check_pairs
from agentrl.fit.data.preferences.load import load_pairs
from agentrl.reward.calibration import length_r2, measure_calibration
from agentrl.testing.preferences import (
    GRAMMARS,
    answer_features,
    bayes_accuracy,
    latent_reward,
    planted_pairs,
)
from agentrl.types import PreferencePair
from agentrl.types.finding import Status

ALL = {"quality": 0.8, "length": 0.05, "praise": 0.7}


def texts(pair: PreferencePair) -> tuple[str, str]:
    return pair.chosen.messages[0].content, pair.rejected.messages[0].content


def test_features_by_hand() -> None:
    found = answer_features("Great question brilliant idea the clear wrong clear river.")
    assert (found.quality, found.length, found.praise) == (1, 9, 2)
    assert latent_reward("Great question the clear river.", ALL) == pytest.approx(
        0.8 * 1 + 0.05 * 5 + 0.7 * 1
    )
    assert latent_reward("Superb task buggy line.") == -1.0
    assert answer_features("") == answer_features(" . ")


@pytest.mark.parametrize("grammar", ["A", "B"])
def test_margin_and_probability_are_those_of_the_texts(grammar: str) -> None:
    pairs = planted_pairs(300, weights=ALL, grammar=grammar)
    for pair in pairs:
        chosen, rejected = (latent_reward(text, ALL) for text in texts(pair))
        assert pair.margin == pytest.approx(chosen - rejected)
        assert pair.label_probability == pytest.approx(1 / (1 + math.exp(rejected - chosen)))
    assert any(pair.margin and pair.margin < 0 for pair in pairs), "no label goes the wrong way"


def test_labels_are_drawn_from_their_probabilities() -> None:
    """Fails if the better one is always chosen, or the label is drawn from another scale."""
    pairs = planted_pairs(4000, weights=ALL)
    apart = [pair.margin or 0.0 for pair in pairs]
    drawn = measure_calibration(apart, None)
    assert drawn.ece < 2 * drawn.ece_by_chance
    assert drawn.accuracy_low < bayes_accuracy(pairs) < drawn.accuracy_high
    true = [pair.label_probability or 0.0 for pair in pairs]
    assert measure_calibration(apart, true).ece == pytest.approx(0.0, abs=1e-12)


def test_the_same_pairs_come_again_and_a_smaller_number_is_a_beginning() -> None:
    pairs = planted_pairs(50, seed=3)
    assert planted_pairs(50, seed=3) == pairs
    assert planted_pairs(20, seed=3) == pairs[:20]
    assert len({pair.id for pair in pairs}) == 50
    # Golden, so that data of another machine or Python is the same.
    assert pairs[0].task_id == "Describe the blue boat that stands indoors."
    said = repr([(pair.task_id, *texts(pair)) for pair in pairs])
    assert zlib.crc32(said.encode()) == 3008090271
    others = [planted_pairs(50, seed=4), planted_pairs(50, seed=3, split="test"),
              planted_pairs(50, seed=3, grammar="B")]  # fmt: skip
    for other in others:
        assert not {texts(pair) for pair in pairs} & {texts(pair) for pair in other}


def test_weights_change_labels_and_not_texts() -> None:
    plain, spurious = planted_pairs(200), planted_pairs(200, weights={"praise": 3.0})
    assert [sorted(texts(pair)) for pair in plain] == [sorted(texts(pair)) for pair in spurious]
    assert any(texts(a) != texts(b) for a, b in zip(plain, spurious, strict=True))


def test_no_prompt_is_in_both_splits() -> None:
    train, test = planted_pairs(3000), planted_pairs(3000, split="test")
    prompts = [{pair.prompt[0].content for pair in part} for part in (train, test)]
    assert not prompts[0] & prompts[1]
    assert len(prompts[0]) > 500
    assert len(prompts[1]) > 100


def test_no_word_has_two_roles_and_the_grammars_share_none() -> None:
    roles: Counter[str] = Counter()
    words: list[set[str]] = []
    for name, grammar in GRAMMARS.items():
        praise = [word for phrase in grammar.praise for word in phrase]
        answer = [*grammar.good, *grammar.bad, *grammar.filler, *praise]
        roles.update(answer)
        pairs = planted_pairs(500, grammar=name)
        said = " ".join(
            [*(p.prompt[0].content for p in pairs), *(t for p in pairs for t in texts(p))]
        )
        words.append(set(said.lower().translate({ord(c): " " for c in ".!"}).split()))
        assert set(answer) <= words[-1]
    assert [word for word, count in roles.items() if count > 1] == []
    assert words[0] & words[1] == set()


def test_features_do_not_depend_on_one_another() -> None:
    found = [answer_features(text) for pair in planted_pairs(2000) for text in texts(pair)]
    columns = np.array([[f.quality, f.length, f.praise] for f in found], dtype=np.float64)
    inside = np.corrcoef(columns.T)[np.triu_indices(3, 1)]
    assert np.abs(inside).max() < 0.06
    assert len(set(columns[:, 0])) > 6
    assert (columns[:, 1].min(), columns[:, 1].max()) == (12, 40)
    assert set(columns[:, 2]) == {0, 1, 2}


def test_a_weight_on_length_is_seen_in_the_rewards() -> None:
    answers = [text for pair in planted_pairs(1000) for text in texts(pair)]
    lengths = [len(text.split()) for text in answers]

    def explained(weights: dict[str, float]) -> float:
        return length_r2([latent_reward(text, weights) for text in answers], lengths) or 0.0

    assert explained({}) < 0.01
    assert explained({"length": 1.0}) > 0.9


def counts(text: str, words: dict[str, int]) -> np.ndarray:
    row = np.zeros(len(words))
    for word in text.lower().strip(".").split():
        row[words[word]] += 1
    return row


def test_counting_words_learns_it() -> None:
    """A linear model of word counts reaches 0.97 of the best accuracy on unseen prompts."""
    train, test = planted_pairs(2000), planted_pairs(2000, split="test")
    known = sorted({w for p in train for t in texts(p) for w in t.lower().strip(".").split()})
    words = {word: at for at, word in enumerate(known)}
    x, y = (
        np.array([counts(c, words) - counts(r, words) for c, r in map(texts, part)])
        for part in (train, test)
    )
    weight = np.zeros(len(words))
    for _ in range(300):
        weight += 0.5 * x.T @ (1 / (1 + np.exp(x @ weight))) / len(x) - 1e-4 * weight
    found = measure_calibration(y @ weight, [pair.label_probability or 0.0 for pair in test])
    assert found.accuracy > 0.97 * bayes_accuracy(test)
    assert found.accuracy < bayes_accuracy(test)


def test_bayes_accuracy_against_all_labellings() -> None:
    """Of all 2^6 ways the labels may fall, weighed by their probability, with the true order."""
    pairs = planted_pairs(6, seed=2, weights={"quality": 0.3})
    q = [pair.label_probability or 0.0 for pair in pairs]
    expected = 0.0
    for labels in product([True, False], repeat=6):
        chance = math.prod(p if won else 1 - p for p, won in zip(q, labels, strict=True))
        right = sum((p >= 0.5) == won for p, won in zip(q, labels, strict=True)) / 6
        expected += chance * right
    assert bayes_accuracy(pairs) == pytest.approx(expected, rel=1e-12)
    assert any(p < 0.5 for p in q), "all labels fell the right way, so 1 - q is not tested"


def test_it_is_a_source_of_pairs() -> None:
    loaded = load_pairs(
        "agentrl.testing.preferences:planted_pairs",
        split="test",
        args={"n": 300, "seed": 2, "weights": {"length": 0.1}, "grammar": "B"},
    )
    assert loaded == planted_pairs(300, seed=2, split="test", weights={"length": 0.1}, grammar="B")
    against = load_pairs("agentrl.testing.preferences:planted_pairs", args={"grammar": "B"})
    findings = check_pairs(loaded, against)
    assert [f.name for f in findings if f.status is Status.FAIL] == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n": 0}, "n is 0, expected a whole number from 1"),
        ({"n": "5"}, "n is '5'"),
        ({"seed": 1.5}, "seed is 1.5, expected a whole number"),
        ({"split": "tset"}, "split got 'tset'; did you mean 'test'"),
        ({"grammar": "C"}, "grammar got 'C'; valid: A, B"),
        ({"weights": {"lenght": 1.0}}, "weight of got 'lenght'; did you mean 'length'"),
        ({"weights": {"length": math.inf}}, "weight of length is inf, expected a finite number"),
        ({"weights": {"length": "1"}}, "weight of length is '1', expected a finite number"),
        ({"weights": [1.0]}, r"weights are \[1.0\], expected a mapping"),
    ],
)
def test_arguments_that_cannot_be_used(options: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        planted_pairs(**options)


def test_bayes_accuracy_needs_the_truth() -> None:
    with pytest.raises(DataError, match="got no pairs"):
        bayes_accuracy([])
    unknown = replace(planted_pairs(1)[0], label_probability=None)
    with pytest.raises(DataError, match="planted/A/train/0/0 has no label_probability"):
        bayes_accuracy([unknown])
