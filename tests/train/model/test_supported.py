"""Models that the trainer would compute wrongly are refused before they are trained."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from agentrl.batch.packing import pack_micro_batch
from agentrl.batch.records import Row, RowKey
from agentrl.config.schema import TrainSection
from agentrl.errors import ConfigError, TrainError
from agentrl.models.rotary import check_row_length, rotary_limit
from agentrl.train.backends.choose import make_backend
from agentrl.train.model.attention import packed_attention, reading_of_model
from agentrl.train.model.logprobs import hidden_states
from agentrl.train.model.reading import Reading, _warn
from agentrl.train.model.segments import Segments
from agentrl.train.model.value_head import ValueModel

SIZES = {
    "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


def model(kind, **changes):
    torch.manual_seed(0)
    config = CONFIG_MAPPING[kind](**{**SIZES, **changes})
    return AutoModelForCausalLM.from_config(config).float().eval()


def backend(of):
    return make_backend(of, train=TrainSection(), gradient_checkpointing=False, ranks=None)


def test_a_layer_before_the_head_that_is_not_computed_is_refused():
    """Log-probabilities would be those of another model."""
    with pytest.raises(ConfigError, match="before the head"):
        backend(model("bert", is_decoder=True, head_dim=None))


@pytest.mark.parametrize(
    ("kind", "reading", "changes"),
    [
        ("gptj", Reading.ROWS, {"n_embd": 32, "n_head": 4, "n_layer": 2, "rotary_dim": 8}),
        ("bloom", Reading.ROWS, {"n_head": 4, "n_layer": 2}),
        ("nemotron", Reading.MASK, {}),
        ("gpt_oss", Reading.PACKED, {"num_local_experts": 2, "num_experts_per_tok": 1}),
        ("gemma2", Reading.PACKED, {}),
    ],
)
def test_each_family_is_read_as_it_can_be(kind, reading, changes, caplog):
    """Rows of GPT-J and Bloom saw each other, and the future; then they were refused."""
    _warn.cache_clear()
    found = model(kind, **changes)
    backend(found)
    backend(ValueModel(found.base_model))
    assert reading_of_model(found) is reading
    warned = [entry.message for entry in caplog.records if "read alone" in entry.message]
    assert len(warned) == (reading is Reading.ROWS)


def test_a_model_that_sees_ahead_is_refused():
    """Log-probabilities of an encoder are those of nothing, and it was trained without a word."""
    for kind in ("bert-generation", "roberta"):
        with pytest.raises(ConfigError, match=r"sees the ones behind it.*is_decoder"):
            backend(model(kind, is_decoder=False, head_dim=None))


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("qwen2", {}),
        ("gemma3_text", {}),
        ("granite", {"logits_scaling": 1.0}),
        ("opt", {"ffn_dim": 48, "word_embed_proj_dim": 32, "head_dim": None}),
        ("mamba", {"state_size": 4, "head_dim": None}),
    ],
)
def test_others_are_taken(kind, changes):
    found = model(kind, **changes)
    backend(found)
    backend(ValueModel(found.base_model))


def test_positions_that_follow_the_longest_row_hold_up_to_their_limit():
    """Short rows had other log-probabilities beside a long one, by up to 3.4 nats."""
    rotary = {
        "rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 16,
        "short_factor": [1.0] * 4, "long_factor": [4.0, 8.0, 12.0, 16.0],
    }  # fmt: skip
    dynamic = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
    found = [
        model("phi3", rope_parameters=rotary, original_max_position_embeddings=16),
        model("llama", rope_parameters=dynamic, max_position_embeddings=16),
        model("llama", rope_parameters={"rope_type": "default", "rope_theta": 10000.0}),
    ]
    for made, limit in zip(found, (16, 16, None), strict=True):
        assert rotary_limit(made.config) == limit
        check_row_length(made.config, 16, who="x", key="k")
        if limit is not None:
            with pytest.raises(ConfigError, match=r"x has .* beyond 16 tokens.* have 17 \(k\)"):
                check_row_length(made.config, 17, who="x", key="k")
        for longer in (16, 17):
            batch = rows(5, longer)
            if longer > (limit or longer):
                with pytest.raises(TrainError, match=r"a row has 17 tokens.* beyond 16"):
                    states(made, batch)
                continue
            alone = states(made, rows(5))
            assert torch.allclose(states(made, batch)[:5], alone, atol=1e-5)


def rows(*lengths):
    """Rows of one micro-batch, the first one the same whatever is beside it."""
    ids = [torch.arange(length) % 7 + 1 for length in lengths]
    positions = torch.cat([torch.arange(length) for length in lengths])
    return SimpleNamespace(
        lengths=lengths,
        parents=(-1,) * len(lengths),
        input_ids_T=torch.cat(ids),
        position_ids_T=positions,
        images=(),
        blank_passes=0,
    )


def states(made, batch):
    with torch.no_grad(), packed_attention(made):
        return hidden_states(made, batch)


def test_a_window_that_only_the_mask_knows_of_is_kept():
    """Qwen2-MoE hands no window to its attention function: rows were read without one."""
    experts = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16,
               "shared_expert_intermediate_size": 16}  # fmt: skip
    window = {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 2}
    body = model("qwen2_moe", **experts, **window).base_model
    ids = torch.arange(3, 33)[None]
    with torch.no_grad():
        want = body(input_ids=ids, use_cache=False).last_hidden_state
        with packed_attention(body):
            segments = Segments.of_rows([30])
            found = body(input_ids=ids, use_cache=False, segments=segments).last_hidden_state
    assert "sliding_attention" in body.config.layer_types
    torch.testing.assert_close(found, want, rtol=0, atol=1e-5)


def test_a_critic_of_recurrent_layers_reads_row_by_row():
    """Whether a model carries a state was asked of the critic, which has no such attribute."""
    critic = ValueModel(model("rwkv", attention_hidden_size=32, head_dim=None).base_model)
    torch.nn.init.normal_(critic.value_head.weight)
    rows = [
        Row(
            key=RowKey(group_id="g", rollout_id=str(index), row_index=0),
            input_ids=np.array([5, 6 + index, 7, 8]), prompt_length=1,
            mask_R=np.ones(3, dtype=bool), sampled_R=np.ones(3, dtype=bool),
            rollout_log_probs_R=np.zeros(3), advantages_R=np.zeros(3), weight=1.0, temperature=1.0,
        )
        for index in range(2)
    ]  # fmt: skip
    runs = backend(critic)
    with torch.no_grad(), runs.running():
        together = critic(runs.to_tensors(pack_micro_batch(rows, prefix_sharing=True)))
        alone = [critic(runs.to_tensors(pack_micro_batch([row]))) for row in rows]
    torch.testing.assert_close(together, torch.cat(alone), rtol=0, atol=1e-6)
