"""The device that a config names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentrl.errors import ConfigError

if TYPE_CHECKING:
    import torch


def pick_device(name: str) -> torch.device:
    """`auto` is the first GPU if there is one, else the CPU.

    Raises:
        ConfigError: the named device is not there.
    """
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"model.device {name!r} is not a device: {error}") from None
    if device.type == "cuda" and (
        not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count()
    ):
        raise ConfigError(
            f"model.device is {name!r}, but torch sees {torch.cuda.device_count()} CUDA devices; "
            "use 'auto' or 'cpu'"
        )
    return device
