"""Measures of texts that need no model: loops, likeness, and unlikely letters.

All costs are bounded: so many texts, so many characters of each.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations, islice
from statistics import fmean

_CHARS = 1500
_DIGITS = str.maketrans("123456789", "000000000")
_PAIRS = 120
_NGRAM = 4
SHINGLE = 5
"""Characters of the pieces by which texts are compared."""
_LEAST_WORDS = 24
"""Too short to loop."""
LEAST_CHARS = 25
"""Shorter texts are alike for no other reason than being short."""
_WORDING = 12
"""Words from which an answer has a wording that others could share."""
_COPIED_WORDS = 6
"""Words from which an answer may be a copy."""
_AGREE = 0.5
"""Similarity, in the words that most tasks do not share, of siblings that give one answer."""
ALIKE = 0.7
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


def plain_text(text: str) -> str:
    """The beginning of a text without what does not make two texts differ: case, space, numbers.

    Example:
        >>> plain_text("The  sum is 12,\\nI think")
        'the sum is 0, i think'
    """
    plain = " ".join(text[:_CHARS].lower().split())
    if not plain.isascii():
        return re.sub(r"\d+", "0", plain)
    # The same without an expression, at a fraction of the time: the inspector does it for 10^5.
    plain = plain.translate(_DIGITS)
    while "00" in plain:
        plain = plain.replace("00", "0")
    return plain


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
            plain = plain_text(text)
            short += len(plain) < LEAST_CHARS
            by_task[task] = frozenset(
                plain[index : index + SHINGLE] for index in range(len(plain) - SHINGLE + 1)
            )
    if len(by_task) < 4 or short > len(by_task) / 2:
        return None
    pairs = list(combinations(by_task.values(), 2))
    stride = max(1, len(pairs) // _PAIRS)
    return fmean(_similarity(a, b) >= ALIKE for a, b in pairs[::stride])


def _similarity(a: frozenset[str], b: frozenset[str]) -> float:
    both = len(a | b)
    return len(a & b) / both if both else 0.0


def common_share(texts: Sequence[tuple[str, str]]) -> float | None:
    """Share of the 3-word sequences of an answer that answers to most other tasks have, too.

    Args:
        texts: (task, text) of each; the first of each task counts.

    Returns:
        None with fewer than 4 tasks whose answer is long enough to have a wording.
    """
    grams: dict[str, set[tuple[str, ...]]] = {}
    for task, text in texts:
        words = _words(text)
        if len(words) >= _WORDING and task not in grams:
            grams[task] = set(zip(words, words[1:], words[2:], strict=False))
    if len(grams) < 4:
        return None
    counts = Counter(gram for of_task in grams.values() for gram in of_task)
    most = len(grams) / 2
    return fmean(fmean(counts[gram] > most for gram in of_task) for of_task in grams.values())


def copied_share(answer: str, prompt: str) -> float | None:
    """Share of the 3-word sequences of an answer that stand in its prompt.

    Returns:
        None for an answer of too few words to copy anything.

    Example:
        >>> copied_share("you are to pay the sum of ten", "Hereby you are to pay the sum of ten.")
        1.0
    """
    words = _words(answer)
    if len(words) < _COPIED_WORDS:
        return None
    grams, asked = (set(zip(of, of[1:], of[2:], strict=False)) for of in (words, _words(prompt)))
    return len(grams & asked) / len(grams)


def bound_to_task(texts: Sequence[tuple[str, str]]) -> bool:
    """True if answers to one task have in common what those to other tasks lack.

    That is what a right answer in a fixed form looks like: `so the sum of both is 12`, where
    siblings agree on the 12. What all tasks have in common is left out.

    Args:
        texts: (task, text) of each; siblings are needed.
    """
    by_task: dict[str, list[frozenset[str]]] = {}
    for task, text in texts:
        by_task.setdefault(task, []).append(frozenset(_words(text)))
    counts = Counter(word for of in by_task.values() for word in frozenset[str]().union(*of))
    common = {word for word, count in counts.items() if count > len(by_task) / 2}
    own = {task: [words - common for words in of] for task, of in by_task.items()}
    same = [_similarity(a, b) for of in own.values() for a, b in islice(combinations(of, 2), 8)]
    pairs = list(combinations([of[0] for of in own.values()], 2))
    other = [_similarity(a, b) for a, b in pairs[:: max(1, len(pairs) // _PAIRS)]]
    if not same or not other:
        return False
    return fmean(same) >= _AGREE and fmean(same) >= fmean(other) + _AGREE / 2


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text[:_CHARS].lower())


class LetterModel:
    """A character trigram model with interpolation down to single characters.

    It knows nothing of language but what it was shown, which is the point: it says how surprising
    a text is to a reader who has only seen the other texts.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        """Count what stands in `texts`."""
        self._counts = [Counter[str](), Counter[str](), Counter(_trigrams(texts))]
        self._before = [Counter[str](), Counter[str](), Counter[str]()]
        for gram, count in self._counts[2].items():
            for order in range(3):
                self._before[order][gram[2 - order : 2]] += count
            for order in range(2):
                self._counts[order][gram[2 - order :]] += count

    def bits(self, texts: Sequence[str]) -> float | None:
        """Mean surprise in bits a character; None without a character."""
        known: dict[str, float] = {}
        total, count = 0.0, 0
        for gram in _trigrams(texts):
            if gram not in known:
                known[gram] = -math.log2(self._probability(gram))
            total += known[gram]
            count += 1
        return total / count if count else None

    def _probability(self, gram: str) -> float:
        """Of the last character after the two before it."""
        # Witten-Bell would weigh contexts by how many continuations they have; a fixed weight of
        # 2 does as well here, where only differences between texts count.
        probability = 1 / 4096
        for order in range(3):
            seen = self._before[order][gram[2 - order : 2]]
            count = self._counts[order][gram[2 - order :]]
            probability = (count + 2 * probability) / (seen + 2)
        return probability


def _trigrams(texts: Sequence[str]) -> Iterator[str]:
    """Each character with the two before it; two marks stand before the first."""
    for text in texts:
        part = "\x02\x02" + text[:_CHARS]
        for start in range(len(part) - 2):
            yield part[start : start + 3]
