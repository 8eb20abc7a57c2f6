"""`agentrl prove` with a teacher: both forms pass, and a fault in either is named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from agentrl.config.schema import AlgorithmSection
from agentrl.train import objective
from agentrl.train.distill.terms import DistillTerms, distill_terms
from agentrl.train.prove import ProbeSizes, Proof, prove
from agentrl.types.finding import Status

ASSEMBLIES: dict[str, dict[str, Any]] = {
    "sampled": {},
    "sampled-gspo": {"preset": "gspo"},
    "sampled-reward-kl": {"with_reward": True, "preset": "grpo", "kl_coef": 0.1},
    "sampled-ppo": {"with_reward": True, "preset": "ppo"},
    "exact": {"top_k": 20},
    "exact-token-mean": {"top_k": 3, "loss_agg_mode": "token-mean"},
    "exact-reward-entropy": {"top_k": 3, "with_reward": True, "entropy_coef": 0.1},
}


def proof(**changes: Any) -> Proof:
    distill = {"teacher": {"path": "somewhere"}}
    distill |= {key: changes.pop(key) for key in ("top_k", "with_reward") if key in changes}
    section = AlgorithmSection(**{**changes, "distill": distill}).resolved(horizon=32)
    return prove(section, sizes=ProbeSizes(micro_batch_tokens=1024, response_tokens=1024))


def failures(found: Proof) -> dict[str, str]:
    return {check.name: check.detail for check in found.checks if check.status is not Status.OK}


@pytest.mark.parametrize("changes", ASSEMBLIES.values(), ids=ASSEMBLIES.keys())
def test_both_forms_pass(changes: dict[str, Any]) -> None:
    found = proof(**dict(changes))
    assert not failures(found)
    assert "NaN in masked teacher" in [check.name for check in found.checks]


def _local(found: DistillTerms) -> DistillTerms:
    """Divides by the tokens of its own micro-batch."""
    count = found.tensors.mask_R.sum().clamp(min=1)
    if found.term is None:
        advantages_R = found.tensors.advantages_R / count
        return replace(found, tensors=replace(found.tensors, advantages_R=advantages_R))
    return replace(found, term=replace(found.term, loss=found.term.loss / count))


@pytest.mark.parametrize("top_k", [0, 5])
def test_a_local_denominator_fails(monkeypatch: pytest.MonkeyPatch, top_k: int) -> None:
    def planted(*args: Any) -> DistillTerms:
        return _local(distill_terms(*args))

    monkeypatch.setattr(objective, "distill_terms", planted)
    broken = failures(proof(top_k=top_k))
    assert {"smallest micro-batches", "2 ranks"} <= broken.keys()


def test_a_teacher_of_masked_tokens_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mask that comes after the difference lets NaN times 0 through."""

    def planted(section: Any, out: Any, tensors: Any, teacher: Any) -> DistillTerms:
        found = distill_terms(section, out, tensors, teacher)
        apart_R = (out.log_probs_R.detach() - teacher.sampled_R) * tensors.mask_R
        leak = torch.where(tensors.mask_R, found.tensors.advantages_R, 0.0) + 0.0 * apart_R.sum()
        return replace(found, tensors=replace(found.tensors, advantages_R=leak))

    monkeypatch.setattr(objective, "distill_terms", planted)
    assert "NaN in masked teacher" in failures(proof())
