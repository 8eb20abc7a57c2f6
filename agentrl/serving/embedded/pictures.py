"""Images of a prompt as the rows of the cache and the passes of the model need them.

A row of the cache is compared with a prompt by its ids, and the placeholders of two images have the
same ids. So in the cache each placeholder is a negative number that belongs to one image: prefixes
are reused as far as ids *and* images agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from agentrl.errors import EngineRefused
from agentrl.models.vision.embed import PlacedFeatures, rotary_positions
from agentrl.models.vision.reader import VisionReader
from agentrl.types import ImageSpan


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PromptImages:
    """The images of one prompt of L tokens."""

    keys: np.ndarray
    """[L] int32 ids, with the number of the image (below 0) in place of each placeholder."""
    feature: np.ndarray
    """[L] Number of the feature inside its image; -1 where no image is."""
    spans: tuple[ImageSpan, ...]
    """Images, by position."""
    positions: np.ndarray
    """[3, L] Rotary positions by frame, row and column."""
    offset: int
    """Rotary position of the token behind the prompt, less L."""
    sees: np.ndarray
    """[L] Last position that each token attends to: its own, or the end of its image where the
    model reads an image as a whole."""

    def cut(self, at: int) -> int:
        """The last position up to `at` where a prompt may be divided: in no image that is whole."""
        while at and self.sees[at - 1] >= at:
            at -= 1
        return at

    def within(self, start: int, end: int) -> list[PlacedFeatures]:
        """Features that stand in a part of the prompt, with positions inside that part."""
        found: list[PlacedFeatures] = []
        for number, span in enumerate(self.spans):
            first, last = max(start, span.start), min(end, span.end)
            at = first + np.flatnonzero(self.feature[first : max(first, last)] >= 0)
            if len(at):
                found.append(
                    PlacedFeatures(
                        digest=span.digest,
                        first=int(self.feature[at[0]]),
                        positions=np.asarray(at, dtype=np.int64) - start,
                        what=f"image {number} of the prompt",
                    )
                )
        return found


class ImageNumbers:
    """Numbers of the images that an engine has seen: below 0, and the same for the same image."""

    def __init__(self, reader: VisionReader) -> None:
        self._reader = reader
        self._numbers: dict[str, int] = {}

    def read(self, prompt: np.ndarray, spans: Sequence[ImageSpan], session_id: str) -> PromptImages:
        """The images of a prompt. A placeholder that the model has sampled belongs to none.

        Raises:
            EngineRefused: an image whose placeholders are not those among the ids.
        """
        placeholder = self._reader.placeholder_id
        keys, feature = prompt.copy(), np.full(len(prompt), -1, dtype=np.int32)
        sees = np.arange(len(prompt))
        for number, span in enumerate(spans):
            inside = prompt[span.start : span.end] == placeholder
            if span.end > len(prompt) or int(inside.sum()) != span.features:
                raise EngineRefused(
                    f"request of session {session_id!r}: image {number} ({span.digest[:8]}) has "
                    f"{int(inside.sum())} placeholders at {span.start} to {span.end} of "
                    f"{len(prompt)} tokens, expected {span.features}"
                )
            at = span.start + np.flatnonzero(inside)
            keys[at] = self._numbers.setdefault(span.digest, -1 - len(self._numbers))
            feature[at] = np.arange(span.features)
            if self._reader.family.mutual:
                sees[at] = at[-1]
        positions = rotary_positions(self._reader, spans, len(prompt) + 1)
        return PromptImages(
            keys=keys,
            feature=feature,
            spans=tuple(spans),
            positions=positions[:, :-1],
            offset=int(positions[0, -1]) - len(prompt),
            sees=sees,
        )
