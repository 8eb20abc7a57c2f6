"""Measures whether reading a text takes time in proportion to its length.

A model can write any token a million times, and most of what reads its text runs on the event loop
of all rollouts. Absolute times differ from machine to machine, so two lengths are compared.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

SMALL, LARGE, HUGE = 2**12, 2**16, 2**20
"""Characters of the texts that are compared."""
ENOUGH = 3
"""Tokens after which no more are looked for: each of them takes seconds."""
_TOLERANCE = 4.0
"""What the time of a character may grow by: caches, allocations, another process. What reads a text
twice as long in four times the time grows by 16 from one length to the next."""
_FLOOR_S = 5e-7
"""Seconds a character that nothing is measured below; a second for two megabytes."""
_PIECE = re.compile(r"</?\w+[^<>\n]{0,40}>|\[/?[A-Z_]+\]|<\|\w+\|>|\w+|[^\w\s]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """Processor seconds for one character at two lengths of text."""

    token: str
    """The text that was repeated, behind its beginning."""
    short: int
    """Characters of the shorter text."""
    long: int
    """Characters of the longer one."""
    short_s: float
    """Seconds a character in the shorter text."""
    long_s: float
    """Seconds a character in the longer one."""

    @property
    def linear(self) -> bool:
        """True if the time of a character does not grow with the length."""
        return self.long_s <= _TOLERANCE * max(self.short_s, _FLOOR_S)

    def __str__(self) -> str:
        return (
            f"{self.token[:40]!r}: {self.short_s * 1e6:.3f} us a character of {self.short}, "
            f"{self.long_s * 1e6:.3f} of {self.long}"
        )


def growth(
    read: Callable[[str], object], token: str, *, begin: str = "", short: int, long: int
) -> Growth:
    """Time `read` on `begin` and `token` repeated, at two lengths.

    A longer text that seems slow is timed again before it is called so: the least of the times
    counts, as nothing makes a computer too fast.
    """
    texts = [repeated(token, size, begin) for size in (short, long)]
    times = [_seconds(read, text) / max(1, len(text)) for text in texts]
    for _ in range(2):
        found = Growth(token=f"{begin}{token}", short=short, long=long,
                       short_s=times[0], long_s=times[1])  # fmt: skip
        if found.linear:
            return found
        # Not the shorter one: a slow first time would hide a growth.
        times[1] = min(times[1], _seconds(read, texts[1]) / max(1, len(texts[1])))
    return Growth(token=f"{begin}{token}", short=short, long=long,
                  short_s=times[0], long_s=times[1])  # fmt: skip


def superlinear(
    read: Callable[[str], object],
    tokens: Iterable[str],
    *,
    begins: Sequence[str] = ("",),
    most: int = HUGE,
) -> list[Growth]:
    """Repeated tokens on which `read` takes more time a character the longer the text is.

    Args:
        read: what takes a text.
        tokens: each is repeated.
        begins: texts that the repetition stands behind; the longest texts have none.
        most: characters of the longest text.
    """
    found: list[Growth] = []
    for token in dict.fromkeys(tokens):
        for begin in dict.fromkeys(begins):
            steps = [(SMALL, min(LARGE, most))]
            if not begin and most > LARGE:
                steps.append((LARGE, most))
            for short, long in steps:
                measured = growth(read, token, begin=begin, short=short, long=long)
                if not measured.linear:
                    found.append(measured)
                    break
            if len(found) == ENOUGH:
                return found
    return found


def repeated(token: str, size: int, begin: str = "") -> str:
    """`begin` and then `token` again and again, in about `size` characters."""
    return begin + token * max(1, (size - len(begin)) // max(1, len(token)))


def characters() -> list[str]:
    """Single characters that patterns tell apart: ASCII, and one of each other kind."""
    return [*map(chr, range(128)), "\u00e9", "\u4e16", "\U0001f389", "\u2028", "\ufffd", "\ud800"]


def pieces_of(*texts: str) -> list[str]:
    """The marks and words of some texts, each alone, with a space and with a line break; the texts
    themselves and their lines.

    Example:
        >>> pieces_of("<a>b")[:4]
        ['<a>b', '<a>', '<a> ', '<a>\\n']
    """
    found: list[str] = [line for text in texts for line in (text, *text.splitlines()) if line]
    for text in texts:
        for match in _PIECE.finditer(text):
            found += [match[0], f"{match[0]} ", f"{match[0]}\n"]
    return list(dict.fromkeys(found))


def _seconds(read: Callable[[str], object], text: str) -> float:
    """Processor seconds of this thread, so that other processes do not count."""
    started = time.thread_time()
    read(text)
    return time.thread_time() - started
