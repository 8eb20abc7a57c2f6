"""Models whose weights stay in their files until every rank reads its own part of each.

`load_in_parts` leaves such a model on the meta device, but for its buffers: each parameter knows
how its rows are made from the checkpoint (`recipes`), whatever is put around its layer meanwhile.
The backend that divides the weights reads them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from agentrl.errors import ConfigError
from agentrl.models.finite import check_finite
from agentrl.models.recipes import Promised, StoredTensor, TensorRecipe, Unpromised
from agentrl.models.source import stored_config
from agentrl.models.whole import (
    REMEDY,
    TORN,
    checked_files,
    checkpoint_folder,
    class_for,
    load_checked,
    load_whole,
    why_torn,
)

logger = logging.getLogger(__name__)

_ATTRIBUTE = "agentrl_stored"


@dataclass(frozen=True, slots=True)
class StoredWeight:
    """A parameter on the meta device that a checkpoint holds."""

    name: str
    """In the model, when it was loaded."""
    who: str
    """Names the model, at the beginning of messages."""
    device: torch.device
    """Device of the model."""
    recipe: TensorRecipe
    """The way to its numbers."""

    def rows(self, start: int, stop: int) -> Tensor:
        """Rows along the first axis, on the CPU; a number without axes is one row."""
        if self.recipe.like.ndim == 0:
            return self.recipe.whole()[None][start:stop]
        return self.recipe.part(0, start, stop)

    def mark(self) -> tuple[Any, ...]:
        """Other for another weight, as good as always; looks at a few numbers of each tensor."""
        return tuple((stored.name, stored.mark()) for stored in self.recipe.stored())


def stored_weight(param: Tensor) -> StoredWeight | None:
    """The way to the numbers of a parameter; None for one that is here."""
    return getattr(param, _ATTRIBUTE, None)


def is_in_parts(model: nn.Module) -> bool:
    """Return true if weights of the model are in their files still."""
    return any(stored_weight(param) is not None for param in model.parameters())


def device_of(model: nn.Module) -> torch.device:
    """The device that a model computes on, wherever its weights are."""
    first = next(model.parameters())
    stored = stored_weight(first)
    return first.device if stored is None else stored.device


def move_model(model: nn.Module, device: torch.device) -> None:
    """Move what is here of a model; the rest is read to its device."""
    model._apply(lambda tensor: tensor if tensor.is_meta else tensor.to(device))


def fill(module: nn.Module) -> None:
    """Read all that a small part of a model lacks."""
    for param in module.parameters():
        if (stored := stored_weight(param)) is not None:
            full = stored.recipe.whole()
            check_finite([(stored.name, full)], who=stored.who, remedy=REMEDY)
            replace_weight(param, full.to(stored.device, param.dtype, copy=True))


def replace_weight(param: nn.Parameter, full: Tensor) -> None:
    """Give a parameter on the meta device its numbers; whoever holds it holds them from now on."""
    made = nn.Parameter(full, requires_grad=param.requires_grad)
    torch.utils.swap_tensors(param, made)


@contextmanager
def standing_in(model: nn.Module) -> Iterator[None]:
    """Inside, weights that are in their files look as if they were here, and take no memory."""
    kept: list[tuple[nn.Parameter, nn.Parameter]] = []
    for param in model.parameters():
        if (stored := stored_weight(param)) is not None:
            number = torch.zeros((), dtype=param.dtype, device=stored.device)
            stand = nn.Parameter(number.expand(param.shape), requires_grad=param.requires_grad)
            torch.utils.swap_tensors(param, stand)
            kept.append((param, stand))
    try:
        yield
    finally:
        for param, own in kept:
            own.requires_grad_(param.requires_grad)
            torch.utils.swap_tensors(param, own)


def load_weights(
    loader: Any,
    source: str,
    *,
    who: str,
    dtype: torch.dtype,
    device: torch.device,
    body: bool = False,
    in_parts: bool = False,
) -> Any:
    """The model of `load_whole` on a device, or that of `load_in_parts`."""
    if in_parts:
        return load_in_parts(loader, source, who=who, device=device, dtype=dtype, body=body)
    return load_whole(loader, source, who=who, dtype=dtype, body=body).to(device)


def load_in_parts(
    loader: Any,
    source: str,
    *,
    who: str,
    device: torch.device,
    dtype: torch.dtype,
    body: bool = False,
) -> Any:
    """The model that `load_whole` loads, with its weights left in their files.

    `transformers` loads it from promises, by its own steps. What it does to a weight of some family
    that cannot be promised is done on the whole model, with a warning.

    Args:
        loader: an `AutoModel...` class of `transformers`.
        source: folder or hub name.
        who: names the model at the beginning of messages.
        device: that it will compute on; all that is here of it is there.
        dtype: of the weights.
        body: as in `load_whole`.

    Raises:
        ConfigError: as `load_whole`, but that a number is not finite shows when it is read; or
            files that cannot be read in parts.
    """
    folder = checkpoint_folder(source, who=who)
    names = checked_files(folder, who)
    try:
        config = stored_config(source)
        refused: list[str] = []
        promised = _promises(folder, names, refused, who=who)
    except TORN as error:
        raise ConfigError(f"{who} cannot be loaded: {why_torn(folder, error)}") from None
    made, config = class_for(loader, config)
    settings = {"config": config, "state_dict": promised, "dtype": dtype}
    try:
        model = load_checked(made, None, who=who, body=body, settings=settings, folder=folder)
    except (ConfigError, Unpromised):
        if not refused:
            raise
        logger.warning(
            "%s is loaded whole by every rank: transformers makes weights of %s by a step that "
            "cannot be made in parts (%s)",
            *(who, made.__name__, refused[0]),
        )
        return load_whole(loader, source, who=who, dtype=dtype, body=body).to(device)
    _leave_stored(model, who=who, device=device)
    check_finite(model.state_dict().items(), who=who, remedy=REMEDY)
    _name(model, source, folder)
    move_model(model, device)
    return model


def _promises(
    folder: Path, names: Iterable[str], refused: list[str], *, who: str
) -> dict[str, Promised]:
    """The tensors in the files of a checkpoint, none of them read."""
    found: dict[str, Any] = {}
    for path in (folder / name for name in names):
        if path.suffix == ".safetensors":
            file = safe_open(path, framework="pt")
            found |= {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            continue
        try:
            found |= torch.load(path, map_location="cpu", mmap=True, weights_only=True)
        except RuntimeError as error:
            if "mmap can only be used" not in str(error):
                raise
            raise ConfigError(
                f"{who}: {path.name} is in torch's format of before 1.6, of which no rank can read "
                "its part; load it with transformers and save it again (save_pretrained writes "
                "safetensors), or set train.backend: torch"
            ) from None
    return {name: Promised(StoredTensor(name, part, refused)) for name, part in found.items()}


def _leave_stored(model: Any, *, who: str, device: torch.device) -> None:
    """Put promised parameters on the meta device, with the way to their rows, and read buffers."""
    left: dict[int, nn.Parameter] = {}
    for path, module in model.named_modules():
        for leaf, param in module._parameters.items():
            if not isinstance(param, Promised):
                continue
            if id(param) not in left:
                empty = torch.empty(param.shape, dtype=param.dtype, device="meta")
                made = nn.Parameter(empty, requires_grad=param.requires_grad)
                name = f"{path}.{leaf}".lstrip(".")
                setattr(made, _ATTRIBUTE, StoredWeight(name, who, device, param.recipe))
                left[id(param)] = made
            module._parameters[leaf] = left[id(param)]
        for leaf, buffer in module._buffers.items():
            if isinstance(buffer, Promised):
                module._buffers[leaf] = buffer.recipe.whole().clone()


def _name(model: Any, source: str, folder: Path) -> None:
    """Give a model what `transformers` takes from its folder beside config and weights."""
    model.config._name_or_path = model.name_or_path = source
    if not model.can_generate():
        return
    from transformers import GenerationConfig

    if (folder / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(folder)
    else:
        model.generation_config = GenerationConfig.from_pretrained(
            folder, config_file_name="config.json", _from_model_config=True
        )
