"""Preference pairs whose true probabilities are known: a planted Bradley-Terry model.

A seeded grammar writes prompts and answers. The words of an answer decide its latent reward,
u = a * quality + b * length + c * praise, and the label is drawn from sigmoid(u_first - u_second)
(https://doi.org/10.1093/biomet/39.3-4.324). So the best possible accuracy is known, and calibration
can be measured against the truth. `length` and `praise` with a weight in training and none in the
test are features that a reward model can be led astray by; the other grammar is another
distribution with no word in common. As the source of a data set:

    source: agentrl.testing.preferences:planted_pairs
    args: {n: 5000, seed: 1, weights: {quality: 1.0, length: 0.05}}
"""

from __future__ import annotations

import math
import random
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from agentrl.errors import DataError, choices
from agentrl.types import Completion, Message, PreferencePair

SPLITS = ("train", "test")
"""No prompt is in both."""
FEATURES = ("quality", "length", "praise")
"""Features of an answer that may have a weight."""
DEFAULT_WEIGHTS: Mapping[str, float] = {"quality": 1.0, "length": 0.0, "praise": 0.0}
"""Latent reward for a good word, for any word, and for a phrase of praise."""

_MOST_WORDS = 40
_MOST_MARKED = 4
"""Most good words of an answer, and most bad ones."""
_MOST_PRAISE = 2
_TEST_SHARE = 5
"""One of so many prompts is a test prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlantedGrammar:
    """Words that prompts and answers are made of; no word has two roles."""

    good: tuple[str, ...]
    """Each raises the quality by 1."""
    bad: tuple[str, ...]
    """Each lowers the quality by 1."""
    filler: tuple[str, ...]
    """Each adds to the length alone."""
    praise: tuple[tuple[str, str], ...]
    """Phrases of two words that an answer may begin with."""
    prompt: str
    """Text with the places `{kind}`, `{thing}` and `{place}`."""
    kinds: tuple[str, ...]
    """Words for `{kind}`."""
    things: tuple[str, ...]
    """Words for `{thing}`."""
    places: tuple[str, ...]
    """Words for `{place}`."""


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


GRAMMARS: Mapping[str, PlantedGrammar] = {
    "A": PlantedGrammar(
        good=_words("clear correct useful careful honest precise helpful kind"),
        bad=_words("wrong vague rude lazy false careless useless harmful"),
        filler=_words(
            "the a river stone and with under over house garden walks stands green small table "
            "window near then road tree bread water slowly morning"
        ),
        praise=(("great", "question"), ("brilliant", "idea"), ("wonderful", "thought")),
        prompt="Describe the {kind} {thing} that stands {place}.",
        kinds=_words("old new red blue tall short round quiet broken painted wooden heavy"),
        things=_words("bridge tower chair clock mill boat lamp wall gate bench barn statue ladder"),
        places=_words("outside upstairs downtown nearby indoors abroad below ahead"),
    ),
    "B": PlantedGrammar(
        good=_words("accurate thorough sound reliable elegant consistent rigorous valid"),
        bad=_words("buggy broken-down sloppy misleading confused brittle invalid dishonest"),
        filler=_words(
            "function returns list value when loop index counts each number string key file reads "
            "writes test case input output line of to from into"
        ),
        praise=(("amazing", "request"), ("superb", "task"), ("impressive", "insight")),
        prompt="Write code for {kind} {thing} on {place}!",
        kinds=_words("parallel sorted cached nested binary lazy-loaded typed async signed sparse"),
        things=_words("queues trees graphs tables parsers servers buffers matrices heaps caches"),
        places=_words("linux windows phones clusters browsers laptops servers-only chips"),
    ),
}
"""Name to grammar; all words of an answer differ between the two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFeatures:
    """Features that decide the latent reward of an answer, read from its words."""

    quality: int
    """Good words less bad ones."""
    length: int
    """Words."""
    praise: int
    """Phrases of praise."""


def answer_features(text: str) -> AnswerFeatures:
    """Count the words of an answer of either grammar; any other text has a length alone."""
    words = text.lower().replace(".", " ").split()
    quality = praise = 0
    for grammar in GRAMMARS.values():
        quality += sum((word in grammar.good) - (word in grammar.bad) for word in words)
        praise += sum(pair in grammar.praise for pair in pairwise(words))
    return AnswerFeatures(quality=quality, length=len(words), praise=praise)


def latent_reward(text: str, weights: Mapping[str, float] | None = None) -> float:
    """u = a * quality + b * length + c * praise of an answer: the reward a model should find.

    Args:
        text: the answer.
        weights: as of `planted_pairs`.

    Raises:
        DataError: an unknown feature, or a weight that is not a finite number.
    """
    return _latent(answer_features(text), _checked_weights(weights))


