"""Rows that share prefixes have the log-probabilities and gradients of rows on their own."""

from __future__ import annotations

import logging
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.batch.packing import pack_micro_batch, padding_micro_batch, unpack
from agentrl.batch.records import LossNeeds, Row, RowKey
from agentrl.batch.tensors import to_tensors
from agentrl.errors import DataError
from agentrl.train.model import reading
from agentrl.train.model.attention import fused_attention, packed_attention
from agentrl.train.model.cpu_rows import CpuRows
from agentrl.train.model.flex import block_mask, visible
from agentrl.train.model.logprobs import packed_log_probs
from agentrl.train.model.segments import Segments, attention_plan
from tests.train.test_same_gradient import split_rows
from tests.train.tiny_llama import (
    MODES,
    VOCABULARY,
    algorithm,
    gradient_of,
    make_groups,
    make_step,
    relative_error,
    tiny_model,
    with_model_log_probs,
)

SCALE = 0.3


def random_tree(rng, *, segments=9, longest=40):
    """Depth first, each segment continuing any on the path to the one before it."""
    lengths, parents, path = [], [], [-1]
    for segment in range(segments):
        path = path[: rng.randint(1, len(path))]
        lengths.append(rng.randint(1, longest))
        parents.append(path[-1])
        path.append(segment)
    return Segments(lengths=tuple(lengths), parents=tuple(parents))


def with_images(segments, rng):
    """The tree with stretches in about half of its segments whose tokens see each other."""
    mutual, start = [], 0
    for length in segments.lengths:
        if rng.random() < 0.5:
            cuts = sorted(rng.randint(0, length) for _ in range(4))
            mutual += [(start + a, start + b) for a, b in (cuts[:2], cuts[2:]) if b - a > 1]
        start += length
    return replace(segments, mutual=tuple(mutual))


def dense_mask(segments, window=None):
    """[T, T] True where a query sees a key, from the definition: walk up to the root."""
    owner = [s for s, length in enumerate(segments.lengths) for _ in range(length)]
    total = len(owner)
    mask = torch.zeros(total, total, dtype=torch.bool)
    for query in range(total):
        above = set()
        segment = owner[query]
        while segment != -1:
            above.add(segment)
            segment = segments.parents[segment]
        seen = [key for key in range(query + 1) if owner[key] in above]
        mask[query, seen if window is None else seen[-window:]] = True
        # The window hides what is too far behind, and nothing that is ahead.
        for start, end in segments.mutual:
            if start <= query < end:
                mask[query, query:end] = True
    return mask


def attention_inputs(tokens, heads=6, kv_heads=2, dim=8):
    torch.manual_seed(0)
    return [
        torch.randn(1, tokens, n, dim, dtype=torch.float64).transpose(1, 2).requires_grad_()
        for n in (heads, kv_heads, kv_heads)
    ]


@given(
    st.integers(0, 10**6),
    st.sampled_from([None, None, 1, 7, 60]),
    st.sampled_from([12, 200]),
    st.booleans(),
)
@settings(max_examples=20, deadline=None)
def test_attention_over_a_tree_is_masked_attention(seed, window, longest, images):
    """Fails if a span's keys are not in the order of the path, if merged siblings see each other,
    if a block divides an image, or if the gradient of a shared key misses one of its branches."""
    segments = random_tree(random.Random(seed), longest=longest)
    if images:
        segments = with_images(segments, random.Random(seed))
    inputs = attention_inputs(segments.num_tokens)
    query, key, value = inputs
    scores = query @ key.repeat_interleave(3, 1).transpose(2, 3) * SCALE
    mask = dense_mask(segments, window)
    probs = torch.softmax(scores.masked_fill(~mask, -torch.inf), -1)
    want = (probs @ value.repeat_interleave(3, 1)).transpose(1, 2)
    upstream = torch.randn_like(want)
    want_gradients = torch.autograd.grad(want, inputs, upstream)
    for attention in (CpuRows.apply, fused_attention):
        got = attention(query, key, value, segments, window, SCALE)
        assert torch.allclose(got, want, rtol=1e-11, atol=1e-13)
        gradients = torch.autograd.grad(got, inputs, upstream)
        for mine, other in zip(gradients, want_gradients, strict=True):
            assert torch.allclose(mine, other, rtol=1e-10, atol=1e-12)


