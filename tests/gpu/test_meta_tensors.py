"""Code for GPUs on a machine without one: tensors on the device `meta`, which have no numbers.

They take every branch that is not the CPU's, and a dtype or a shape that does not fit raises there,
forward and backward. A tensor left on the CPU is found only by some operations, and what needs a
number (`item`, `tolist`) cannot run this way: those need a GPU.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from agentrl.batch.tensors import TensorBatch, to_tensors
from agentrl.models.lm_head import use_float32_head
from agentrl.serving.embedded.cache_attention import CacheSegment
from agentrl.serving.embedded.forward import RowModel
from agentrl.serving.embedded.kv_cache import KvCache
from agentrl.train.model.attention import packed_attention
from agentrl.train.model.logprobs import packed_log_probs
from tests.serving.embedded.peaked_model import peaked_model
from tests.train.tiny_llama import make_groups, make_step, tiny_model

META = torch.device("meta")


def micro_batch(*, sharing: bool, dtype: torch.dtype, device: torch.device) -> TensorBatch:
    (update,) = make_step(make_groups(), prefix_sharing=sharing).updates
    kind = torch.promote_types(dtype, torch.float32)
    return to_tensors(update.micro_batches[0], device=device, dtype=kind)


@pytest.mark.parametrize("sharing", [True, False])
@pytest.mark.parametrize("head", ["model", "float32"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_a_pass_of_the_trainer_fits_in_dtype_and_shape(dtype, head, sharing):
    """Packed rows and trees through torch's fused attention, the head with its block sizes for a
    GPU, and the backward pass."""
    model: Any = tiny_model(dtype).to(META)
    if head == "float32":
        use_float32_head(model)
    batch = micro_batch(sharing=sharing, dtype=dtype, device=META)
    with packed_attention(model):
        out = packed_log_probs(model, batch)
        (out.log_probs_R * batch.weights_R).sum().backward()
    assert out.log_probs_R.device == out.entropy_R.device == META
    assert out.log_probs_R.dtype == torch.promote_types(dtype, torch.float32)
    for param in model.parameters():
        assert param.grad is not None
        assert (param.grad.device, param.grad.dtype) == (META, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_pass_of_the_embedded_engine_fits_in_dtype_and_shape(dtype):
    """Two rows that decode, beside a new prompt and one that goes on from a prefix."""
    rows = RowModel(peaked_model().to(dtype).to(META))
    cache = KvCache(
        num_layers=rows.num_layers, num_rows=4, num_heads=rows.num_kv_heads, max_tokens=96,
        head_dim=rows.head_dim, dtype=rows.dtype, device=rows.device,
    )  # fmt: skip
    cache.lengths[:4] = [5, 70, 0, 9]
    segments = [
        CacheSegment(row=2, start=0, ids=[3, 4, 5]),
        CacheSegment(row=3, start=9, ids=[7, 8]),
    ]
    with torch.no_grad():
        logits = rows.step(cache, (11, 12), segments)
    assert logits.shape == (4, rows.vocab_size)
    assert (logits.device, logits.dtype) == (META, dtype)
