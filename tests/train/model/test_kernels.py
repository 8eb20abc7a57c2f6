"""`model.attention`: rows of the flash kernels, what is chosen, and what is refused in words."""

from __future__ import annotations

import random
import sys
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from agentrl.config import load_config
from agentrl.config.plan import plan_run
from agentrl.config.schema import CriticSection, TrainSection
from agentrl.disk.proof_lines import proof_lines
from agentrl.errors import ConfigError
from agentrl.models.attention_layers import Chunk, ScoreChanges, Window
from agentrl.runtime.assembly.trainer import check_learner
from agentrl.train.backends.choose import make_backend
from agentrl.train.backends.lanes import sharing_copy
from agentrl.train.model.kernels.choose import (
    AttentionCall,
    chosen,
    kernel_of,
    use_kernel,
    widened_kernel,
)
from agentrl.train.model.kernels.varlen import (
    KernelRows,
    flash_rows,
    kernel_rows,
    torch_rows,
    varlen_attention,
)
from agentrl.train.model.segments import Segments
from tests.runtime.tiny_project import write_project
from tests.train.model.mutants import model as family
from tests.train.model.test_prefix_sharing import random_tree
from tests.train.model.test_score_changes import SCALE, dense, leaves
from tests.train.tiny_llama import make_groups, make_step, relative_error, tiny_model

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
BF16 = torch.bfloat16


def plain_rows(
    query: Tensor, key: Tensor, value: Tensor, rows: KernelRows, back: int, scale: float,
    softcap: float | None,
) -> Tensor:  # fmt: skip
    """What a flash kernel computes by its documentation, row by row: the last query is aligned with
    the last key, and sees `back` keys beside its own."""
    out = []
    share = query.shape[1] // key.shape[1]
    ends = zip(rows.query_ends.tolist(), rows.key_ends.tolist(), strict=True)
    for (q0, k0), (q1, k1) in pairwise(ends):
        k, v = (t[k0:k1].repeat_interleave(share, dim=1) for t in (key, value))
        scores = torch.einsum("qhd,khd->hqk", query[q0:q1], k) * scale
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        at = torch.arange(k1 - k0)
        last = torch.arange(q1 - q0)[:, None] + (k1 - k0) - (q1 - q0)
        seen = (at <= last) & ((back < 0) | (at >= last - back))
        probs = torch.softmax(scores.masked_fill(~seen, -torch.inf), -1)
        out.append(torch.einsum("hqk,khd->qhd", probs, v))
        assert q1 - q0 <= rows.most_queries
        assert k1 - k0 <= rows.most_keys
    return torch.cat(out)


@pytest.mark.parametrize("window", [None, 1, 7, Chunk(7)], ids=str)
@pytest.mark.parametrize("softcap", [None, 1.5])
@pytest.mark.parametrize("seed", [3, 4])
def test_rows_of_a_tree_have_the_numbers_and_gradients_of_the_formula(
    window: Window | None, softcap: float | None, seed: int
) -> None:
    """Fails if a row's keys end elsewhere than its queries, if a window counts one key more, if a
    chunk is not cut, or if a shared key misses the gradient of one of its branches."""
    segments = random_tree(random.Random(seed), segments=6, longest=20)
    assert segments.shared
    given, _ = leaves(segments.num_tokens, 16)
    want = dense(given, segments, window, ScoreChanges(softcap=softcap))
    upstream = torch.randn_like(want)
    got = varlen_attention(plain_rows, *given, segments, window, SCALE, softcap)
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12)
    exact = torch.autograd.grad(want, given, upstream)
    for ours, theirs in zip(torch.autograd.grad(got, given, upstream), exact, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)


def test_rows_that_share_nothing_are_not_gathered() -> None:
    segments = Segments.of_rows((5, 1, 9))
    for window in (None, 3, Chunk(4)):
        assert kernel_rows(segments, window, CPU).keys_L is None
    assert kernel_rows(segments, Chunk(4), CPU).query_ends.tolist() == [0, 4, 5, 6, 10, 14, 15]
    tree = Segments(lengths=(4, 2, 3), parents=(-1, 0, 0))
    rows = kernel_rows(tree, None, CPU)
    assert rows.query_ends.tolist() == [0, 4, 6, 9]
    assert rows.key_ends.tolist() == [0, 4, 10, 17]
    assert rows.keys_L is not None
    assert rows.keys_L.tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 6, 7, 8]


