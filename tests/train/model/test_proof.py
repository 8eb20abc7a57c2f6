"""Models are compared with their own forward pass, and refused where a form of reading differs.

Each mutant is wrong in one form alone; without its part of the proof it is trained.
"""

from __future__ import annotations

import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from agentrl.batch.packing import pack_micro_batch
from agentrl.batch.records import Row, RowKey
from agentrl.config.schema import TrainSection
from agentrl.errors import ConfigError, TrainError
from agentrl.models.rotary import check_row_length, rotary_limit
from agentrl.train.backends.choose import make_backend
from agentrl.train.frozen_policy import FrozenPolicy
from agentrl.train.model.attention import packed_attention, reading_of_model
from agentrl.train.model.logprobs import hidden_states
from agentrl.train.model.reading import Reading, _warn
from agentrl.train.model.segments import Segments
from agentrl.train.model.value_head import ValueModel
from agentrl.train.score_model import ScoreModel
from tests.train.model.mutants import (
    endless,
    endless_numbers,
    far_window,
    late,
    model,
    odd,
    restless,
    scaled,
)


def backend(of):
    return make_backend(of, train=TrainSection(), gradient_checkpointing=False, ranks=None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("mutant", "wrong", "agrees"),
    [
        (scaled, "packed by .* prefix-shared by", ""),
        # Rotary positions count by their differences alone, so rows that share nothing are right.
        (restless, "own forward pass: prefix-shared by", r"\(packed, "),
        (endless, "own forward pass: packed with a window of 5", r"\(packed, prefix-shared agrees"),
    ],
    ids=lambda found: getattr(found, "__name__", ""),
)
def test_each_form_is_compared_and_named_where_it_differs(mutant, wrong, agrees, dtype):
    """Log-probabilities were off by more than 1 nat, and nobody said so."""
    assert backend(far_window(dtype)).proof.tolerance < 0.3
    with pytest.raises(ConfigError, match=wrong) as caught:
        backend(mutant(far_window(dtype)))
    name = str(dtype).removeprefix("torch.")
    assert re.search(
        rf"MistralForCausalLM \(mistral\).* nats .*rounding in {name}", str(caught.value)
    )
    assert re.search(agrees, str(caught.value))


def test_a_short_window_bites_without_being_narrowed_and_stands_as_it_was():
    short = model("mistral", sliding_window=6)
    proof = backend(short).proof
    assert set(proof.forms) == {"packed", "prefix-shared"}
    with pytest.raises(ConfigError, match="packed by"):
        backend(endless(short))
    far = far_window()
    forms = backend(far).proof.forms
    assert len(forms) == 4
    assert far.config.sliding_window == 4096
    assert "window of 5" in " ".join(forms)


def test_whatever_the_code_of_a_family_raises_becomes_a_refusal():
    with pytest.raises(ConfigError, match=r"cannot be computed packed: KeyError: 'layer_mask'"):
        backend(odd(far_window()))
    with pytest.raises(ConfigError, match="packed by nan nats"):
        backend(endless_numbers(far_window()))


def test_a_critic_is_compared_by_what_its_head_reads():
    """Its values are all 0 before the first update."""
    right = backend(ValueModel(far_window().base_model)).proof
    assert right.model == "MistralModel"
    assert right.forms["packed"] < 1e-5
    with pytest.raises(ConfigError, match=r"MistralModel.* hidden states .* of their size"):
        backend(ValueModel(late(far_window()).base_model))


def test_a_frozen_model_and_one_that_scores_are_compared(tmp_path):
    for made in (far_window(), ValueModel(far_window().base_model)):
        frozen = FrozenPolicy(made)
        frozen.prove(who="x")
        assert frozen.proof.forms["packed"] < 1e-5
    with pytest.raises(ConfigError, match=r"^the reference 'r': .* would be computed as another"):
        FrozenPolicy(scaled(far_window())).prove(who="the reference 'r'")
    scores = ScoreModel(ValueModel(late(far_window()).base_model))
    with pytest.raises(ConfigError, match=r"^the reward model"):
        scores.prove(who="the reward model 'r'")


@pytest.mark.parametrize(
    ("kind", "reading", "changes"),
    [
        ("gptj", Reading.MASK, {"n_embd": 32, "n_head": 4, "n_layer": 2, "rotary_dim": 8}),
        ("falcon", Reading.TORCH, {}),
        ("falcon", Reading.TORCH, {"new_decoder_architecture": True, "num_kv_heads": 2}),
        ("falcon", Reading.TORCH, {"multi_query": False, "parallel_attn": False}),
        ("falcon", Reading.ROWS, {"alibi": True, "multi_query": False}),
        ("bloom", Reading.ROWS, {"n_head": 4, "n_layer": 2}),
        ("nemotron", Reading.MASK, {}),
        ("gpt_oss", Reading.PACKED, {"num_local_experts": 2, "num_experts_per_tok": 1}),
        ("gemma2", Reading.PACKED, {}),
    ],
)
def test_each_family_is_read_as_it_can_be(kind, reading, changes, caplog):
    """Rows of Falcon, GPT-J and Bloom saw each other, and the future; then they were refused."""
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
