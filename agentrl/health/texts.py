"""Measures of texts that need no model: loops, likeness, and unlikely letters.

All costs are bounded: so many texts, so many characters of each.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from statistics import fmean

_CHARS = 1500
_PAIRS = 120
_NGRAM = 4
_SHINGLE = 5
_LEAST_WORDS = 24
"""Too short to loop."""
_LEAST_CHARS = 25
"""Too short to be alike for any other reason than being short."""
_ALIKE = 0.7
"""Jaccard similarity of two near-identical texts."""


def repeated_share(text: str) -> float:
    """Share of 4-word sequences that stand earlier in the text already; 0 for short texts.

    Words are runs of letters or digits, or single other signs; a text without spaces is split into
    pairs of characters, so that `ababab...` counts as a loop, too.

    Example:
        >>> round(repeated_share("the same four words " * 20), 2)
        0.95
    """
    words = re.findall(r"\w+|[^\w\s]", text[: 4 * _CHARS])
    if len(words) < _LEAST_WORDS and len(text) >= 2 * _LEAST_WORDS:
        words = [text[index : index + 2] for index in range(0, min(len(text), _CHARS), 2)]
    if len(words) < _LEAST_WORDS:
        return 0.0
    grams = [tuple(words[index : index + _NGRAM]) for index in range(len(words) - _NGRAM + 1)]
    return 1 - len(set(grams)) / len(grams)


def alike_share(texts: Sequence[tuple[str, str]]) -> float | None:
    """Share of pairs of texts on different tasks that are near-identical.

    Args:
        texts: (task, text) of each.

    Returns:
        None with fewer than 4 tasks, or where most texts are too short to judge.
    """
    by_task: dict[str, frozenset[str]] = {}
    short = 0
    for task, text in texts:
        if task not in by_task:
            plain = re.sub(r"\d+", "0", " ".join(text[:_CHARS].lower().split()))
            short += len(plain) < _LEAST_CHARS
            by_task[task] = frozenset(
                plain[index : index + _SHINGLE] for index in range(len(plain) - _SHINGLE + 1)
            )
    if len(by_task) < 4 or short > len(by_task) / 2:
        return None
    pairs = list(combinations(by_task.values(), 2))
    stride = max(1, len(pairs) // _PAIRS)
    return fmean(_similarity(a, b) >= _ALIKE for a, b in pairs[::stride])


def _similarity(a: frozenset[str], b: frozenset[str]) -> float:
    both = len(a | b)
    return len(a & b) / both if both else 0.0


class LetterModel:
    """A character trigram model with interpolation down to single characters.

    It knows nothing of language but what it was shown, which is the point: it says how surprising
    a text is to a reader who has only seen the other texts.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        """Count what stands in `texts`."""
        self._counts = [Counter[str](), Counter[str](), Counter[str]()]
        self._before = [Counter[str](), Counter[str](), Counter[str]()]
        for text in texts:
            part = "\x02\x02" + text[:_CHARS]
            for index in range(2, len(part)):
                for order in range(3):
                    start = index - order
                    self._counts[order][part[start : index + 1]] += 1
                    self._before[order][part[start:index]] += 1

    def bits(self, texts: Sequence[str]) -> float | None:
        """Mean surprise in bits a character; None without a character."""
        total, count = 0.0, 0
        for text in texts:
            part = "\x02\x02" + text[:_CHARS]
            for index in range(2, len(part)):
                total -= math.log2(self._probability(part, index))
                count += 1
        return total / count if count else None

    def _probability(self, part: str, index: int) -> float:
        # Witten-Bell would weigh contexts by how many continuations they have; a fixed weight of
        # 2 does as well here, where only differences between texts count.
        probability = 1 / 4096
        for order in range(3):
            start = index - order
            seen = self._before[order][part[start:index]]
            count = self._counts[order][part[start : index + 1]]
            probability = (count + 2 * probability) / (seen + 2)
        return probability