def test_gradients_of_shared_keys_are_summed_in_float32() -> None:
    """256 branches that each give a key 1 / 256 of its gradient: summed in bfloat16 most are lost
    beside the first one, which gives 1."""
    segments = Segments(lengths=(1, *(1,) * 256), parents=(-1, *(0,) * 256))
    given = [torch.zeros(1, 1, 257, 16, dtype=BF16, requires_grad=True) for _ in range(3)]
    seen: list[Tensor] = []

    def kernel(query: Tensor, key: Tensor, value: Tensor, *_: Any) -> Tensor:
        seen.append(value)
        return query + value[:257] * 0

    varlen_attention(kernel, *given, segments, None, 1.0)
    grad = torch.full_like(seen[0], 1 / 256)
    grad[0] = 1.0
    (found,) = torch.autograd.grad(seen[0], given[2], grad)
    assert found[0, 0, 0].tolist() == [2.0] * 16


@pytest.mark.parametrize("window", [None, 7, Chunk(7)], ids=str)
def test_the_kernel_of_torch_takes_the_rows_in_shape_and_dtype(window: Window | None) -> None:
    """On tensors without numbers, where torch has its shapes; its numbers need a GPU."""
    segments = random_tree(random.Random(3), segments=6, longest=20)
    shapes = [(1, heads, segments.num_tokens, 16) for heads in (4, 2, 2)]
    given = [torch.empty(s, dtype=BF16, device="meta", requires_grad=True) for s in shapes]
    out = varlen_attention(torch_rows, *given, segments, window, SCALE)
    assert (out.shape, out.dtype) == ((1, segments.num_tokens, 4, 16), BF16)
    found = torch.autograd.grad(out, given, torch.empty_like(out))
    assert [grad.shape for grad in found] == [tensor.shape for tensor in given]


