"""Images in the text of messages and tool results: a mark for each, and words for readers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from agentrl.errors import DataError
from agentrl.images.reading import read_image
from agentrl.types import IMAGE_MARK, Image, Message, Role, ToolResult

Shown = TypeVar("Shown", Message, ToolResult)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpandedImage:
    """The text that takes the place of an image's token, and its size."""

    text: str
    """Placeholders and the markers of the model's family between and around them."""
    grid: tuple[int, int, int]
    """As in `ImageSpan.grid`."""

    @property
    def features(self) -> int:
        """Number of placeholders in `text`."""
        frames, rows, columns = self.grid
        return frames * rows * columns


def message(role: Role, parts: str | Sequence[Any]) -> Message:
    """A message of texts and images, in their order.

    Args:
        role: of the speaker.
        parts: texts, images in any form that `read_image` takes, and the dictionaries of chat
            formats: `{"type": "text", "text": ...}`, `{"type": "image", "image": ...}`,
            `{"type": "image_url", "image_url": {"url": ...}}`. A plain string in the list is text.

    Raises:
        DataError: a part that is neither, or an image that cannot be read.

    Example:
        >>> message("user", ["Press", {"type": "text", "text": " the button."}]).content
        'Press the button.'
    """
    if isinstance(parts, str):
        return Message(role=role, content=parts)
    texts: list[str] = []
    images: list[Image] = []
    for part in parts:
        text = _text_of(part)
        if text is None:
            images.append(read_image(part))
            texts.append(IMAGE_MARK)
        else:
            texts.append(text.replace(IMAGE_MARK, "\ufffd"))
    return Message(role=role, content="".join(texts), images=tuple(images))


def placed(shown: Shown) -> Shown:
    """A message or result whose images are records, with one mark in its text for each.

    Raises:
        DataError: an image that cannot be read, or marks whose number is another one.
    """
    if not shown.images:
        return shown
    images = tuple(read_image(image) for image in shown.images)
    name = "content" if isinstance(shown, Message) else "text"
    text: str = getattr(shown, name)
    marks = text.count(IMAGE_MARK)
    if marks == 0:
        text = IMAGE_MARK * len(images) + text
    elif marks != len(images):
        raise DataError(
            f"{type(shown).__name__} has {len(images)} images, but {marks} marks (U+FFFC) in its "
            f"{name}; write one mark for each, or none to have the images before the text"
        )
    return replace(shown, images=images, **{name: text})


def words(text: str, images: Sequence[Image]) -> str:
    """The text of a message for readers: its images as `[image 64x48 9f86d081]`.

    Example:
        >>> words("a" + IMAGE_MARK, [Image(digest="9f86d081", data=b"", width=64, height=48)])
        'a[image 64x48 9f86d081]'
    """
    if not images:
        return text
    first, *rest = text.split(IMAGE_MARK)
    return first + "".join(label(of) + part for of, part in zip(images, rest, strict=True))


def label(image: Image) -> str:
    """The words that stand for an image in a text for readers."""
    return f"[image {image.width}x{image.height} {image.digest[:8]}]"


def without_pictures(message: Message) -> Message:
    """A message as a reader of text only is given it, with words for its images."""
    if not message.images:
        return message
    return replace(message, content=words(message.content, message.images), images=())


def without_images(results: Iterable[ToolResult]) -> tuple[ToolResult, ...]:
    """Tool results as they are recorded: the bytes of their images stay in the image folder."""
    return tuple(
        replace(result, text=words(result.text, result.images), images=())
        if result.images
        else result
        for result in results
    )


def _text_of(part: Any) -> str | None:
    """The text of a part; None where it is an image."""
    if isinstance(part, str):
        return part
    if isinstance(part, Mapping) and isinstance(part.get("text"), str):
        return part["text"]
    return None
