"""Pictures of environments and tools as records, and the folder of a run that keeps their files."""

from agentrl.images.folder import ImageFolder
from agentrl.images.marks import (
    ExpandedImage,
    label,
    message,
    placed,
    without_images,
    without_pictures,
    words,
)
from agentrl.images.reading import decode_image, read_image

__all__ = [
    "ExpandedImage",
    "ImageFolder",
    "decode_image",
    "label",
    "message",
    "placed",
    "read_image",
    "without_images",
    "without_pictures",
    "words",
]
