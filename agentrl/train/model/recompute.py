"""Layers whose activations are computed again in the backward pass, and not kept for it."""

from __future__ import annotations

from typing import Any

from transformers.modeling_layers import GradientCheckpointingLayer

from agentrl.config.schema import recomputed_layers
from agentrl.errors import ConfigError
from agentrl.models.vision.embed import language_model
from agentrl.models.vision.reader import reader_of


def recompute_layers(model: Any, which: bool | int) -> None:
    """Make layers recompute their activations; gradients stay the same.

    The first ones: the backward pass comes to them when the others have freed what they kept, so
    that the most memory at any time falls by what each of them no longer keeps. All layers of a
    vision tower recompute if any do.

    Args:
        model: a `transformers` causal language model or a `ValueModel`.
        which: False for none, True for all, a number for that many; of a critic that has fewer
            layers than the policy, all.

    Raises:
        ConfigError: more than there are, or a number for a model that recomputes all or none.
    """
    if which is False:
        return
    model.gradient_checkpointing_enable({"use_reentrant": False})
    if which is True:
        return
    part = model if reader_of(model) is None else language_model(model)
    layers = [m for m in part.modules() if isinstance(m, GradientCheckpointingLayer)]
    if not layers:
        raise ConfigError(
            f"model.gradient_checkpointing is {which}, and {type(model).__name__} recomputes all "
            "of its layers or none; set it to true or false"
        )
    if not hasattr(model, "value_head"):
        recomputed_layers(which, len(layers))
    for layer in layers[which:]:
        layer.gradient_checkpointing = False
