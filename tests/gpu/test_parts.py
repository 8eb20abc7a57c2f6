"""Numbers of the parts of `make gpu` that have a bound: on the CPU and, marked `gpu`, on a GPU."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).parents[2] / "benchmarks" / "gpu"))

from parts import attention, embedded, fsdp2, ipc, lm_head, prefix_tree
from parts.models import make_model
from parts.readings import Setting, relative_errors

from agentrl.train.model.attention import fused_attention
from agentrl.train.model.flex import flexible_attention

CUDA = pytest.param("cuda", marks=pytest.mark.gpu)
DEVICES = ["cpu", CUDA]
DTYPES = [torch.float32, torch.bfloat16]


pytestmark = pytest.mark.filterwarnings("default")
"""Compilers of torch and Triton warn of their own code, otherwise in every release."""


def small(device: str) -> Setting:
    return Setting(device=torch.device(device), small=True)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", attention.CASES, ids=lambda case: case.name)
def test_fused_attention_is_that_of_float64(device, dtype, case):
    """Fails if a group of heads reads the keys of another, or a mask is off by one key."""
    error = attention.attention_error(fused_attention, case, dtype, torch.device(device))
    assert error < attention.BOUNDS[dtype]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", attention.CASES, ids=lambda case: case.name)
def test_the_compiled_kernel_is_that_of_float64(dtype, case):
    """Only on a GPU: on a CPU the kernel has no gradient, and takes a minute to compile."""
    error = attention.attention_error(flexible_attention, case, dtype, torch.device("cuda"))
    assert error < attention.BOUNDS[dtype]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("head", lm_head.HEADS)
def test_a_head_is_that_of_float64(device, dtype, head):
    given = lm_head.head_inputs(300, 3000, 48)
    errors = lm_head.head_errors(lm_head.HEADS[head], given, dtype, torch.device(device))
    logp = lm_head.LOGP_BOUNDS[dtype, head == "float32"]
    assert max(errors.log_prob, errors.entropy) < logp
    assert errors.gradient < lm_head.GRADIENT_BOUNDS[dtype]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_shared_prompt_changes_no_gradient(device, dtype):
    for layout, error in prefix_tree.gradient_errors(small(device), dtype).items():
        assert error < prefix_tree.BOUNDS[dtype], layout


@pytest.mark.parametrize("device", DEVICES)
def test_fsdp2_on_one_rank_trains_as_one_process(device):
    setting = small(device)
    alone = fsdp2.outcome(setting, "torch", None)
    with fsdp2.OneRank(setting.device) as ranks:
        sharded = fsdp2.outcome(setting, "fsdp2", ranks)
    assert relative_errors(sharded["gradient"], alone["gradient"]) < fsdp2.GRADIENT_BOUND
    assert relative_errors(sharded["weights"], alone["weights"]) < fsdp2.WEIGHTS_BOUND


@pytest.mark.parametrize("device", DEVICES)
def test_weights_arrive_in_another_process_bit_for_bit(device):
    """Three versions over the same memory; fails if a receiver gets the one before."""
    setting = small(device)
    weights = {n: p.detach() for n, p in make_model(setting, torch.bfloat16).named_parameters()}
    wrong, sent, received = ipc.send_versions(weights, setting.device, versions=3)
    assert (wrong, len(sent), len(received)) == (0, 3, 3)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_engine_reports_what_the_trainer_computes(device, dtype):
    gaps = embedded.log_prob_gaps(small(device), dtype)
    assert len(gaps) == 16 * 8
    assert float(gaps.max()) < embedded.GAP_BOUNDS[dtype]
    assert float(gaps.mean()) < embedded.MEAN_BOUNDS[dtype]
