"""Images in a conversation: their slots in rendered text, and their tokens among the ids.

The template writes one token for an image; the processor of the model makes of it as many
placeholders as the image has features, and perhaps markers between them. That happens once, when
the text that holds the image is encoded. Ids are never rendered again, so nothing is expanded
twice. Which placeholders belong to which image is read off the ids and checked by count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from agentrl.errors import ChatError
from agentrl.images import ExpandedImage
from agentrl.types import IMAGE_MARK, Image, ImageSpan, Message

IMAGE_SLOT = "\ufdd3"
"""Stands for an image in guarded contents. A Unicode noncharacter: foreign text cannot hold it,
since `slotted` replaces it there."""


class ImageReader(Protocol):
    """The image processor of a model, as a chat format needs it."""

    token: str
    """Text that the chat template writes for an image, and that is expanded."""
    placeholder: str
    """Text of the token that stands for one feature of an image."""
    placeholder_id: int
    """Id of `placeholder`."""

    def expand(self, image: Image) -> ExpandedImage:
        """The text of an image; keeps its file for those who compute its features.

        Raises:
            DataError: the image is damaged.
        """
        ...

    def probes(self) -> Sequence[Image]:
        """Three small images of different sizes, for the proof at the start."""
        ...


def slotted(message: Message, *, image_slots: bool) -> list[str]:
    """The texts of a message between its images.

    Args:
        message: with one mark for each image.
        image_slots: whether the format has a reader, so that `IMAGE_SLOT` has a meaning.

    Raises:
        ChatError: the message has images, and the format reads none, or other marks than images.
    """
    content = message.content
    if not message.images:
        return [content.replace(IMAGE_SLOT, "\ufffd") if image_slots else content]
    if not image_slots:
        raise ChatError(
            f"a {message.role} message has {len(message.images)} images, but the model of this run "
            "is given text only; images are shown to a vision-language model as model.path"
        )
    texts = content.replace(IMAGE_SLOT, "\ufffd").split(IMAGE_MARK)
    if len(texts) != len(message.images) + 1:
        raise ChatError(
            f"a {message.role} message has {len(message.images)} images and {len(texts) - 1} marks "
            "(U+FFFC) in its text; make it with agentrl.images.message"
        )
    return texts


def part_entries(content: str) -> list[dict[str, Any]]:
    """The content of an entry for a chat template, as a list of texts and images.

    Example:
        >>> part_entries("Look: " + IMAGE_SLOT)
        [{'type': 'text', 'text': 'Look: '}, {'type': 'image'}]
    """
    parts: list[dict[str, Any]] = []
    for number, text in enumerate(content.split(IMAGE_SLOT)):
        if number:
            parts.append({"type": "image"})
        if text:
            parts.append({"type": "text", "text": text})
    return parts


def expand_all(text: str, images: Sequence[Image], reader: ImageReader) -> str:
    """Rendered text with the token of each image expanded.

    Raises:
        ChatError: the template wrote another number of tokens.
    """
    first, *rest = text.split(reader.token)
    if len(rest) != len(images):
        raise ChatError(
            f"the chat template writes {reader.token!r} {len(rest)} times for {len(images)} images"
        )
    return first + "".join(
        reader.expand(image).text + part for image, part in zip(images, rest, strict=True)
    )


def find_spans(
    ids: Sequence[int], images: Sequence[Image], reader: ImageReader, *, turn: int = 0
) -> tuple[ImageSpan, ...]:
    """The spans of the placeholders of each image.

    Args:
        ids: of a prompt or delta that shows these images and no others.
        images: in order.
        reader: that expanded them.
        turn: number of the turn, for the message of an error.

    Raises:
        ChatError: the number of placeholders is not that of the features.
    """
    if not images:
        return ()
    at = [position for position, token in enumerate(ids) if token == reader.placeholder_id]
    spans: list[ImageSpan] = []
    for number, image in enumerate(images):
        expanded = reader.expand(image)
        own, at = at[: expanded.features], at[expanded.features :]
        if len(own) != expanded.features or (number == len(images) - 1 and at):
            raise ChatError(
                f"turn {turn}, image {number} ({image.width}x{image.height}, {image.digest[:8]}): "
                f"{len(own) + len(at)} placeholders among the ids for {expanded.features} features"
            )
        spans.append(
            ImageSpan(
                digest=image.digest,
                start=own[0],
                tokens=own[-1] + 1 - own[0],
                grid=expanded.grid,
            )
        )
    return tuple(spans)


def images_of(messages: Sequence[Message]) -> list[Image]:
    """Images of a conversation, in order."""
    return [image for message in messages for image in message.images]


def as_parts(entry: Mapping[str, Any]) -> dict[str, Any]:
    """An entry for a chat template with its content as a list of parts."""
    content = entry["content"]
    return {**entry, "content": part_entries(content) if isinstance(content, str) else content}
