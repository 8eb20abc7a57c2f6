"""From the file of an image to the text that stands for it, and to the pixels its model reads.

One reader serves chat format, engine and trainer of a process, so that all of them see the same
placeholders and the same pixels. Only digests travel between them; files lie in the folder of the
run. Pixels are remembered up to `KEPT_BYTES`, since sampling and each pass of the trainer ask for
the same images one after the other.
"""

from __future__ import annotations

import io
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from agentrl.errors import ConfigError, DataError
from agentrl.images import ExpandedImage, ImageFolder, decode_image, read_image
from agentrl.models.source import loadable, stored_config
from agentrl.models.vision.families import FAMILIES, VisionFamily, family_of
from agentrl.models.vision.sizes import Sizes, differing_sizes, model_sizes, processor_sizes
from agentrl.types import Image

KEPT_BYTES = 64 * 2**20
"""Pixels that are remembered."""
_BLANK_SIZE = (32, 32)
_SPLITS = "do_image_splitting"
_SETTINGS = "processor_config.json"
_PROBE_SIZES = ((48, 32), (90, 56), (40, 120))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadImage:
    """An image as the model takes it."""

    expanded: ExpandedImage
    """Text and grid."""
    pixels: Mapping[str, Tensor]
    """What the vision tower reads, on the CPU."""

    @property
    def size_bytes(self) -> int:
        """Memory of the pixels."""
        return sum(tensor.nbytes for tensor in self.pixels.values())


