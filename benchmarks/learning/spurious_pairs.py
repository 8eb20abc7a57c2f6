"""Pairs whose labels follow the true score, and a phrase of praise that only goes along with it.

The better answer of a pair always has more quality. A source of pairs, as a group of annotators
or a model that wrote the answers, has a phrase of its own that most better answers begin with and
most worse ones do not. An answer without it begins with the phrase of another source or with none,
all alike, so that those tell no more than none does.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hidden_truth import count_words

from agentrl.testing.preferences import GRAMMARS

SOURCES = len(GRAMMARS["A"].praise)
"""Sources of pairs, each with a phrase of praise."""


def prompt_of(draw: random.Random) -> str:
    """A question of grammar A."""
    grammar = GRAMMARS["A"]
    return grammar.prompt.format(
        kind=draw.choice(grammar.kinds),
        thing=draw.choice(grammar.things),
        place=draw.choice(grammar.places),
    )


def answer_of(draw: random.Random, praise: int | None) -> str:
    """An answer of 8 to 14 words, of which the first two may be phrase `praise`."""
    grammar = GRAMMARS["A"]
    start = () if praise is None else grammar.praise[praise]
    words = draw.choices(grammar.good, k=draw.randint(0, 3))
    words += draw.choices(grammar.bad, k=draw.randint(0, 3))
    words += draw.choices(grammar.filler, k=draw.randint(8, 14) - len(words) - len(start))
    draw.shuffle(words)
    return " ".join([*start, *words, "."])


def spurious_pairs(n: int, *, seed: str, source: int, spurious: float) -> list[dict[str, str]]:
    """Pairs of one source.

    Args:
        n: pairs.
        seed: of everything that is drawn.
        source: whose phrase goes along with the label, from 0.
        spurious: probability that the better answer begins with that phrase, and that the worse
            does not; 0.5 tells nothing.
    """
    draw = random.Random(seed)
    found: list[dict[str, str]] = []
    while len(found) < n:
        better, worse = (
            answer_of(draw, _start(draw, source, chance)) for chance in (spurious, 1 - spurious)
        )
        if count_words(better)["quality"] > count_words(worse)["quality"]:
            found.append({"prompt": prompt_of(draw), "chosen": better, "rejected": worse})
    return found


def conversations(n: int, *, seed: str) -> list[dict[str, Any]]:
    """Conversations whose answers begin with any of the phrases, or with none."""
    draw = random.Random(seed)
    return [
        {
            "messages": [
                {"role": "user", "content": prompt_of(draw)},
                {"role": "assistant", "content": answer_of(draw, _start(draw, 0, 1 / 3))},
            ]
        }
        for _ in range(n)
    ]


def tasks(n: int, *, name: str, seed: str) -> list[dict[str, str]]:
    """Tasks with questions of grammar A."""
    draw = random.Random(seed)
    return [{"id": f"{name}-{number}", "prompt": prompt_of(draw)} for number in range(n)]


def write_lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Write one JSON object a line."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def _start(draw: random.Random, source: int, chance: float) -> int | None:
    """The phrase of a source with a probability; else one of the others, or none, alike."""
    if draw.random() < chance:
        return source
    return draw.choice([None, *(other for other in range(SOURCES) if other != source)])