@given(st.integers(0, 10**6), st.sampled_from([None, 1, 7]), st.booleans())
@settings(max_examples=30, deadline=None)
def test_the_mask_of_the_gpu_kernel_is_the_same_tree(seed, window, images):
    segments = random_tree(random.Random(seed), longest=8)
    if images:
        segments = with_images(segments, random.Random(seed))
    at = torch.arange(segments.num_tokens)
    mask = visible(segments, window, torch.device("cpu"))
    none = torch.zeros((), dtype=torch.int64)
    assert torch.equal(mask(none, none, at[:, None], at[None, :]), dense_mask(segments, window))


def test_the_mask_of_the_gpu_kernel_captures_tensors_alone():
    """With dynamic shapes a captured number becomes a symbol, which kernels cannot take."""

    def captured(function):
        for cell in function.__closure__:
            found = cell.cell_contents
            yield from captured(found) if callable(found) else [found]

    for window, mutual in ((None, ()), (7, ()), (7, ((1, 4),))):
        segments = replace(Segments.of_rows((5, 9)), mutual=mutual)
        mask = visible(segments, window, torch.device("cpu"))
        kinds = [isinstance(found, torch.Tensor) for found in captured(mask)]
        assert kinds
        assert all(kinds)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_the_gpu_kernel_computes_the_same_without_being_compiled():
    from torch.nn.attention.flex_attention import flex_attention

    segments = random_tree(random.Random(3), longest=20)
    query, key, value = (t.detach() for t in attention_inputs(segments.num_tokens))
    blocks = block_mask(segments, None, torch.device("cpu"))
    got = flex_attention(query, key, value, block_mask=blocks, scale=SCALE, enable_gqa=True)
    want = fused_attention(query, key, value, segments, None, SCALE)
    assert torch.allclose(got.transpose(1, 2), want, rtol=1e-11)


