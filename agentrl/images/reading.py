"""From what stands for a picture to the record of it, and from its file to pixels.

A picture that is given as a file (bytes, path, data URL) is kept as that file; one that was drawn
in memory becomes a PNG. Pillow is imported by the functions that read, so runs of text alone do
without it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentrl.errors import DataError
from agentrl.machine.files import require_plain
from agentrl.plugins.distribution import install_command
from agentrl.types import Image

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
"""Formats of files that are read."""
MOST_PIXELS = 64_000_000
"""Pixels of the largest image; more are a mistake, or an attack on the memory of the reader."""
_DATA_URL = "data:"
_ACCEPTED = "a PIL image, the bytes of a file, a path, a data URL or an Image"


def read_image(value: Any, *, base: Path | None = None) -> Image:
    """An image as a record, checked as far as its header goes.

    Args:
        value: a PIL image, bytes of a file, a path, a data URL, a part of a message in the form
            of OpenAI (`image_url`) or `transformers` (`image`), an item of a Hugging Face column
            (`bytes`, `path`), or an `Image`.
        base: folder that a relative path starts from; default the working directory.

    Raises:
        DataError: it is none of these, is no picture, or has more than `MOST_PIXELS` pixels.
    """
    if isinstance(value, Image):
        return value
    if isinstance(value, Mapping):
        return read_image(_inner(value), base=base)
    if isinstance(value, Path):
        return _from_bytes(_file(value, base))
    if isinstance(value, str):
        if value.startswith(_DATA_URL):
            return _from_bytes(_from_url(value))
        return _from_bytes(_file(Path(value), base))
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _from_bytes(bytes(value))
    if hasattr(value, "save") and hasattr(value, "convert"):
        return _from_picture(value)
    raise DataError(f"an image is given as {type(value).__name__}, expected {_ACCEPTED}")


def decode_image(data: bytes, *, what: str = "an image") -> Any:
    """The RGB picture in the bytes of a file, upright, as a PIL image.

    Raises:
        DataError: it is damaged, or larger than `MOST_PIXELS`.
    """
    pil = _pillow()
    from PIL import ImageOps

    opened = _open(pil, data, what)
    try:
        return _as_rgb(pil, ImageOps.exif_transpose(opened), what)
    except DataError:
        raise
    except Exception as error:  # a damaged file may fail in any part of its decoder
        raise DataError(f"{what} is damaged: {type(error).__name__}: {error}") from error


def _as_rgb(pil: Any, picture: Any, what: str) -> Any:
    """A picture in 8 bits a color, on white.

    Raises:
        DataError: its greys have no known range, as those of 32 bits and of fractions.
    """
    if picture.mode.startswith("I;16"):
        # Pillow cuts 16 bits off at 255, so that all but the darkest greys turn white.
        picture = picture.convert("I").point(lambda grey: grey * (1 / 257) + 0.5).convert("L")
        picture.info.pop("transparency", None)  # of the 16 bits
    elif picture.mode in ("I", "F"):
        low, high = picture.getextrema()
        if low < 0 or high > 255 or picture.mode == "F":
            raise DataError(
                f"{what} has greys from {low:g} to {high:g} (mode {picture.mode}), whose range is "
                "not known; scale them to 0 to 255 and convert it to mode 'L'"
            )
    if picture.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in picture.info:
        # What is behind a transparent pixel is white, as a page and a screenshot are.
        picture = picture.convert("RGBA")
        picture = pil.alpha_composite(pil.new("RGBA", picture.size, "white"), picture)
    return picture.convert("RGB")


def _inner(part: Mapping[str, Any]) -> Any:
    for key in ("image", "image_url", "url", "bytes", "base64", "path"):
        if part.get(key) is not None:
            value = part[key]
            coded = key == "base64" or (key == "bytes" and isinstance(value, str))
            return _base64(value) if coded else value
    raise DataError(
        f"a part of a message has the keys {sorted(map(str, part))}; expected 'text', 'image' or "
        "'image_url'"
    )


def _from_url(url: str) -> bytes:
    head, comma, body = url.partition(",")
    if not comma or not head.endswith(";base64"):
        raise DataError(
            f"the data URL {url[:40]!r} is not base64; write data:image/png;base64,DATA"
        )
    return _base64(body)


def _base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise DataError(f"an image in base64 is damaged: {error}") from error


def _file(path: Path, base: Path | None) -> bytes:
    try:
        return require_plain((base or Path()) / path.expanduser()).read_bytes()
    except (OSError, ValueError) as error:
        raise DataError(
            f"the image {str(path)[:200]!r} cannot be read: {error}; a string is a path or a data "
            "URL, and nothing is fetched from the network"
        ) from error


def _from_picture(picture: Any) -> Image:
    width, height = picture.size
    _check_pixels(width, height, "an image")
    buffer = io.BytesIO()
    # Environments draw one for every turn: fast to write is worth more than a smaller file.
    rgb = picture if picture.mode == "RGB" else _as_rgb(_pillow(), picture, "an image")
    rgb.save(buffer, format="PNG", compress_level=1)
    return _record(buffer.getvalue(), width, height)


def _from_bytes(data: bytes) -> Image:
    opened = _open(_pillow(), data, "an image")
    return _record(data, opened.width, opened.height)


def _record(data: bytes, width: int, height: int) -> Image:
    digest = hashlib.sha256(data).hexdigest()[:32]
    return Image(digest=digest, data=data, width=width, height=height)


def _open(pil: Any, data: bytes, what: str) -> Any:
    with warnings.catch_warnings():
        # Pillow warns of large pictures; the bound below refuses them.
        warnings.simplefilter("ignore")
        try:
            opened = pil.open(io.BytesIO(data), formats=FORMATS)
        except Exception as error:  # a header may be wrong in any way
            raise DataError(
                f"{what} of {len(data)} bytes is no picture ({type(error).__name__}); expected "
                f"{', '.join(FORMATS)}"
            ) from error
    _check_pixels(opened.width, opened.height, what)
    return opened


def _check_pixels(width: int, height: int, what: str) -> None:
    if width * height > MOST_PIXELS:
        raise DataError(
            f"{what} has {width}x{height} pixels, more than {MOST_PIXELS:,}; make it smaller "
            "before the model is shown it"
        )


def _pillow() -> Any:
    try:
        from PIL import Image as pil
    except ImportError as error:
        raise DataError(
            f"images need Pillow, which is not installed; run {install_command('images')}"
        ) from error
    return pil
