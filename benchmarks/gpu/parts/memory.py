"""Peak memory of a training step on a GPU against what `agentrl preflight` expects of it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import torch

from agentrl.config.schema import ModelSection, TrainSection
from agentrl.preflight.memory.activations import measured
from agentrl.preflight.memory.estimate import ModelShape, activation_bytes, trained_bytes
from agentrl.preflight.memory.shape import shape_of
from parts.models import make_model
from parts.readings import PartSkipped, Reading, Setting, seconds_of, synchronize
from parts.steps import make_batch, make_trainer, trained_tokens

TOO_LITTLE = 1.15
"""Largest ratio of the measured peak to the expected one."""
TOO_MUCH = 1.15
"""Largest ratio of the expected peak to the measured one."""
_ROW, _ANSWER = 768, 256
"""Tokens of the longest row of `make_batch`, and of its answer."""


def expected_bytes(config: Any, shape: ModelShape, *, tokens: int, checkpointing: bool) -> int:
    """Weights, optimizer, gradients and activations of a bfloat16 step on one GPU."""
    train = TrainSection(micro_batch_tokens=tokens)
    model = ModelSection(dtype="bfloat16", gradient_checkpointing=checkpointing)
    state, gradients = trained_bytes(train, model, shape.parameters, kept=1)
    found = measured(config, train, model, row=min(_ROW, tokens), response=_ANSWER, on_gpu=True)
    passes = activation_bytes(train, model, shape) if found is None else found
    return 2 * shape.parameters + state + gradients + passes


def measure(setting: Setting) -> Iterator[Reading]:
    """Measured over expected, and seconds of a step, with and without checkpointing."""
    if not setting.on_gpu:
        raise PartSkipped("torch counts the memory of GPUs only; see benchmarks/memory.py for CPUs")
    for checkpointing in (False, True):
        for tokens in (4096, 16384):
            yield from _step(setting, tokens, checkpointing=checkpointing)


def _step(setting: Setting, tokens: int, *, checkpointing: bool) -> list[Reading]:
    gc.collect()
    torch.cuda.empty_cache()
    synchronize(setting.device)
    before = torch.cuda.memory_allocated(setting.device)
    model = make_model(setting, torch.bfloat16)
    shape = shape_of(model)
    trainer, _ = make_trainer(model, checkpointing=checkpointing)
    # Rows without sharing, so that micro-batches are as full as a budget makes them.
    batch = make_batch(shape.vocabulary, small=setting.small, sharing=False, budget=tokens)
    trainer.step(batch)
    torch.cuda.reset_peak_memory_stats(setting.device)
    trainer.step(batch)
    peak = torch.cuda.max_memory_allocated(setting.device) - before
    largest = max(m.num_tokens for update in batch.updates for m in update.micro_batches)
    expected = expected_bytes(model.config, shape, tokens=largest, checkpointing=checkpointing)
    seconds = seconds_of(lambda: trainer.step(batch), setting.device, repeats=3)
    label = f"{largest} tokens a micro-batch{', checkpointing' if checkpointing else ''}"
    return [
        Reading(name=f"{label}: measured peak", value=peak / 2**20, unit="MiB"),
        Reading(name=f"{label}: expected", value=expected / 2**20, unit="MiB"),
        Reading(name=f"{label}: measured / expected", value=peak / expected, bound=TOO_LITTLE),
        Reading(name=f"{label}: expected / measured", value=expected / peak, bound=TOO_MUCH),
        Reading(
            name=f"{label}: rate of a step", value=trained_tokens(batch) / seconds, unit="tokens/s"
        ),
    ]
