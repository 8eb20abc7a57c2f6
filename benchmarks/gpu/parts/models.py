"""Models and rollouts of the parts: SmolLM2's shape on a GPU, a tiny one in a test."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import torch

from agentrl.types import Termination, Trajectory, TrajectoryGroup
from parts.readings import Setting

SHAPE = {
    "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
    "num_attention_heads": 9, "num_key_value_heads": 3,
}  # fmt: skip
"""SmolLM2-135M."""
TINY = {
    "vocab_size": 512, "hidden_size": 96, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 6, "num_key_value_heads": 2,
}  # fmt: skip
"""The same proportions with heads of 16, the smallest that FlexAttention computes."""


def make_model(setting: Setting, dtype: torch.dtype, *, device: torch.device | None = None) -> Any:
    """The same model on every call: from the folder of the setting, else random weights."""
    from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

    where = device or setting.device
    if setting.model is not None:
        model: Any = AutoModelForCausalLM.from_pretrained(setting.model, dtype=dtype)
        return model.to(where).eval()
    torch.manual_seed(0)
    config = LlamaConfig(
        **(TINY if setting.small else SHAPE), max_position_embeddings=8192,
        tie_word_embeddings=True, bos_token_id=1, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    return model.to(dtype).to(where).eval()


def make_groups(
    vocabulary: int, *, prompts: Sequence[int], answers: int, samples: int, seed: int = 0
) -> list[TrajectoryGroup]:
    """Random tokens: one group for each prompt length, answers of a half to the full length."""
    rng = random.Random(seed)
    words = range(3, vocabulary)
    groups = []
    for number, length in enumerate(prompts):
        prompt = tuple(rng.choices(words, k=length))
        rows = []
        for index in range(samples):
            answer = tuple(rng.choices(words, k=rng.randint(max(1, answers // 2), answers)))
            rows.append(
                Trajectory(
                    task_id=f"g{number}", group_id=f"g{number}", rollout_id=f"g{number}/{index}",
                    prompt_ids=prompt, response_ids=answer, response_mask=(1,) * len(answer),
                    rollout_log_probs=tuple(-rng.uniform(1.0, 7.0) for _ in answer),
                    policy_versions=(0,) * len(answer), reward=float(index % 3),
                    termination=Termination.ENV_DONE,
                )
            )  # fmt: skip
        groups.append(
            TrajectoryGroup(
                group_id=f"g{number}", task_id=f"g{number}", trajectories=tuple(rows)
            )
        )  # fmt: skip
    return groups
