"""A teacher on a real vLLM server: its log-probabilities, its tokenizer, its likeliest tokens."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from agentrl.batch import StepSettings, build_step
from agentrl.config.distill import ServedTeacher
from agentrl.config.schema import ModelSection
from agentrl.train.distill.teacher_model import TRAINED, TeacherModel
from agentrl.train.distill.teacher_server import TeacherServer
from agentrl.train.frozen_policy import FrozenPolicy
from agentrl.train.model.pretrained import load_pretrained
from tests.serving.tiny_vllm import CONTEXT
from tests.serving.tiny_vllm import VOCABULARY as BYTES
from tests.train.tiny_llama import algorithm, make_groups

if TYPE_CHECKING:
    from agentrl.serving.vllm.launcher import VllmServer

TOP_K = 8


async def test_a_served_teacher_says_what_its_checkpoint_says(
    vllm_server: VllmServer, vllm_model_dir: Path
) -> None:
    """Fails if vLLM's entries are about the token before, or are not natural logarithms."""
    section = ServedTeacher(url=f"{vllm_server.url}/v1", model="policy")
    server = TeacherServer(section, top_k=TOP_K, vocabulary=BYTES)
    model = load_pretrained(ModelSection(path=str(vllm_model_dir), dtype="float32", device="cpu"))
    await server.check(model.tokenizer, context=CONTEXT - 1)
    step = build_step(
        make_groups(), StepSettings(algorithm=algorithm(), micro_batch_tokens=64, seed=0)
    )
    micros = step.updates[0].micro_batches
    served = await asyncio.to_thread(server.ask, micros, prompts=None)
    frozen = FrozenPolicy(model.model, mask_keys=TRAINED)
    loaded = TeacherModel(frozen, top_k=TOP_K, vocabulary=BYTES).ask(micros, prompts=None)
    assert served.keys() == loaded.keys()
    masks = {
        key: micro.mask_R[micro.row_R == index]
        for micro in micros
        for index, key in enumerate(micro.rows)
    }
    for key, mask_R in masks.items():
        one, other = served[key], loaded[key]
        assert np.allclose(one.sampled_R[mask_R], other.sampled_R[mask_R], atol=2e-4)
        assert np.allclose(one.log_probs_RK[mask_R], other.log_probs_RK[mask_R], atol=2e-4)
        same = one.ids_RK[mask_R] == other.ids_RK[mask_R]
        assert same.mean() > 0.95, "but for ties"
    assert torch.isfinite(
        torch.as_tensor(np.concatenate([r.sampled_R for r in served.values()]))
    ).all()
