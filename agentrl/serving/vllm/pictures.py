"""Images of prompts as vLLM's token endpoint takes them.

The endpoint expands images itself, so a prompt goes there with one placeholder in the place of all
that stands for an image, and files beside it (`content_parts`). The answer repeats the ids it was
sampled after (`return_token_ids`): they must be the caller's, or the turn is refused.

A server keeps images that it has processed, by digest. So a file is sent to it once, and again only
where the server has dropped it.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, Protocol

import orjson

from agentrl.errors import EngineRefused
from agentrl.types import ImageSpan

Parts = list[dict[str, Any]]


class PictureSource(Protocol):
    """The images of a run, as a client of its servers needs them."""

    placeholder_id: int
    """Id that stands for one feature of an image."""

    @property
    def markers(self) -> tuple[int, int]:
        """Tokens of an image before its first placeholder and behind its last one."""
        ...

    def png(self, digest: str) -> bytes:
        """A file with the very pixels that the trainer decodes."""
        ...


class PromptPictures:
    """Images of the prompts of one server."""

    def __init__(self, source: PictureSource) -> None:
        """Take the images of a run; the server has none of them yet."""
        self._source = source
        self._known: set[str] = set()

    def collapsed(
        self, prompt_ids: Sequence[int], images: Sequence[ImageSpan], session_id: str
    ) -> list[int]:
        """The ids of a prompt with one placeholder for each image.

        Raises:
            EngineRefused: an image whose placeholders are not those among the ids, or placeholders
                that belong to no image, which the server would show one at.
        """
        before, after = self._source.markers
        placeholder = self._source.placeholder_id
        out: list[int] = []
        at = 0
        for number, span in enumerate(images):
            found = list(prompt_ids[span.start : span.end]).count(placeholder)
            if found != span.features or span.start - before < at:
                raise EngineRefused(
                    f"request of session {session_id!r}: image {number} ({span.digest[:8]}) has "
                    f"{found} placeholders at {span.start} to {span.end} of {len(prompt_ids)} "
                    f"tokens, expected {span.features}"
                )
            out += [*prompt_ids[at : span.start - before], placeholder]
            at = span.end + after
        out += prompt_ids[at:]
        if (extra := out.count(placeholder) - len(images)) > 0:
            raise EngineRefused(
                f"request of session {session_id!r}: {extra} placeholders of images (id "
                f"{placeholder}) belong to none of its {len(images)} images; the model has sampled "
                "them, and a vLLM server would show an image there"
            )
        return out

    def parts(self, images: Sequence[ImageSpan], *, whole: bool) -> Parts:
        """The parts beside the ids: files, or digests alone where the server has the image.

        Args:
            images: of the prompt.
            whole: send every file.
        """
        return [
            {
                "type": "image_url",
                "uuid": span.digest,
                "url": None
                if span.digest in self._known and not whole
                else _data_url(self._source.png(span.digest)),
            }
            for span in images
        ]

    def all_known(self, images: Sequence[ImageSpan]) -> bool:
        """True if no file has to be sent for a prompt."""
        return all(span.digest in self._known for span in images)

    def check(
        self, body: bytes, prompt_ids: Sequence[int], images: Sequence[ImageSpan], session_id: str
    ) -> None:
        """Compare the ids that the server has sampled after with those of the caller.

        Raises:
            EngineRefused: they differ; names the image.
        """
        answer = orjson.loads(body)
        theirs, ours = answer.get("prompt_token_ids"), list(prompt_ids)
        if theirs == ours:
            self._known.update(span.digest for span in images)
            return
        if not isinstance(theirs, list):
            raise EngineRefused(
                f"request of session {session_id!r}: the vLLM server does not repeat the ids of a "
                "prompt with images (return_token_ids), so nothing shows that it has expanded them "
                "as the trainer; images need vLLM 0.32 or newer"
            )
        pairs = enumerate(zip(theirs, ours, strict=False))
        first = next((at for at, (a, b) in pairs if a != b), min(len(theirs), len(ours)))
        number = sum(span.start <= first for span in images) - 1
        what = "text before the first image"
        if number >= 0:
            span = images[number]
            ranges = (answer.get("mm_placeholders") or {}).get("image") or []
            length = ranges[number]["length"] if number < len(ranges) else "no"
            what = (
                f"image {number} ({span.digest[:8]}, {sum(self._source.markers) + span.tokens} "
                f"tokens here, {length} at the server) or behind it"
            )
        raise EngineRefused(
            f"request of session {session_id!r}: the vLLM server made {len(theirs)} tokens of a "
            f"prompt of {len(ours)}; they differ from token {first}, in {what}; serve the "
            "checkpoint of model.path with its own image processor"
        )


def misses_image(body: bytes) -> bool:
    """True if a server refused a turn because it has dropped an image that was named by digest."""
    return b"Cache miss for image" in body


def _data_url(data: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(data).decode()
