"""The embedded engine: tokens a second, and its log-probabilities against those of the trainer."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from agentrl.batch.packing import pack_rows
from agentrl.batch.records import Row, RowKey
from agentrl.batch.tensors import to_tensors
from agentrl.config.fleet import EmbeddedServing
from agentrl.serving.embedded import EmbeddedEngine
from agentrl.train.model.attention import packed_attention
from agentrl.train.model.logprobs import packed_log_probs
from agentrl.types import Generation, SamplingParams
from parts.models import make_model
from parts.readings import Reading, Setting
from parts.steps import dtype_name

GAP_BOUNDS = {torch.float32: 2e-3, torch.bfloat16: 1.5}
"""Largest difference of one log-probability in nats, by dtype."""
MEAN_BOUNDS = {torch.float32: 2e-4, torch.bfloat16: 0.08}
"""Mean absolute difference in nats, by dtype."""


def make_prompts(vocabulary: int, count: int, length: int) -> list[list[int]]:
    """Distinct random prompts."""
    rng = random.Random(0)
    return [[rng.randrange(3, vocabulary) for _ in range(length)] for _ in range(count)]


async def generated(
    model: object, prompts: list[list[int]], *, tokens: int
) -> tuple[list[Generation], float]:
    """Answers of `tokens` tokens to all prompts at once, and the seconds they took."""
    context = len(prompts[0]) + tokens
    engine = EmbeddedEngine(
        model, section=EmbeddedServing(max_batch_size=len(prompts)), max_context_tokens=context
    )
    try:
        params = [SamplingParams(max_tokens=tokens, seed=index) for index in range(len(prompts))]
        began = time.perf_counter()
        found = await asyncio.gather(
            *(engine.generate(p, params[i], f"s{i}") for i, p in enumerate(prompts))
        )
        return list(found), time.perf_counter() - began
    finally:
        await engine.close()


def trainer_log_probs(
    model: object, prompts: list[list[int]], answers: list[Generation]
) -> list[Tensor]:
    """Log-probabilities that the trainer's pass gives to the answers, on the CPU."""
    rows = [
        Row(
            key=RowKey(group_id="g", rollout_id=f"r{index}", row_index=0),
            input_ids=np.array([*prompt, *answer.ids], dtype=np.int64),
            prompt_length=len(prompt),
            mask_R=np.ones(len(answer.ids), dtype=np.bool_),
            rollout_log_probs_R=np.array(answer.log_probs),
            sampled_R=np.ones(len(answer.ids), dtype=np.bool_),
            advantages_R=np.ones(len(answer.ids)),
            weight=1.0,
            temperature=1.0,
        )
        for index, (prompt, answer) in enumerate(zip(prompts, answers, strict=True))
    ]
    found: dict[str, Tensor] = {}
    first = next(model.parameters())  # type: ignore[attr-defined]
    kind = torch.promote_types(first.dtype, torch.float32)
    for micro in pack_rows(rows, micro_batch_tokens=8192):
        batch = to_tensors(micro, device=first.device, dtype=kind)
        with torch.no_grad(), packed_attention(model):
            log_probs = packed_log_probs(model, batch).log_probs_R.cpu()
        at = 0
        for key in micro.rows:
            size = len(answers[int(key.rollout_id[1:])].ids)
            found[key.rollout_id] = log_probs[at : at + size]
            at += size
    return [found[f"r{index}"] for index in range(len(rows))]


def log_prob_gaps(setting: Setting, dtype: torch.dtype) -> Tensor:
    """|engine - trainer| of every token of 16 answers, nats."""
    model = make_model(setting, dtype)
    prompt, tokens = (12, 8) if setting.small else (200, 128)
    prompts = make_prompts(model.config.vocab_size, 16, prompt)
    answers, _ = asyncio.run(generated(model, prompts, tokens=tokens))
    theirs = trainer_log_probs(model, prompts, answers)
    gaps = [
        (torch.tensor(answer.log_probs).double() - other.double()).abs()
        for answer, other in zip(answers, theirs, strict=True)
    ]
    return torch.cat(gaps)


def measure(setting: Setting) -> Iterator[Reading]:
    """Gaps by dtype, then tokens a second by batch size."""
    for dtype, bound in GAP_BOUNDS.items():
        gaps, label = log_prob_gaps(setting, dtype), f"engine against trainer, {dtype_name(dtype)}"
        yield from (
            Reading(name=f"{label}: largest gap", value=float(gaps.max()), bound=bound,
                    unit="nats"),
            Reading(name=f"{label}: mean gap", value=float(gaps.mean()),
                    bound=MEAN_BOUNDS[dtype], unit="nats"),
        )  # fmt: skip
    model = make_model(setting, torch.bfloat16)
    prompt, tokens = (12, 8) if setting.small else (50, 128)
    for size in (1, 16, 64):
        prompts = make_prompts(model.config.vocab_size, size, prompt)
        rates = []
        for _ in range(1 if setting.small else 3):
            _, seconds = asyncio.run(generated(model, prompts, tokens=tokens))
            rates.append(size * tokens / seconds)
        label = f"batch {size}, bfloat16, {tokens} tokens each"
        yield Reading(name=label, value=max(rates), unit="tokens/s, best of 3")