def test_flash_attn_is_called_as_it_is_documented(monkeypatch: pytest.MonkeyPatch) -> None:
    def flash_attn_varlen_func(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0,
        softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None,
        deterministic=False, return_attn_probs=False, block_table=None,
    ):  # fmt: skip
        assert causal
        assert window_size[1] in (-1, 0)
        rows = KernelRows(
            query_ends=cu_seqlens_q, key_ends=cu_seqlens_k, keys_L=None,
            most_queries=max_seqlen_q, most_keys=max_seqlen_k,
        )  # fmt: skip
        return plain_rows(q, k, v, rows, window_size[0], softmax_scale, softcap or None)

    package = ModuleType("flash_attn")
    package.flash_attn_varlen_func = flash_attn_varlen_func  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flash_attn", package)
    segments = random_tree(random.Random(3), segments=6, longest=20)
    given, _ = leaves(segments.num_tokens, 16)
    for window, softcap in ((None, None), (7, 1.5)):
        want = dense(given, segments, window, ScoreChanges(softcap=softcap))
        got = varlen_attention(flash_rows, *given, segments, window, SCALE, softcap)
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("device", "width", "dtype", "kernel"),
    [
        (CUDA, 64, BF16, "flex"),
        (CUDA, 16, torch.float32, "flex"),
        (CUDA, 8, BF16, "sdpa"),
        (CUDA, 64, torch.float64, "sdpa"),
        (CPU, 64, BF16, "written_out"),
        (CPU, 64, torch.float64, "written_out"),
    ],
)
def test_auto_takes_what_the_device_computes_in_the_dtype_and_shape(
    device: torch.device, width: int, dtype: torch.dtype, kernel: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """FlexAttention refuses heads narrower than 16, and sums float64 in float32."""
    from agentrl.train.model.kernels import choose

    monkeypatch.setattr(choose, "_has", lambda module: True)
    chosen.cache_clear()
    call = AttentionCall(device=device, dtype=dtype, key_width=width, value_width=width)
    try:
        assert chosen("auto", call) == kernel
    finally:
        chosen.cache_clear()


@pytest.mark.parametrize(
    ("kernel", "call", "said"),
    [
        ("flex", AttentionCall(device=CPU, dtype=BF16),
         "flex, which needs a GPU, and has no backward pass on a CPU (the model is on cpu); valid "
         "here: auto, sdpa"),
        ("torch_varlen", AttentionCall(device=CPU, dtype=BF16), "needs a GPU (the model is on cpu"),
        ("flash", AttentionCall(device=CUDA, dtype=torch.float32),
         "computes in bfloat16 or float16 (got float32)"),
        ("torch_varlen", AttentionCall(device=CUDA, dtype=BF16, value_width=32), "got 64 and 32"),
        ("flash", AttentionCall(device=CUDA, dtype=BF16, key_width=320, value_width=320),
         "a multiple of 8 up to 256 (got 320 and 320)"),
        ("flash", AttentionCall(device=CUDA, dtype=BF16, sinks=True), "attention sinks"),
        ("flash", AttentionCall(device=CUDA, dtype=BF16, mutual=True), "tokens of an image"),
        ("torch_varlen", AttentionCall(device=CUDA, dtype=BF16, softcap=True), "not cap scores"),
        ("flex", AttentionCall(device=CUDA, dtype=torch.float64), "in float32 (got float64)"),
        ("flex", AttentionCall(device=CUDA, dtype=BF16, key_width=8), "16 numbers or more (got 8)"),
    ],
)  # fmt: skip
def test_what_a_kernel_does_not_compute_is_refused_with_what_is_valid(
    kernel: str, call: AttentionCall, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from agentrl.train.model.kernels import choose

    monkeypatch.setattr(choose, "_not_installed", lambda kernel: "")
    with pytest.raises(ConfigError) as caught:
        chosen(kernel, call)
    assert said in str(caught.value)
    assert str(caught.value).startswith(f"model.attention is {kernel}, which ")
    assert "; valid here: auto, " in str(caught.value)


def backend_of(model: Any, **changes: Any) -> Any:
    settings: dict[str, Any] = {"gradient_checkpointing": False, "ranks": None, **changes}
    return make_backend(model, train=TrainSection(), **settings)


def gradient(model: Any, **changes: Any) -> tuple[Any, dict[str, Tensor]]:
    """The proof of a model, and its gradient of a step with shared prefixes."""
    backend = backend_of(model, **changes)
    (update,) = make_step(make_groups(), micro_batch_tokens=64, prefix_sharing=True).updates
    with backend.running():
        for micro in update.micro_batches:
            batch = backend.to_tensors(micro)
            backend.backward(backend.log_probs(batch).log_probs_R.sum())
    return backend.proof, dict(backend.gradients())


@pytest.mark.parametrize("checkpointing", [False, True])
def test_sdpa_trains_as_the_written_out_softmax_and_stands_in_the_proof(
    checkpointing: bool,
) -> None:
    plain, wanted = gradient(tiny_model())
    model = tiny_model()
    use_kernel(model, "sdpa")
    proof, found = gradient(model, gradient_checkpointing=checkpointing)
    assert (plain.attention, proof.attention) == ("written_out", "sdpa")
    assert relative_error(found, wanted) < 1e-12
    assert not all(torch.equal(found[name], wanted[name]) for name in found)  # another kernel ran
    assert " by sdpa as its own forward" in proof.text
    (line,) = proof_lines({"proofs": {"model.path": proof.as_dict()}})
    assert "in float64 by sdpa packed off by" in line


def test_a_kernel_that_cannot_run_here_is_refused_and_not_replaced() -> None:
    """Reading rows one by one would hide it: what a model cannot do packed is done so."""
    model = tiny_model()
    use_kernel(model, "flex")
    with pytest.raises(ConfigError, match=r"^model.attention is flex, .* valid here: auto, sdpa$"):
        backend_of(model)


def test_a_model_with_an_attention_of_its_own_has_no_choice() -> None:
    model = family("rwkv", attention_hidden_size=32, head_dim=None)
    use_kernel(model, "sdpa")
    with pytest.raises(ConfigError, match=r"sdpa, but RwkvForCausalLM reads its rows one by one"):
        backend_of(model)
    use_kernel(model, "auto")
    assert backend_of(model).proof.attention == ""


def test_a_copy_in_float32_has_a_kernel_that_computes_in_it() -> None:
    model = tiny_model()
    for kernel, inside in (("torch_varlen", "auto"), ("flash", "auto"), ("sdpa", "sdpa")):
        use_kernel(model, kernel)
        with widened_kernel(model):
            assert kernel_of(model) == inside
        assert kernel_of(model) == kernel


def test_the_run_file_reaches_policy_and_critic_and_is_refused_before_either(
    tmp_path: Path,
) -> None:
    from agentrl.train.model.load import load_model
    from agentrl.train.model.value_head import load_critic

    project = write_project(tmp_path)
    plan = plan_run(load_config(project, ["model.attention=sdpa"]), tmp_path).trainer
    check_learner(plan)
    policy = load_model(plan.model).model
    critic = load_critic(CriticSection(), plan.model)
    assert kernel_of(policy) == kernel_of(critic) == kernel_of(sharing_copy(policy)) == "sdpa"
    plan = plan_run(load_config(project, ["model.attention=torch_varlen"]), tmp_path).trainer
    with pytest.raises(ConfigError, match=r"torch_varlen, which needs a GPU .* auto, sdpa$"):
        check_learner(plan)
    with pytest.raises(ConfigError, match="valid: auto, flash, flex, sdpa, torch_varlen"):
        load_config(project, ["model.attention=fa2"])
