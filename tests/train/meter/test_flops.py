"""Operations of an update against those that torch counts."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, AutoModelForCausalLM

from agentrl.batch.records import MicroBatch, PackedBatch, RowKey
from agentrl.train.meter.device import peak_flops
from agentrl.train.meter.flops import ModelFlops

SIZES: dict[str, Any] = {
    "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2, "max_position_embeddings": 64,
}  # fmt: skip
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen3": {"tie_word_embeddings": True},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3_moe": {"num_experts": 4, **EXPERTS},
    "deepseek_v3": {
        "n_routed_experts": 4, **EXPERTS, "n_group": 1, "topk_group": 1, "q_lora_rank": 16,
        "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 12,
        "num_key_value_heads": 4, "first_k_dense_replace": 1, "n_shared_experts": 1,
    },
}  # fmt: skip
TOKENS = 24


def made(family: str, **changes: Any) -> Any:
    config = AutoConfig.for_model(family, **{**SIZES, **FAMILIES.get(family, {}), **changes})
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    if family not in ("llama", "qwen3", "gemma2"):
        model.set_experts_implementation("eager")
    return model


def micro(lengths: tuple[int, ...], *, trained: int) -> PackedBatch:
    """Rows packed side by side, the first `trained` positions of which are trained."""
    total, rows = sum(lengths), tuple(RowKey(group_id="g", rollout_id=str(i), row_index=0)
                                      for i in range(len(lengths)))  # fmt: skip
    numbers = np.zeros(trained)
    return PackedBatch(
        micro_batches=(
            MicroBatch(
                rows=rows,
                segment_N=np.arange(len(lengths)),
                temperature_N=np.ones(len(lengths)),
                lengths_S=np.array(lengths),
                parents_S=np.full(len(lengths), -1),
                input_ids_T=np.arange(total) % 61,
                position_ids_T=np.concatenate([np.arange(n) for n in lengths]),
                row_R=np.zeros(trained, int),
                source_R=np.arange(trained),
                target_R=np.zeros(trained, int),
                mask_R=np.ones(trained, bool),
                sampled_R=np.ones(trained, bool),
                rollout_log_probs_R=numbers,
                advantages_R=numbers,
                weights_R=numbers,
            ),
        ),
        global_tokens=trained,
        global_sequences=1,
        horizon=1,
    )


def counted(model: Any) -> int:
    """Operations that torch counts in a forward and backward pass of one row."""
    ids = torch.arange(TOKENS)[None] % 61
    with FlopCounterMode(display=False) as counter:
        model(input_ids=ids, use_cache=False).logits.sum().backward()
    return counter.get_total_flops()


@pytest.mark.parametrize("frozen", [False, True], ids=["all", "mlp frozen"])
@pytest.mark.parametrize("family", FAMILIES)
def test_operations_are_those_of_a_pass(family: str, frozen: bool) -> None:
    """But for the scores above the diagonal, which plain attention computes and masks."""
    model = made(family)
    if frozen:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(not (".mlp." in name and parameter.dim() > 1))
    flops = ModelFlops.of(model)
    assert flops is not None
    above = 6 * flops.width * 3 * (TOKENS * TOKENS - TOKENS * (TOKENS + 1) // 2)
    ours = flops.of_update(micro((TOKENS,), trained=TOKENS)) + above
    rotary = counted(model) - ours  # angles: positions times frequencies
    assert 0 <= rotary <= 2 * TOKENS * 8


def test_a_window_and_a_shared_pass_count_what_is_looked_at() -> None:
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    windowed = ModelFlops.of(made("gemma2", sliding_window=4, layer_types=kinds))
    assert windowed is not None
    assert windowed.windows == {4: 2, None: 1}
    one, two = (windowed.of_update(micro((n,), trained=0)) for n in (1, 6))
    seen = 2 * (1 + 2 + 3 + 4 + 4 + 4) + 21
    assert two - 6 * one == 6 * windowed.width * (seen - 6 * 3)
    assert windowed.of_update(micro((6, 6), trained=0)) == 2 * two


def test_a_head_counts_for_the_positions_that_are_trained() -> None:
    flops = ModelFlops.of(made("llama"))
    assert flops is not None
    few, more = (flops.of_update(micro((9,), trained=n)) for n in (2, 5))
    assert more - few == 3 * 6 * 61 * 32


def test_experts_that_the_config_does_not_count_have_no_number() -> None:
    model = made("mixtral")
    model.config.num_experts_per_tok = 0
    assert ModelFlops.of(model) is None


@pytest.mark.parametrize(
    ("name", "peak"),
    [("NVIDIA H200", 989e12), ("NVIDIA A100-SXM4-80GB", 312e12), ("NVIDIA L4", 121e12),
     ("NVIDIA L40S", 362e12), ("NVIDIA H100 PCIe", 756e12), ("Some GPU", None)],
)  # fmt: skip
def test_the_peak_is_that_of_the_longest_name(name: str, peak: float | None) -> None:
    assert peak_flops(name, torch.bfloat16) == peak
    assert peak_flops(name, torch.float32) is None
