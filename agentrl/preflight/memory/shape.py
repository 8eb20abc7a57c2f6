"""The numbers of a model that its memory depends on, from its config alone; no weight is read.

Imports inside functions keep torch and transformers away until a check needs them.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from agentrl.config.plan import TrainerPlan
from agentrl.config.schema import ModelSection
from agentrl.disk.model_source import policy_config
from agentrl.errors import ConfigError
from agentrl.models.cache_bytes import cache_shape, key_width
from agentrl.preflight.memory.estimate import Demand, ModelShape, activation_bytes

ALL_LINEAR = ("all-linear",)
"""`train.lora.targets` by default: every linear layer but the head."""


def model_shape(section: ModelSection) -> ModelShape:
    """The shape of the policy.

    Raises:
        AgentrlError: the path is no checkpoint.
        OSError, ValueError: its config cannot be read, or no model can be made from it.
    """
    return shape_of_config(policy_config(section))


def shape_of_config(config: Any, *, targets: Collection[str] = ALL_LINEAR) -> ModelShape:
    """The shape of the model that `transformers` makes of a config; `targets` as in `shape_of`."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        return shape_of(AutoModelForCausalLM.from_config(config), targets=targets)


def shape_of(model: Any, *, targets: Collection[str] = ALL_LINEAR) -> ModelShape:
    """The shape of a `transformers` causal language model; its weights are not read.

    Args:
        model: with or without memory.
        targets: `train.lora.targets`, the layers that `linear` counts.

    Raises:
        ConfigError: its config names no heads.
    """
    import torch

    text = model.config.get_text_config()
    if getattr(text, "num_attention_heads", None) is None:
        raise ConfigError(f"{type(model).__name__} has no attention heads")
    head = model.get_output_embeddings()
    linear = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and module is not head
    }
    adapted = [
        module
        for name, module in linear.items()
        if targets == ALL_LINEAR or any(f".{name}".endswith(f".{target}") for target in targets)
    ]
    parameters = sum(parameter.numel() for parameter in model.parameters())
    kept_whole = set(getattr(model, "_no_split_modules", None) or ())
    layers = [
        sum(parameter.numel() for parameter in module.parameters())
        for module in model.modules()
        if type(module).__name__ in kept_whole
    ]
    return ModelShape(
        parameters=parameters,
        adapters=sum(module.in_features + module.out_features for module in linear.values()),
        linear=sum(module.in_features * module.out_features for module in adapted),
        layers=text.num_hidden_layers,
        hidden=text.hidden_size,
        intermediate=getattr(text, "intermediate_size", None) or 4 * text.hidden_size,
        kv_width=key_width(text),
        vocabulary=text.vocab_size,
        cache=cache_shape(model.config),
        layer=max(layers, default=parameters),
        outside=parameters - sum(layers) if layers else 0,
    )


def demand_of(
    plan: TrainerPlan,
    config: Any,
    *,
    on_gpu: bool,
    reward_models: int = 0,
    teacher: int | None = 0,
) -> Demand:
    """Sizes of the models of a run, with what a pass takes beside them.

    Args:
        plan: of the trainer.
        config: of the policy.
        on_gpu: whether the trainer computes on a GPU.
        reward_models: bytes of their weights, in each process that runs rollouts.
        teacher: bytes of its weights beside the policy; None is as many as the policy has.
    """
    from agentrl.preflight.memory.activations import measured  # imports torch

    lora, rollout = plan.train.lora, plan.rollout
    shape = shape_of_config(config, targets=ALL_LINEAR if lora is None else lora.targets)
    found = measured(
        config,
        plan.train,
        plan.model,
        # A row that is longer than the budget has a pass to itself.
        row=rollout.max_context_tokens,
        response=rollout.max_response_tokens,
        on_gpu=on_gpu,
    )
    return Demand(
        shape=shape,
        activations=activation_bytes(plan.train, plan.model, shape) if found is None else found,
        reward_models=reward_models,
        teacher=teacher,
    )
