"""Images of rollouts: where they stand in the text and among the tokens of a row, their files.

In stored texts `[image 84x84 9f86d081]` stands for an image (`agentrl.images.label`), which names
it by its digest. The page puts the picture there; texts without pictures number it.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentrl.errors import RunError
from agentrl.inspect.read.reader import RunReader
from agentrl.inspect.read.safe_json import rows_of
from agentrl.inspect.read.shelf import Shelf
from agentrl.machine.inside import within

_DIGEST = re.compile("[0-9a-f]{32}")
_KINDS = (
    (b"\x89PNG", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"RIFF", "image/webp"),
    (b"GIF8", "image/gif"),
    (b"BM", "image/bmp"),
)


def row_images(
    reader: RunReader, stored: Sequence[Mapping[str, Any]] | None
) -> list[dict[str, Any]]:
    """The images of a stored row, by position.

    Returns:
        Of each its `number` in the row from 1, `digest`, `start` (position in prompt and response
        together), `tokens` from its first to its last placeholder, `features`, the placeholders,
        and whether its file is `kept`.
    """
    return [
        {
            "number": number,
            "digest": span["digest"] if _DIGEST.fullmatch(span["digest"]) else "",
            "kept": _kept(reader, span["digest"]),
            "start": span["start"],
            "tokens": span["tokens"],
            "features": span["grid"][0] * span["grid"][1] * span["grid"][2],
        }
        for number, span in enumerate(stored or (), start=1)
    ]


def numbered(text: str, images: Sequence[Mapping[str, Any]], first: int = 1) -> str:
    """A text for readers with each of its images as `[image 1: 84x84, 9 tokens]`.

    Args:
        text: as it is stored.
        images: those of the text, with `digest` and `tokens`, in order.
        first: number of the first of them in its rollout.

    Example:
        >>> numbered("See [image 84x84 9f86d081].", [{"digest": "9f86d081aa", "tokens": 9}])
        'See [image 1: 84x84, 9 tokens].'
    """
    at = 0
    for number, image in enumerate(images, start=first):
        found = _label_of(image).search(text, at)
        if found is None:
            continue
        size = f"{found[1]}, " if found[1] else ""
        words = f"[image {number}: {size}{image['tokens']} tokens]"
        text = f"{text[: found.start()]}{words}{text[found.end() :]}"
        at = found.start() + len(words)
    return text


def prompt_with_images(
    text: str,
    ids: Sequence[int],
    images: Sequence[Mapping[str, Any]],
    decode: Callable[[Sequence[int]], str] | None,
) -> str:
    """The text of a prompt with a label for each of its images, in place of the placeholders.

    Args:
        text: as it is stored; empty in later rows, and with placeholders in earlier versions.
        ids: [_P] of the prompt.
        images: of the row, as they are stored.
        decode: ids to text; None where the run has no tokenizer, which leaves the text as it is.
    """
    own = [image for image in images if image["start"] < len(ids)]
    if decode is None or (not own and text) or any(_label_of(image).search(text) for image in own):
        return text
    parts: list[str] = []
    at = 0
    for image in own:
        parts += [decode(ids[at : image["start"]]), f"[image {image['digest'][:8]}]"]
        at = image["start"] + image["tokens"]
    return "".join(parts) + decode(ids[at:])


def prompt_texts(
    reader: RunReader,
    shelf: Shelf,
    rows: Sequence[int],
    stored: Sequence[Mapping[str, Any]],
) -> list[str]:
    """The prompts of some rows of a file, with a label for each image.

    Args:
        reader: of the run.
        shelf: with the rows.
        rows: their numbers in it.
        stored: their columns `prompt_text` and `images`.
    """
    pieces = reader.pieces() if any(one["images"] for one in stored) else None
    found: list[str] = []
    for row, one in zip(rows, stored, strict=True):
        text, images = one["prompt_text"] or "", one["images"] or ()
        if images and pieces is not None:
            ids = reader.rows.read(shelf, [row], ["prompt_ids"]).column(0)[0].as_py()
            text = prompt_with_images(text, ids, images, lambda of: "".join(pieces(of)))
        found.append(text)
    return found


def prompt_of(reader: RunReader, shelf: Shelf, row: int) -> str:
    """The prompt of a row as a text for readers, its images numbered."""
    stored = rows_of(reader.rows.read(shelf, [row], ["prompt_text", "images"]))
    (text,) = prompt_texts(reader, shelf, [row], stored)
    return numbered(text, stored[0]["images"] or ())


def _label_of(image: Mapping[str, Any]) -> re.Pattern[str]:
    return re.compile(rf"\[image (?:(\d+x\d+) )?{re.escape(image['digest'][:8])}\]")


def image_file(reader: RunReader, digest: str) -> tuple[bytes, str]:
    """The file of an image and its media type.

    Raises:
        RunError: no such image in the folder of the run.
    """
    folder = reader.paths.images
    data = within(folder, folder / digest).read_bytes() if _kept(reader, digest) else b""
    for start, kind in _KINDS:
        if data.startswith(start):
            return data, kind
    raise RunError(f"the run has no image {digest[:40]!r} in {folder}")


def image_address(reader: RunReader, digest: str) -> str:
    """An image as a data URL, with the errors of `image_file`."""
    data, kind = image_file(reader, digest)
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def _kept(reader: RunReader, digest: str) -> bool:
    return bool(_DIGEST.fullmatch(digest)) and (reader.paths.images / digest).is_file()