def planted_pairs(
    n: int = 1000,
    *,
    seed: int = 0,
    split: str = "train",
    weights: Mapping[str, float] | None = None,
    grammar: str = "A",
) -> list[PreferencePair]:
    """Pairs with labels drawn by a planted Bradley-Terry model.

    `label_probability` is the true probability that `chosen` is the better one, and `margin` the
    difference of the latent rewards, below 0 where the label was drawn against them. The first
    pairs of a larger `n` are those of a smaller one. Number of words, quality and praise of an
    answer do not depend on one another.

    Args:
        n: pairs.
        seed: of everything that is drawn.
        split: `train` or `test`, which share no prompt.
        weights: `quality`, `length` (a word) and `praise` (a phrase); one that is left out has the
            value of `DEFAULT_WEIGHTS`.
        grammar: `A`, or `B` for a distribution that shares no word with it.

    Raises:
        DataError: an argument that cannot be used.
    """
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise DataError(f"planted pairs: n is {n!r}, expected a whole number from 1")
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise DataError(f"planted pairs: seed is {seed!r}, expected a whole number")
    if split not in SPLITS:
        raise DataError(f"planted pairs: split {choices(str(split), SPLITS)}")
    if grammar not in GRAMMARS:
        raise DataError(f"planted pairs: grammar {choices(str(grammar), GRAMMARS)}")
    checked = _checked_weights(weights)
    return [_pair(grammar, split, f"{seed}/{number}", checked) for number in range(n)]


def bayes_accuracy(pairs: Sequence[PreferencePair]) -> float:
    """Accuracy that the true model has on average over the labels: mean of max(q, 1 - q).

    No model can expect more on drawn labels.

    Raises:
        DataError: no pairs, or one whose label probability is not known.
    """
    if not pairs:
        raise DataError("bayes_accuracy: got no pairs, expected at least 1")
    total: list[float] = []
    for pair in pairs:
        q = pair.label_probability
        if q is None:
            raise DataError(
                f"bayes_accuracy: pair {pair.id} has no label_probability, so the truth about it "
                "is not known; expected planted pairs, or labels drawn with a known probability"
            )
        total.append(max(q, 1.0 - q))
    return math.fsum(total) / len(total)


def _checked_weights(weights: Mapping[str, float] | None) -> dict[str, float]:
    if not isinstance(weights, Mapping | None):
        raise DataError(
            f"planted pairs: weights are {weights!r}, expected a mapping as {DEFAULT_WEIGHTS}"
        )
    for name, value in (weights or {}).items():
        if name not in FEATURES:
            raise DataError(f"planted pairs: weight of {choices(str(name), FEATURES)}")
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not math.isfinite(value):
            raise DataError(
                f"planted pairs: weight of {name} is {value!r}, expected a finite number"
            )
    return {**DEFAULT_WEIGHTS, **(weights or {})}


def _latent(features: AnswerFeatures, weights: Mapping[str, float]) -> float:
    return math.fsum(weights[name] * getattr(features, name) for name in FEATURES)


def _pair(name: str, split: str, number: str, weights: Mapping[str, float]) -> PreferencePair:
    """One pair, drawn from nothing but its id."""
    key, grammar = f"planted/{name}/{split}/{number}", GRAMMARS[name]
    draw = random.Random(key)
    prompt = _prompt(draw, grammar, split)
    first = _answer(draw, grammar)
    while (second := _answer(draw, grammar)) == first:
        pass
    margin = latent_reward(first, weights) - latent_reward(second, weights)
    if draw.random() >= _sigmoid(margin):
        first, second, margin = second, first, -margin
    return PreferencePair(
        id=key,
        prompt=(Message(role="user", content=prompt),),
        chosen=_completion(first),
        rejected=_completion(second),
        margin=margin + 0.0,  # -0.0 becomes 0.0
        label_probability=_sigmoid(margin),
        task_id=prompt,
        source=f"planted {name}",
    )


def _prompt(draw: random.Random, grammar: PlantedGrammar, split: str) -> str:
    while True:
        text = grammar.prompt.format(
            kind=draw.choice(grammar.kinds),
            thing=draw.choice(grammar.things),
            place=draw.choice(grammar.places),
        )
        if (zlib.crc32(text.encode()) % _TEST_SHARE == 0) == (split == "test"):
            return text


def _answer(draw: random.Random, grammar: PlantedGrammar) -> str:
    praise = [
        word for _ in range(draw.randint(0, _MOST_PRAISE)) for word in draw.choice(grammar.praise)
    ]
    good = draw.choices(grammar.good, k=draw.randint(0, _MOST_MARKED))
    bad = draw.choices(grammar.bad, k=draw.randint(0, _MOST_MARKED))
    # The whole length is drawn, so that fillers make up for what the other words leave.
    length = draw.randint(2 * (_MOST_PRAISE + _MOST_MARKED), _MOST_WORDS)
    rest = length - len(praise) - len(good) - len(bad)
    words = good + bad + draw.choices(grammar.filler, k=rest)
    draw.shuffle(words)
    return f"{' '.join([*praise, *words]).capitalize()}."


def _completion(text: str) -> Completion:
    return Completion(messages=(Message(role="assistant", content=text),))


def _sigmoid(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-x)) if x >= 0 else math.exp(x) / (1.0 + math.exp(x))
