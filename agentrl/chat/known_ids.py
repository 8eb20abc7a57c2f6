"""Ids of texts that were encoded a moment ago.

A tool's output is encoded when its tokens are counted and again when it is appended, behind other
text each time. The part of it that reads the same in both places (`segments.core`) is remembered
between the two, so that it is encoded once.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable

_MOST_CHARACTERS = 4 << 20
"""Characters remembered, which is all outputs of some hundred conversations; 8 bytes or fewer each
where texts are ASCII."""


class KnownIds:
    """Remembers the ids of the texts that were asked for last."""

    def __init__(self, encode: Callable[[str], list[int]]) -> None:
        self._encode = encode
        self._ids: dict[str, array[int]] = {}
        self._characters = 0
        # Long texts are encoded in threads; the lock keeps `_characters` the sum over `_ids`.
        self._lock = threading.Lock()
        self.encoded = 0
        """Texts encoded so far."""

    def get(self, text: str) -> array[int]:
        """Ids of `text`, encoded now if they are not remembered."""
        with self._lock:
            ids = self._ids.pop(text, None)
            if ids is not None:
                self._ids[text] = ids  # now the one that is forgotten last
                return ids
        ids = array("q", self._encode(text))
        with self._lock:
            self.encoded += 1
            if text not in self._ids:
                self._ids[text] = ids
                self._characters += len(text)
            while self._characters > _MOST_CHARACTERS:
                oldest = next(iter(self._ids))
                del self._ids[oldest]
                self._characters -= len(oldest)
        return ids
