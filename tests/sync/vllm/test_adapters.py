"""Adapters into a real vLLM server on the CPU: it samples from what the trainer holds."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from agentrl.config.training import LoraSection
from agentrl.errors import SyncError
from agentrl.serving.client import TokenClient
from agentrl.serving.vllm import VllmEngine
from agentrl.sync.adapters import AdapterWeights
from agentrl.sync.coordinator import WeightSync
from agentrl.sync.shm.shm import ShmSender
from agentrl.train.model.lora import adapters, add_adapters, base_weights
from agentrl.train.saving.held_policy import save_policy
from agentrl.types import SamplingParams
from tests.serving.tiny_vllm import log_probs

pytestmark = pytest.mark.slow

PROMPT = tuple(range(40, 72))


class NoTokenizer:
    def save_pretrained(self, folder: Path) -> None:
        """The test asks for ids."""


async def test_a_server_samples_from_the_model_with_the_adapters(
    updated_engine: VllmEngine, vllm_model_dir: Path, other_model_dir: Path, tmp_path: Path
) -> None:
    """Fails if the server samples from its base model, or merges onto what it merged before. A
    server that has another model says so."""
    model = LlamaForCausalLM.from_pretrained(vllm_model_dir)
    add_adapters(model, LoraSection(rank=4, alpha=8.0), base=str(vllm_model_dir))
    await check_pushes(updated_engine, model, vllm_model_dir, tmp_path)
    await check_refusal(updated_engine, other_model_dir)


async def check_pushes(
    engine: VllmEngine, model: LlamaForCausalLM, folder: Path, scratch: Path
) -> None:
    sync = WeightSync(TokenClient([engine]), ShmSender())
    await sync.connect()
    sent = AdapterWeights(lambda: base_weights(model), lambda: adapters(model))
    for version in (1, 2):
        redraw(model, seed=version)
        metrics = await sync.push(sent, version)
        assert metrics.result()["sync/replicas"] == 1
        whole = scratch / f"merged-{version}"
        save_policy(model, NoTokenizer(), whole)
        sampling = SamplingParams(max_tokens=16, seed=3)
        answer = await engine.generate(PROMPT, sampling, f"s{version}")
        assert set(answer.policy_versions) == {version}
        wanted = log_probs(whole, PROMPT, answer.ids, temperature=1.0)
        assert answer.log_probs == pytest.approx(wanted, abs=2e-4)
        base = log_probs(folder, PROMPT, answer.ids, temperature=1.0)
        assert answer.log_probs != pytest.approx(base, abs=1e-2)
    await sync.close()


async def check_refusal(engine: VllmEngine, folder: Path) -> None:
    other = LlamaForCausalLM.from_pretrained(folder)
    add_adapters(other, LoraSection(rank=4, alpha=8.0), base="other")
    sender = ShmSender()
    await engine.prepare_weights("shm", sender.connect(1)[0])
    await engine.pause()
    sent = AdapterWeights(lambda: base_weights(other), lambda: adapters(other))
    with pytest.raises(SyncError, match="trained on other weights"):
        await engine.load_weights(sender.send(sent(), 3))
    sender.close()


def redraw(model: LlamaForCausalLM, seed: int) -> None:
    torch.manual_seed(seed)
    with torch.no_grad():
        for adapter in adapters(model):
            adapter.up.normal_(std=0.1)
