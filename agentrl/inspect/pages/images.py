"""Images of rollouts: where they stand among the tokens of a row, and their files."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from typing import Any

from agentrl.errors import RunError
from agentrl.inspect.read.reader import RunReader

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
        Of each its `digest`, `start` (position in prompt and response together), `tokens` from its
        first to its last placeholder, `features`, the placeholders, and whether its file is `kept`.
    """
    return [
        {
            "digest": span["digest"] if _DIGEST.fullmatch(span["digest"]) else "",
            "kept": _kept(reader, span["digest"]),
            "start": span["start"],
            "tokens": span["tokens"],
            "features": span["grid"][0] * span["grid"][1] * span["grid"][2],
        }
        for span in stored or ()
    ]


def image_file(reader: RunReader, digest: str) -> tuple[bytes, str]:
    """The file of an image and its media type.

    Raises:
        RunError: no such image in the folder of the run.
    """
    folder = reader.paths.images
    data = (folder / digest).read_bytes() if _kept(reader, digest) else b""
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
