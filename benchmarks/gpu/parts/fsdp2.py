"""FSDP2 on one rank: the gradient, the weights and the seconds of a step against one process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from agentrl.train.backends.choose import full_weights
from agentrl.train.backends.ranks import Meeting, Ranks
from parts.models import make_model
from parts.readings import Reading, Setting, relative_errors, seconds_of
from parts.steps import gradient_of, make_batch, make_trainer

GRADIENT_BOUND = 1e-4
"""Relative error of a float32 gradient."""
WEIGHTS_BOUND = 1e-5
"""Relative difference of the weights after a step."""


class OneRank:
    """A group with this process in it, which leaves when the block ends."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def __enter__(self) -> Ranks:
        """Open the meeting and join it."""
        device = self._device
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())
        self._meeting = Meeting(join_timeout_s=60)
        self._ranks = Ranks(
            self._meeting.address, rank=0, world_size=1, device=device,
            join_timeout_s=60, timeout_s=120,
        )  # fmt: skip
        return self._ranks

    def __exit__(self, *error: object) -> None:
        """Leave, then close the meeting."""
        self._ranks.close()
        self._meeting.close()


def outcome(setting: Setting, backend: str, ranks: Ranks | None) -> dict[str, dict[str, Tensor]]:
    """Gradient and weights of a float32 step."""
    model = make_model(setting, torch.float32)
    batch = make_batch(model.config.vocab_size, small=True)
    trainer, made = make_trainer(model, backend=backend, ranks=ranks)
    gradient = gradient_of(trainer, made, batch)
    return {"gradient": gradient, "weights": full_weights(made)}


def step_seconds(setting: Setting, backend: str, ranks: Ranks | None) -> float:
    """Seconds of a bfloat16 step."""
    model: Any = make_model(setting, torch.bfloat16)
    batch = make_batch(model.config.vocab_size, small=setting.small)
    trainer, _ = make_trainer(model, backend=backend, ranks=ranks)
    repeats = 1 if setting.small else 5
    return seconds_of(lambda: trainer.step(batch), setting.device, repeats=repeats)


def measure(setting: Setting) -> Iterator[Reading]:
    """Differences of gradient and weights, and seconds of both."""

    def timed(backend: str, ranks: Ranks | None) -> Reading:
        milliseconds = step_seconds(setting, backend, ranks) * 1e3
        return Reading(name=f"{backend}, bfloat16: a step", value=milliseconds, unit="ms")

    alone = outcome(setting, "torch", None)
    yield timed("torch", None)
    with OneRank(setting.device) as ranks:
        sharded = outcome(setting, "fsdp2", ranks)
        for what, bound in (("gradient", GRADIENT_BOUND), ("weights", WEIGHTS_BOUND)):
            yield Reading(
                name=f"{what} of a float32 step, fsdp2 against torch: difference",
                value=relative_errors(sharded[what], alone[what]),
                bound=bound,
            )
        yield timed("fsdp2", ranks)
