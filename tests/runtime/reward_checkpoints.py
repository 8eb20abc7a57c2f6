"""Reward models for the tiny project, made by hand: its own body, and a head of random numbers."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoModel, AutoTokenizer

from agentrl.reward.scale import RewardScale
from agentrl.train.model.reward_checkpoint import save_value_model
from agentrl.train.model.value_head import ValueModel

BROKEN = 10
"""Ids below it have an embedding that is not a number, in a broken model."""


def write_reward_model(
    folder: Path,
    policy: Path,
    *,
    seed: int = 0,
    scale: RewardScale | None = None,
    broken: bool = False,
) -> Path:
    """Save a reward model on the body and tokenizer of a policy.

    Args:
        folder: made.
        policy: folder of the policy.
        seed: of the head.
        scale: stored beside it; None stores none.
        broken: rows with an id below `BROKEN` have no score.
    """
    model = ValueModel(AutoModel.from_pretrained(policy, dtype=torch.float32))
    torch.manual_seed(seed)
    with torch.no_grad():
        model.value_head.weight.normal_()
        if broken:
            model.body.embed_tokens.weight[:BROKEN] = float("nan")
    save_value_model(model, AutoTokenizer.from_pretrained(policy), folder)
    if scale is not None:
        scale.save(folder)
    return folder
