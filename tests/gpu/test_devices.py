"""The same numbers on every device: `pytest -m gpu` on a machine with CUDA.

Each test takes the device as an argument. On the CPU it runs with all other tests, so what runs on
a GPU is code that is known to work; marked `gpu` it is skipped, with a reason, without CUDA.
"""

from __future__ import annotations

import asyncio
import gc
import importlib.util
from pathlib import Path

import pytest
import torch

from agentrl.config.fleet import EmbeddedServing
from agentrl.config.schema import TrainSection
from agentrl.serving.embedded import EmbeddedEngine
from agentrl.train.trainer import Trainer
from agentrl.types import SamplingParams
from tests.gpu.sharded_gradient import sharded_gradient
from tests.serving.embedded.peaked_model import peaked_model
from tests.train.crew import Crew
from tests.train.tiny_llama import (
    algorithm,
    gradient_of,
    make_groups,
    make_step,
    relative_error,
    tiny_model,
)

CUDA = pytest.param("cuda", marks=pytest.mark.gpu)
DEVICES = ["cpu", CUDA]
BOUNDS = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 0.1}
"""Relative error of a gradient to that in float64 on the CPU, by dtype."""


def on_cpu(tensors):
    return {name: tensor.detach().cpu() for name, tensor in tensors.items()}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", list(BOUNDS), ids=str)
def test_a_gradient_is_that_of_float64_on_the_cpu(device, dtype):
    step = make_step(make_groups())
    wanted = gradient_of(tiny_model(torch.float64), step)
    found = gradient_of(tiny_model(torch.float64).to(dtype).to(device), step)
    assert relative_error(on_cpu(found), wanted) < BOUNDS[dtype]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_step_trains_and_its_gradient_norm_is_that_of_the_cpu(device, dtype):
    def norm(model) -> float:
        before = on_cpu(dict(model.named_parameters()))
        before = {name: tensor.clone() for name, tensor in before.items()}
        train = TrainSection(learning_rate=1e-2)
        metrics = Trainer(model, train=train, algorithm=algorithm()).step(make_step(make_groups()))
        after = on_cpu(dict(model.named_parameters()))
        assert all(tensor.isfinite().all() for tensor in after.values())
        assert any(not torch.equal(before[name], after[name]) for name in before)
        return metrics.result()["train/grad_norm"]

    wanted = norm(tiny_model(torch.float32))
    assert norm(tiny_model(dtype).to(device)) == pytest.approx(wanted, rel=BOUNDS[dtype])


async def greedy(device: str) -> list[tuple[tuple[int, ...], tuple[float, ...]]]:
    engine = EmbeddedEngine(
        peaked_model().to(device),
        section=EmbeddedServing(max_batch_size=4),
        max_prefill=64,
        max_context_tokens=96,
    )
    prompts = [[3, 5, 7], [11] * 20, list(range(1, 60))]
    params = SamplingParams(max_tokens=12, seed=1, temperature=0.0)
    try:
        found = await asyncio.gather(
            *(engine.generate(p, params, f"s{i}") for i, p in enumerate(prompts))
        )
    finally:
        await engine.close()
    return [(tuple(one.ids), tuple(one.log_probs)) for one in found]


@pytest.mark.parametrize("device", DEVICES)
async def test_greedy_tokens_of_the_embedded_engine_are_those_of_a_plain_pass(device):
    model = peaked_model()
    for ids, log_probs in await greedy(device):
        assert len(ids) == len(log_probs) == 12
    found = await greedy(device)
    for prompt, (ids, _) in zip([[3, 5, 7], [11] * 20, list(range(1, 60))], found, strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1]
        assert logits.argmax(-1).tolist() == list(ids)


@pytest.mark.parametrize("device", DEVICES)
def test_fsdp2_on_one_device_has_the_gradient_of_one_process(device):
    crew = Crew(1)
    try:
        (found,) = crew.run(1, sharded_gradient, device)
    finally:
        crew.close()
    wanted = gradient_of(tiny_model(torch.float32), make_step(make_groups()))
    assert relative_error(found, wanted) < BOUNDS[torch.float32]


@pytest.mark.gpu
def test_vllm_samples_the_greedy_tokens_of_a_plain_pass(tmp_path: Path):
    """Only on a GPU: servers on CPUs have tests of their own (`tests/serving/vllm`)."""
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("vLLM is not installed here")
    import vllm  # takes seconds, and is there on few machines

    model = peaked_model()
    model.save_pretrained(tmp_path)
    prompt = [3, 5, 7]
    engine = vllm.LLM(
        str(tmp_path), skip_tokenizer_init=True, dtype="float32", enforce_eager=True,
        max_model_len=96, gpu_memory_utilization=0.2,
    )  # fmt: skip
    params = vllm.SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, detokenize=False)
    ids = engine.generate({"prompt_token_ids": prompt}, params)[0].outputs[0].token_ids
    del engine
    gc.collect()
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1]
    assert logits.argmax(-1).tolist() == list(ids)
