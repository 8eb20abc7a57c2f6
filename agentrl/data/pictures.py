"""Images of a row: parts of its messages, or a column whose items the prompt has places for.

The column is that of Hugging Face data sets (`{"bytes": ..., "path": ...}`), of decoded pictures,
or of paths and data URLs in JSON. A place is `<image>` in the text, as verl writes it, or a part
`{"type": "image"}` without content, as TRL does. Without places the images stand before the text
of the first message of the user.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from agentrl.errors import DataError
from agentrl.images import message, read_image
from agentrl.types import Image, Message, Role

IMAGE_PARTS = ("image", "image_url", "input_image")
"""Types of message parts that are images."""
_PLACE = "<image>"
_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp")


def looks_like_images(value: Any) -> bool:
    """Return true for a column that holds pictures: files, decoded pictures, paths, data URLs.

    Example:
        >>> looks_like_images(["a.png"]), looks_like_images("registry/name:tag")
        (True, False)
    """
    if isinstance(value, (list, tuple)):
        return bool(value) and all(map(looks_like_images, value))
    if isinstance(value, Mapping):
        known = any(value.get(key) is not None for key in ("bytes", "image", "image_url"))
        return known or looks_like_images(value.get("path"))
    if isinstance(value, str):
        return value.startswith("data:image/") or value.lower().endswith(_SUFFIXES)
    return hasattr(value, "convert") and hasattr(value, "size")


class RowImages:
    """Reads the images of one row, and gives those of its column to the places of the prompt."""

    def __init__(self, where: str, column: Any, *, base: Path | None) -> None:
        """Read the images of a column.

        Args:
            where: file and row, for messages of errors.
            column: an image, a list of them, or None.
            base: folder that relative paths start from; default the working directory.

        Raises:
            DataError: names the row and the image that cannot be read.
        """
        self._where = where
        self._base = base
        given = column.tolist() if hasattr(column, "tolist") else column
        items: Sequence[Any] = (
            [] if given is None else given if isinstance(given, (list, tuple)) else [given]
        )
        self._images = [self.read(f"image {number}", item) for number, item in enumerate(items)]
        self._given = 0

    def read(self, what: str, value: Any) -> Image:
        """An image of the row, as a record.

        Raises:
            DataError: names the row.
        """
        try:
            return read_image(value, base=self._base)
        except DataError as error:
            raise DataError(f"{self._where}: {what}: {error}") from None

    def message(self, role: Role, content: str | Sequence[Any]) -> Message:
        """A message of parts, its places filled with the next images of the column.

        Raises:
            DataError: an image cannot be read, or the column has no more.
        """
        parts: list[Any] = []
        given: list[Any] = [content] if isinstance(content, str) else list(content)
        for each in given:
            part: Mapping[str, Any] = {"text": each} if isinstance(each, str) else each
            text = part.get("text")
            if isinstance(text, str):
                first, *rest = text.split(_PLACE) if self._images else [text]
                parts.append(first)
                for words in rest:
                    parts += [self._next(), words]
            elif part.get("type") == "image" and not any(
                part[key] for key in part if key != "type"
            ):
                parts.append(self._next())
            else:
                parts.append(self.read(f"a part of the type {part.get('type')!r}", part))
        return message(role, parts)

    def finished(self, prompt: Sequence[Message]) -> tuple[Message, ...]:
        """The prompt with the images for which it has no places, before the user's first text.

        Raises:
            DataError: some images have places and others do not, or there is no such message.
        """
        if self._given == len(self._images):
            return tuple(prompt)
        if self._given:
            raise DataError(
                f"{self._where}: {len(self._images)} images for {self._given} places "
                f"({_PLACE} or parts of the type 'image') in the prompt; give as many"
            )
        for index, said in enumerate(prompt):
            if said.role == "user" and not said.images:
                shown = message("user", [*self._images, said.content])
                return (
                    *prompt[:index],
                    replace(said, content=shown.content, images=shown.images),
                    *prompt[index + 1 :],
                )
        raise DataError(
            f"{self._where}: {len(self._images)} images, and no message of the user that could "
            "show them"
        )

    def _next(self) -> Image:
        if self._given == len(self._images):
            raise DataError(
                f"{self._where}: the prompt has more places for images than the {self._given} "
                "images of the row"
            )
        self._given += 1
        return self._images[self._given - 1]