class VisionReader:
    """The `ImageReader` of a model. Its methods may be called from several threads."""

    def __init__(
        self,
        *,
        family: VisionFamily,
        processor: Any,
        config: Any,
        tokenizer: Any,
        settings: bytes | None = None,
    ) -> None:
        """Take the image processor of a model.

        Args:
            family: of the model.
            processor: of the checkpoint.
            config: of the model.
            tokenizer: of the model.
            settings: `processor_config.json` of the checkpoint, if it has one.

        Raises:
            ConfigError: the tokenizer does not know the family's token of images.
        """
        self.family = family
        self.token, self.placeholder = family.token, family.placeholder
        known = tokenizer.get_vocab()
        for token in (family.token, family.placeholder):
            if token not in known:
                raise ConfigError(
                    f"the tokenizer of model.path has no token {token!r}, which stands for an "
                    f"image in models of the family {family.name}"
                )
        self.placeholder_id: int = known[family.placeholder]
        self.folder: ImageFolder | None = None
        """Folder of the run; None until the run is opened."""
        self._processor = processor
        self._config = config
        self._settings = settings
        self._kept: OrderedDict[str, ReadImage] = OrderedDict()
        self._kept_bytes = 0
        self._probes: set[str] = set()
        self._blank: Mapping[str, Tensor] | None = None
        self._lock = threading.Lock()

    def __deepcopy__(self, memo: dict[int, Any]) -> VisionReader:
        # A lane's copy of the model reads the same images.
        return self

    def __getstate__(self) -> dict[str, Any]:
        """What another process reads the same images with; what is remembered stays here."""
        return {**self.__dict__, "_lock": None, "_kept": OrderedDict(), "_kept_bytes": 0}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take over what `__getstate__` gave."""
        self.__dict__.update(state)
        self._lock = threading.Lock()

    def expand(self, image: Image) -> ExpandedImage:
        """Write the text of an image; see `ImageReader.expand`."""
        read = self._read(image.digest, image.data)
        if self.folder is not None and image.digest not in self._probes:
            self.folder.keep(image)
        return read.expanded

    def probes(self) -> Sequence[Image]:
        """Make three small images; see `ImageReader.probes`."""
        from PIL import Image as pil

        made = [
            read_image(pil.linear_gradient("L").resize(size).convert("RGB"))
            for size in _PROBE_SIZES
        ]
        self._probes.update(image.digest for image in made)
        return made

    @property
    def sizes(self) -> Sizes:
        """Sizes of patches and tiles of the model that the images are read for."""
        return model_sizes(self._config)

    @property
    def markers(self) -> tuple[int, int]:
        """Tokens of an image before its first placeholder and behind its last one."""
        assert self.family.markers is not None  # refused at the start of a run (`open_images`)
        return self.family.markers

    def png(self, digest: str) -> bytes:
        """The picture of an image as a file, with the pixels that `read` is made of.

        Raises:
            DataError: its file is not in the folder of the run.
        """
        buffer = io.BytesIO()
        # Fast to write: it is sent once.
        self._picture(digest, None).save(buffer, "PNG", compress_level=1)
        return buffer.getvalue()

    def read(self, digest: str) -> ReadImage:
        """One image of the run as the model takes it.

        Raises:
            DataError: its file is not in the folder of the run.
        """
        return self._read(digest, None)

    def blank(self) -> Mapping[str, Tensor]:
        """The tensors of a small blank image, for a pass of the vision tower that means nothing."""
        if self._blank is None:
            from PIL import Image as pil

            one_tile = {_SPLITS: False} if hasattr(self._processor, _SPLITS) else {}
            made = self._processed(pil.new("RGB", _BLANK_SIZE), **one_tile)
            self._blank = {name: torch.as_tensor(made[name]) for name in self.family.inputs}
        return self._blank

    def save(self, folder: Path) -> None:
        """Write the settings of the image processor beside weights and tokenizer."""
        self._processor.save_pretrained(folder)
        if self._settings is not None:
            # Servers expand images by it: without it they take the tokens of a tile for 169.
            (folder / _SETTINGS).write_bytes(self._settings)

    def _read(self, digest: str, data: bytes | None) -> ReadImage:
        with self._lock:
            if (kept := self._kept.get(digest)) is not None:
                self._kept.move_to_end(digest)
                return kept
        read = self._process(self._picture(digest, data))
        with self._lock:
            if digest not in self._kept:
                self._kept[digest] = read
                self._kept_bytes += read.size_bytes
            while self._kept_bytes > KEPT_BYTES and len(self._kept) > 1:
                _, oldest = self._kept.popitem(last=False)
                self._kept_bytes -= oldest.size_bytes
        return read

    def _processed(self, picture: Any, **options: Any) -> Any:
        # One image a call: what else is in a batch must not change its pixels.
        return self._processor(
            images=[picture], return_tensors="pt", **self.family.options, **options
        )

    def _picture(self, digest: str, data: bytes | None) -> Any:
        if data is None:
            if self.folder is None:
                raise DataError(f"image {digest} was asked for before the run gave its folder")
            data = self.folder.data(digest)
        return decode_image(data, what=f"image {digest[:8]}")

    def _process(self, picture: Any) -> ReadImage:
        family = self.family
        try:
            made = self._processed(picture)
            text = family.expand(self._processor, made, self._config)
            grid = family.grid(self._processor, made, self._config)
        except (ValueError, TypeError) as error:
            raise DataError(
                f"the image processor of the model takes no image of {picture.width}x"
                f"{picture.height} pixels: {error}"
            ) from error
        expanded = ExpandedImage(text=text, grid=grid)
        if text.count(self.placeholder) != expanded.features:
            raise DataError(
                f"an image of {picture.width}x{picture.height} pixels has "
                f"{text.count(self.placeholder)} placeholders for {expanded.features} features"
            )
        pixels = {name: torch.as_tensor(made[name]) for name in family.inputs}
        return ReadImage(expanded=expanded, pixels=pixels)


def load_reader(source: str, tokenizer: Any) -> VisionReader | None:
    """The image processor of a checkpoint; None for a model that reads text only.

    Args:
        source: folder or hub name.
        tokenizer: of the model.

    Raises:
        ConfigError: a family that is not read here, no image processor or that of a model with
            other patches or tiles, or no Pillow.
    """
    from transformers import AutoImageProcessor

    source = loadable(source)
    try:
        config = stored_config(source)
    except (OSError, ValueError):
        return None  # what loads the model says what is wrong
    family = family_of(config, path=source)
    if family is None:
        return None
    try:
        processor = AutoImageProcessor.from_pretrained(source, backend="pil")
    except (OSError, ValueError, ImportError) as error:
        raise ConfigError(
            f"model.path {source!r} reads images, but its image processor "
            f"(preprocessor_config.json) cannot be loaded: {error}"
        ) from None
    # On every rank, before any has begun to wait for another.
    if wrong := differing_sizes(processor_sizes(processor), model_sizes(config)):
        raise ConfigError(
            f"the image processor of model.path {source!r} (preprocessor_config.json) makes images "
            f"of {wrong} as its model reads them (vision_config in config.json); put the image "
            "processor there that the model was trained with"
        )
    return VisionReader(
        family=family,
        processor=processor,
        config=config,
        tokenizer=tokenizer,
        settings=_settings_of(source),
    )


def _settings_of(source: str) -> bytes | None:
    from transformers.utils.hub import cached_file

    found = cached_file(
        source,
        _SETTINGS,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    return None if found is None else Path(found).read_bytes()


def attach_reader(model: Any, reader: VisionReader) -> None:
    """Give a model its images; the engine and the trainer that run it find them there."""
    # Not in `model.config`: it would be written into checkpoints.
    model.agentrl_images = reader


def share_reader(model: Any, reader: VisionReader, *, who: str) -> None:
    """Read images for a model beside the policy with the policy's reader, to exactly equal pixels.

    Args:
        model: of `transformers`; gets the reader.
        reader: of the policy.
        who: names the model and its role at the beginning of the message.

    Raises:
        ConfigError: it reads no images, or divides them otherwise than the policy.
    """
    check_shared_images(model.config, reader.family, reader.sizes, who=who)
    attach_reader(model, reader)


def check_shared_images(config: Any, family: VisionFamily, sizes: Sizes, *, who: str) -> None:
    """Refuse a model beside a policy that cannot be given the policy's images.

    Args:
        config: of the model.
        family: of the policy.
        sizes: of the policy.
        who: as in `share_reader`.

    Raises:
        ConfigError: as there.
    """
    if FAMILIES.get(config.model_type) is not family:
        raise ConfigError(
            f"{who} is a {config.model_type!r}, which reads no images as the policy does; give a "
            f"model of the family {family.name}"
        )
    if wrong := differing_sizes(model_sizes(config), sizes):
        raise ConfigError(
            f"{who} reads images in {wrong} as the policy does, whose images it would be given; "
            "give a model with the sizes of the policy"
        )


def reader_of(model: Any) -> VisionReader | None:
    """The reader that `attach_reader` gave the model; None for a model of text."""
    return getattr(model, "agentrl_images", None)
