"""At ratio 1 every loss has the gradient of plain REINFORCE with its advantages."""

from __future__ import annotations

import pytest
import torch

from tests.train.losses.loss_parts import evaluate, section

LOSSES = ("ppo_clip", "gspo", "cispo", "tis_reinforce", "sapo")


BASES = (
    ("rollout", "none"),
    ("decoupled", "none"),
    ("recompute", "none"),
    ("recompute", "tis"),
    ("recompute", "icepop"),
    ("recompute", "seq-mask-tis"),
)
REFUSED = ("tis_reinforce", "rollout")
"""Its own old policy is part of this loss."""


@pytest.mark.parametrize(
    ("loss", "base", "kind"),
    [(loss, *base) for loss in LOSSES for base in BASES if (loss, base[0]) != REFUSED],
)
@pytest.mark.parametrize("dual_clip", [None, 3.0])
@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("constant", [True, False])
def test_on_policy_the_slope_is_minus_the_weighted_advantage(
    loss, base, kind, dual_clip, level, constant
):
    """Fails if a ratio is detached where it is the only gradient (0), or clipped at 1 (half).

    Advantages that differ inside a rollout are told apart, too: fails for a GSPO that spreads the
    mean of a rollout's advantages over its tokens.
    """
    torch.manual_seed(0)
    size = 12
    now = (-torch.rand(size) * 5).tolist()
    sequences = [0, 0, 0, 1, 2, 2, 2, 2, 3, 3, 3, 3]
    by_rollout, by_token = torch.randn(4).tolist(), torch.randn(size).tolist()
    advantages = [by_rollout[s] for s in sequences] if constant else by_token
    weights = [[0.1, 0.3, 0.05, 0.2][s] for s in sequences]
    mask = [index % 5 != 2 for index in range(size)]
    got = evaluate(
        section(
            loss,
            old_log_probs=base,
            is_correction_type=kind,
            dual_clip=dual_clip,
            importance_level=level,
            turn_rewards="sum" if constant else "return_to_go",
        ),
        now=now,
        advantages=advantages,
        weights=weights,
        mask=mask,
        sequences=sequences,
    )
    want = [-w * a if kept else 0.0 for w, a, kept in zip(weights, advantages, mask, strict=True)]
    assert got.slopes == pytest.approx(want, rel=1e-14, abs=1e-16)
