"""Gradients that the head forms in the forward pass are those of the backward pass."""

from __future__ import annotations

import pytest

from agentrl.train.model import head_logprobs
from tests.train.tiny_llama import (
    VOCABULARY,
    algorithm,
    gradient_of,
    make_groups,
    make_step,
    relative_error,
    tiny_model,
    with_model_log_probs,
)

ROW = VOCABULARY * 8
CASES = {
    "reinforce": {"advantage_estimator": "reinforce"},
    "ppo_clip": {},
    "token-mean": {"loss_agg_mode": "token-mean"},
    "cispo": {"policy_loss": "cispo"},
    "tis": {"old_log_probs": "recompute", "is_correction_type": "tis"},
    "kl in the loss": {"kl_coef": 0.1, "use_kl_loss": True},
    "entropy": {"entropy_coef": 0.3},
    "entropy and kl": {"entropy_coef": 0.3, "kl_coef": 0.1, "use_kl_loss": True},
    "gspo": {"policy_loss": "gspo"},
    "gspo and entropy": {"policy_loss": "gspo", "entropy_coef": 0.3},
    "seq-mask-tis": {"old_log_probs": "recompute", "is_correction_type": "seq-mask-tis"},
}


@pytest.mark.parametrize("case", CASES)
def test_the_gradient_of_a_step_is_the_same(monkeypatch, case):
    """Fails if the loss of a chunk is asked with the other tokens' numbers in its place, or if
    losses over sequences are asked for chunks and believed."""
    model = tiny_model()
    section = algorithm(**CASES[case])
    groups = with_model_log_probs(model, make_groups(), noise=0.5)
    step = make_step(groups, algorithm=section, micro_batch_tokens=10_000)
    want = gradient_of(model, step, section)
    believed, real = [], head_logprobs._common_factor

    def watched(grad, guess):
        believed.append(real(grad, guess))
        return believed[-1]

    monkeypatch.setattr(head_logprobs, "_common_factor", watched)
    monkeypatch.setattr(head_logprobs, "FORMED_BYTES", 7 * ROW)
    assert relative_error(gradient_of(model, step, section), want) < 1e-12
    # Sequences need all of their tokens: no guess is made, and none is wrong elsewhere.
    assert set(believed) == (set() if case.startswith(("gspo", "seq")) else {1.0})