@pytest.mark.parametrize("window", [None, 150])
@pytest.mark.parametrize("seed", range(6))
def test_the_gpu_kernel_visits_each_block_with_a_visible_key(seed, window):
    """Fails if a block is skipped, or taken as whole, by one token too many."""
    segments = random_tree(random.Random(seed), longest=400)
    if seed % 2:
        segments = with_images(segments, random.Random(seed))
    tokens = segments.num_tokens
    count = -(-tokens // 128)
    short = count * 128 - tokens
    seen = torch.nn.functional.pad(dense_mask(segments, window), (0, short, 0, short))
    # The kernel ignores queries behind the last token, so they must not make a block partial.
    whole = seen | (torch.arange(count * 128) >= tokens)[:, None]
    some, all_of = (
        blocks.unflatten(1, (count, 128)).unflatten(0, (count, 128))
        for blocks in (seen, whole)
    )  # fmt: skip
    some, all_of = some.any(3).any(1), all_of.all(3).all(1)
    made = block_mask(segments, window, torch.device("cpu"))
    partial, full = (
        listed(counts, indices)
        for counts, indices in (
            (made.kv_num_blocks, made.kv_indices),
            (made.full_kv_num_blocks, made.full_kv_indices),
        )
    )
    assert not (partial & full).any()
    if window is None:
        assert torch.equal(full, all_of & some)
        assert torch.equal(partial | full, some)
    else:
        assert not full.any()
        assert not (some & ~partial).any()


def listed(counts, indices):
    """Dense blocks [Q, K] of counts [1, 1, Q] and indices [1, 1, Q, K]."""
    out = torch.zeros(indices.shape[2:], dtype=torch.bool)
    for query, number in enumerate(counts[0, 0].tolist()):
        out[query, indices[0, 0, query, :number].long()] = True
    return out


def test_blocks_inside_an_image_are_whole():
    """An image of 300 tokens fills a block of the kernel, ahead of the diagonal, too."""
    segments = replace(Segments.of_rows((500,)), mutual=((120, 420),))
    made = block_mask(segments, None, torch.device("cpu"))
    full = listed(made.full_kv_num_blocks, made.full_kv_indices)
    seen = full | listed(made.kv_num_blocks, made.kv_indices)
    assert full[1:3, 1:3].all()
    assert seen[0].tolist() == [True] * 4
    assert full[0].tolist() == [False] * 4


def test_short_siblings_share_a_product_and_long_ones_do_not():
    segments = Segments(lengths=(50, 30, 40, 58, 60, 100), parents=(-1, 0, 0, 0, 0, 0))
    spans = attention_plan(segments, None, 128)
    assert [[block.siblings for block in span.blocks] for span in spans] == [
        [(50,)], [(30, 40, 58)], [(60,)], [(100,)],
    ]  # fmt: skip
    assert len(attention_plan(segments, 10, 128)) == 6


def tree_of_rows(rng, *, rows=7, temperature=False):
    """Rows of turns: some go on from where another stands, some branch, some equal another."""
    out = []
    for index in range(rows):
        ids = [rng.randrange(3, VOCABULARY) for _ in range(rng.randint(2, 9))]
        if out:
            before = rng.choice(out).input_ids.tolist()
            keep = rng.choice([0, 1, len(before) // 2, len(before)])
            ids = before[:keep] + (ids if rng.random() < 0.9 or not keep else [])
            ids = ids if len(ids) > 1 else before
        prompt = rng.randint(1, len(ids) - 1)
        size = len(ids) - prompt
        out.append(
            Row(
                key=RowKey(group_id="g", rollout_id=f"r{index}", row_index=0),
                input_ids=np.array(ids, dtype=np.int64),
                prompt_length=prompt,
                mask_R=np.array([rng.random() < 0.8 for _ in range(size)]),
                rollout_log_probs_R=np.zeros(size),
                sampled_R=np.ones(size, dtype=np.bool_),
                advantages_R=np.array([rng.gauss(0, 1) for _ in range(size)]),
                weight=rng.random(),
                temperature=rng.uniform(0.5, 1.5) if temperature else 1.0,
            )
        )
    return out


def outcome(model, micros):
    """Log-probabilities by row, and the gradient of their weighted sum over all micro-batches."""
    model.zero_grad()
    found = {}
    for micro in micros:
        batch = to_tensors(micro, device=torch.device("cpu"), dtype=torch.float64)
        with packed_attention(model):
            out = packed_log_probs(model, batch)
            used = batch.mask_R.double() * batch.weights_R * batch.advantages_R
            (out.log_probs_R * used).sum().backward()
        row_R = torch.as_tensor(micro.row_R)
        for index, key in enumerate(micro.rows):
            found[key] = (out.log_probs_R.detach()[row_R == index], out.entropy_R[row_R == index])
    return found, {name: p.grad.clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize("tied", [True, False])
@given(seed=st.integers(0, 10**6))
@settings(max_examples=20, deadline=None)
def test_sharing_changes_no_log_probability_and_no_gradient(tied, seed):
    """Fails if a shared token is read for one branch only (error 1e-1), or if a position of a
    branch restarts at 0."""
    model = tiny_model(tied=tied)
    rows = tree_of_rows(random.Random(seed), temperature=bool(seed % 2))
    shared = pack_micro_batch(rows, prefix_sharing=True)
    plain, plain_gradient = outcome(model, [pack_micro_batch([row]) for row in rows])
    ours, our_gradient = outcome(model, [shared])
    for key, (log_probs, entropy) in plain.items():
        assert torch.allclose(ours[key][0], log_probs, rtol=1e-12, atol=1e-13)
        assert torch.allclose(ours[key][1], entropy, rtol=1e-12, atol=1e-13)
    assert relative_error(our_gradient, plain_gradient) < 1e-12
    apart, apart_gradient = outcome(model, unpack(shared))
    assert all(torch.equal(apart[key][0], plain[key][0]) for key in plain)
    assert relative_error(apart_gradient, plain_gradient) < 1e-12


def test_sharing_with_gradient_checkpointing_is_the_same():
    model = tiny_model()
    shared = [pack_micro_batch(tree_of_rows(random.Random(5)), prefix_sharing=True)]
    _, plain = outcome(model, shared)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    _, again = outcome(model.train(), shared)
    assert all(torch.equal(plain[name], again[name]) for name in plain)


def test_padding_gives_every_weight_the_gradient_zero():
    model = tiny_model(tied=False)
    found, gradient = outcome(model, [padding_micro_batch()])
    assert found == {}
    assert all((value == 0).all() for value in gradient.values())


def test_log_probs_cover_the_masks_a_loss_declares():
    (row, *_) = tree_of_rows(random.Random(1))
    sampled = np.arange(len(row.mask_R)) % 3 != 0
    row = replace(row, sampled_R=sampled, mask_R=sampled & (np.arange(len(sampled)) % 2 == 0))
    micro = pack_micro_batch([row])

    def covered(*keys):
        batch = to_tensors(micro, device=torch.device("cpu"), dtype=torch.float64, mask_keys=keys)
        return batch.index_A.tolist()

    assert covered("response_mask") == sampled.nonzero()[0].tolist()
    assert covered("final_response_mask") == row.mask_R.nonzero()[0].tolist()
    assert covered("response_mask", "observation_mask") == list(range(len(sampled)))
    assert covered("observation_mask") == (row.mask_R | ~sampled).nonzero()[0].tolist()
    with pytest.raises(DataError, match=r"'loss_mask'.*response_mask, final_response_mask"):
        covered("loss_mask")


def recurrent_model():
    from transformers import MambaConfig, MambaForCausalLM

    torch.manual_seed(0)
    config = MambaConfig(vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=2, state_size=4)
    return MambaForCausalLM(config).double().eval()


def test_a_recurrent_model_reads_row_by_row_and_says_so(caplog):
    """Fails without the check: the state of one row runs into the next (error 1e-1)."""
    reading._warn.cache_clear()
    model = recurrent_model()
    rows = tree_of_rows(random.Random(2), rows=4)
    with caplog.at_level(logging.WARNING):
        ours, our_gradient = outcome(model, [pack_micro_batch(rows, prefix_sharing=True)])
        plain, plain_gradient = outcome(model, [pack_micro_batch([row]) for row in rows])
    for key, (log_probs, _) in plain.items():
        assert torch.allclose(ours[key][0], log_probs, rtol=1e-6)
    assert relative_error(our_gradient, plain_gradient) < 1e-6
    assert [r.message for r in caplog.records if "read alone" in r.message] == [
        "MambaForCausalLM has layers (linear_attention) that rows side by side would leak through: "
        "rows are not packed, prefixes not shared, and each row is read alone"
    ]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("loss", ["ppo_clip", "cispo", "gspo"])
def test_a_step_has_the_same_gradient_shared_or_not(loss, mode):
    """Over budgets that cut the trees in different places, and rollouts split into rows."""
    model = tiny_model()
    section = algorithm(policy_loss=loss, loss_agg_mode=mode)
    groups = with_model_log_probs(model, make_groups(), noise=0.5)
    whole = {"whole_rollouts": loss == "gspo"}
    want = gradient_of(
        model, make_step(groups, algorithm=section, needs=LossNeeds(**whole)), section
    )
    for rows, budget in ((groups, 21), (groups, 48), (split_rows(groups, 1), 64), (groups, 9999)):
        step = make_step(
            rows,
            algorithm=section,
            needs=LossNeeds(**whole),
            micro_batch_tokens=budget,
            prefix_sharing=True,
        )
        assert relative_error(gradient_of(model, step, section), want) < 1e-12
    assert step.num_tokens < make_step(groups, algorithm=section).num_tokens
