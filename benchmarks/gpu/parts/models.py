"""Models and rollouts of the parts: SmolLM2's shape on a GPU, a tiny one in a test."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from agentrl.types import Termination, Trajectory, TrajectoryGroup
from parts.readings import Setting

Tokens = tuple[int, ...]
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
    from transformers import AutoModelForCausalLM

    where = device or setting.device
    if setting.model is not None:
        model: Any = AutoModelForCausalLM.from_pretrained(setting.model, dtype=dtype)
        return model.to(where).eval()
    return random_llama(TINY if setting.small else SHAPE).to(dtype).to(where).eval()


def random_llama(shape: Mapping[str, int], *, eos: int = 2, pad: int = 0) -> Any:
    """A Llama of this shape with tied embeddings and random weights, the same on every call."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        **shape, max_position_embeddings=8192, tie_word_embeddings=True,
        bos_token_id=1, eos_token_id=eos, pad_token_id=pad,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def make_groups(
    vocabulary: int, *, prompts: Sequence[int], answers: int, samples: int, seed: int = 0
) -> list[TrajectoryGroup]:
    """Random tokens: one group for each prompt length, answers of a half to the full length."""
    rng = random.Random(seed)
    least = max(1, answers // 2)
    lengths = [[rng.randint(least, answers) for _ in range(samples)] for _ in prompts]

    def sampled(prompt: Tokens, answer: Tokens) -> tuple[float, ...]:
        return tuple(-rng.uniform(1.0, 7.0) for _ in answer)

    return random_groups(vocabulary, prompts, lengths, sampled=sampled, seed=seed)


def random_groups(
    vocabulary: int,
    prompts: Sequence[int],
    answers: Sequence[Sequence[int]],
    *,
    sampled: Callable[[Tokens, Tokens], tuple[float, ...]],
    seed: int = 0,
) -> list[TrajectoryGroup]:
    """Groups of random tokens.

    Args:
        vocabulary: tokens are ids below this.
        prompts: tokens of each group's prompt.
        answers: tokens of each answer, by group.
        sampled: log-probabilities of an answer to a prompt.
        seed: of the tokens.
    """
    rng = random.Random(seed)
    words = range(3, vocabulary)
    groups: list[TrajectoryGroup] = []
    for number, (length, lengths) in enumerate(zip(prompts, answers, strict=True)):
        prompt = tuple(rng.choices(words, k=length))
        texts = [tuple(rng.choices(words, k=size)) for size in lengths]
        name = f"g{number}"
        rows = tuple(
            Trajectory(
                task_id=name, group_id=name, rollout_id=f"{name}/{index}",
                prompt_ids=prompt, response_ids=answer, response_mask=(1,) * len(answer),
                rollout_log_probs=sampled(prompt, answer), policy_versions=(0,) * len(answer),
                reward=float(index % 3), termination=Termination.ENV_DONE,
            )
            for index, answer in enumerate(texts)
        )  # fmt: skip
        groups.append(TrajectoryGroup(group_id=name, task_id=name, trajectories=rows))
    return groups
