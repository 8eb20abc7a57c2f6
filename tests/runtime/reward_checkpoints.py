"""Reward models for the tiny project, made by hand: its own body, and a head of random numbers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModel, AutoTokenizer

from agentrl.batch.examples import ScoredTokens
from agentrl.config import RunConfig
from agentrl.config.plan import plan_run
from agentrl.fit.reward_models.open import open_reward_models
from agentrl.models.own_forward import probe_ids
from agentrl.reward.scale import RewardScale, save_scales
from agentrl.train.model.reward_checkpoint import save_value_model
from agentrl.train.model.value_head import ValueModel
from agentrl.types import RewardValue, Task, Termination, Trajectory

BROKEN = range(94, 106)
"""Ids that overflow in a broken model, but for those that the proof of models reads; they stand for
bytes that no prompt of the tiny project has."""


def write_reward_model(
    folder: Path,
    policy: Path,
    *,
    seed: int = 0,
    heads: int = 1,
    scale: RewardScale | Sequence[RewardScale] | None = None,
    broken: bool = False,
) -> Path:
    """Save a reward model on the body and tokenizer of a policy.

    Args:
        folder: made.
        policy: folder of the policy.
        seed: of the head, or of the first of several, each of which has its own.
        heads: their number.
        scale: stored beside it, or that of each head; None stores none.
        broken: rows with some id of `BROKEN` have no score; the proof at the start passes.
    """
    body = AutoModel.from_pretrained(policy, dtype=torch.float32)
    model = ValueModel(body, outputs=heads, heads=heads)
    with torch.no_grad():
        for number, weight_E in enumerate(model.value_head.weight):
            torch.manual_seed(seed + number)
            weight_E.normal_()
        if broken:
            # Finite, as a model that loads has to be; their attention to themselves overflows.
            embedding = model.body.embed_tokens.weight
            # As it is saved, since it pads with another token than the policy.
            sound = AutoModel.from_pretrained(write_reward_model(folder, policy))
            ids = np.setdiff1d(BROKEN, probe_ids(sound))
            embedding[ids] = 0.0
            embedding[:, 0] = 0.0
            embedding[ids, 0] = 1.0
            attention = model.body.layers[0].self_attn
            attention.q_proj.weight[:, 0] = attention.k_proj.weight[:, 0] = 1e20
    save_value_model(model, AutoTokenizer.from_pretrained(policy), folder)
    if isinstance(scale, RewardScale):
        scale.save(folder)
    elif scale is not None:
        save_scales(scale, folder)
    return folder


def values_of(
    config: RunConfig, base: Path, rows: Sequence[ScoredTokens], *, name: str = "rm"
) -> list[RewardValue]:
    """What a reward model of a run pays for rollouts.

    Args:
        config: of the run.
        base: folder that its paths start from.
        rows: tokens of the rollouts.
        name: of the model in `reward.models`.
    """

    plan = plan_run(config, base)

    async def pay() -> list[RewardValue]:
        tokenizer = AutoTokenizer.from_pretrained(config.model.path)
        async with open_reward_models(plan.rewards, tokenizer=tokenizer) as opened:
            (call,) = [target.call for target in opened.targets if target.name == name]
            return [await call(rollout_of(row), Task(id="t", prompt="p")) for row in rows]

    return asyncio.run(pay())


def rollout_of(row: ScoredTokens) -> Trajectory:
    """A finished rollout of these tokens, all of them sampled."""
    count = len(row.ids)
    return Trajectory(
        task_id="t", group_id="g", rollout_id="r", prompt_ids=row.prompt_ids,
        response_ids=row.ids, response_mask=(1,) * count, rollout_log_probs=(0.0,) * count,
        policy_versions=(0,) * count, reward=0.0, termination=Termination.ENV_DONE,
    )  # fmt: skip
