"""GSPO, CISPO, truncated REINFORCE and SAPO against numbers worked out by hand."""

from __future__ import annotations

import math
import random

import pytest
import torch

from agentrl.config.schema import AlgorithmSection
from agentrl.errors import ConfigError
from agentrl.train.losses import needs_of
from agentrl.train.losses.contract import MAX_LOG_RATIO
from tests.train.losses.loss_parts import evaluate, section


def at_ratios(algorithm, ratios, advantages, **others):
    old = [-2.0 - 0.1 * index for index in range(len(ratios))]
    now = [base + math.log(ratio) for base, ratio in zip(old, ratios, strict=True)]
    got = evaluate(algorithm, now=now, old=old, advantages=advantages, **others)
    return got, now


def test_gspo_has_one_ratio_for_all_rows_of_a_rollout():
    """Rollout 0 has tokens 0, 1 and 3 (token 2 is masked, 4 is rollout 1), ratios 2, 1/2 and 1.2.

    s = (2 * 1/2 * 1.2)^(1/3), inside the bounds: slope -A s w at each of its tokens. Fails with a
    ratio by token (slope -2 at the first), and if the masked token counts in the mean.
    """
    got, _ = at_ratios(
        section("gspo", loss_agg_mode="seq-mean-token-mean"),
        [2.0, 0.5, 9.0, 1.2, 1.5],
        [1.0, 1.0, 1.0, 1.0, -1.0],
        mask=[True, True, False, True, True],
        weights=[1 / 6, 1 / 6, 1 / 6, 1 / 6, 1 / 2],
        sequences=[0, 0, 0, 0, 1],
    )
    s = 1.2 ** (1 / 3)
    assert got.slopes == pytest.approx([-s / 6, -s / 6, 0.0, -s / 6, 1.5 / 2])
    assert got.loss == pytest.approx(-s / 2 + 1.5 / 2)
    assert got.metrics["train/ratio_max"] == pytest.approx(1.5)


def test_gspo_is_the_direct_form_where_the_advantage_is_that_of_the_rollout():
    """l = -min(s A, clip(s) A) once per rollout, slope A s / N_i by the chain rule, over B = 2.

    Fails if the token form carries s with its gradient (twice the slope), or clips rho.
    """
    ratios, tokens = [1.1, 1.3, 0.7, 0.9, 0.95], 3
    got, _ = at_ratios(
        section("gspo"),
        ratios,
        [2.0] * tokens + [-1.0] * 2,
        weights=[1 / 6] * 3 + [1 / 4] * 2,
        sequences=[0, 0, 0, 1, 1],
    )
    first = (1.1 * 1.3 * 0.7) ** (1 / 3)
    second = math.sqrt(0.9 * 0.95)
    assert got.loss == pytest.approx((-2.0 * first + second) / 2)
    assert got.slopes[:3] == pytest.approx([-2.0 * first / 3 / 2] * 3)
    assert got.slopes[3:] == pytest.approx([second / 2 / 2] * 2)


def test_gspo_clips_whole_rollouts():
    """Where advantages vary inside a rollout, by the form of a token."""
    by_turn = section("gspo", turn_rewards="return_to_go")
    got, _ = at_ratios(by_turn, [2.0, 1.5], [1.0, -1.0])
    s = math.sqrt(3.0)
    # The positive token is beyond 1.28 and has no gradient, the negative one keeps its own.
    assert got.slopes == pytest.approx([0.0, s])
    assert got.loss == pytest.approx(-1.28 + s)
    assert got.metrics["clip_ratio/high_mean"] == pytest.approx(1 / 2)
    whole, _ = at_ratios(section("gspo"), [2.0, 1.5], [1.0, 1.0])
    assert whole.slopes == [0.0, 0.0]


@pytest.mark.parametrize("kind", ["tis", "icepop", "seq-mask-tis", "none"])
@pytest.mark.parametrize("seed", range(6))
def test_gspo_under_a_correction_is_the_direct_form(kind, seed):
    """Against autograd of -min(s A, clip(s) A) w_t summed, s through all tokens of the rollout.

    Random assemblies. Fails (4 % and more) with the form of a token, in which each token keeps its
    own weight w_t in place of the mean.
    """
    rng = random.Random(seed)
    order = sorted(rng.randrange(4) for _ in range(40))
    mask = [rng.random() < 0.8 for _ in order]
    advantage = [rng.uniform(-2, 2) for _ in range(4)]
    now, old, rollout, weights = (
        [rng.uniform(low, high) for _ in order]
        for low, high in ((-1.0, -0.8), (-1.05, -0.85), (-2.2, -0.2), (0.1, 1.0))
    )
    kept = "none" if kind == "none" else kind
    algorithm = section("gspo", is_correction_type=kept, eps_clip_low=0.05, eps_clip_high=0.08)
    got = evaluate(
        algorithm,
        now=now, old=old, rollout=rollout, weights=weights, mask=mask, sequences=order,
        advantages=[advantage[index] for index in order],
    )  # fmt: skip
    leaf = torch.tensor(now, dtype=torch.float64, requires_grad=True)
    total = leaf.sum() * 0.0
    for index in set(order):
        own = [t for t, s in enumerate(order) if s == index and mask[t]]
        if not own:
            continue
        s = torch.exp((leaf[own] - torch.tensor(old, dtype=torch.float64)[own]).mean())
        a = advantage[index]
        term = -torch.minimum(s * a, s.clamp(0.95, 1.08) * a)
        raw = [math.exp(old[t] - rollout[t]) for t in own]
        g = math.exp(sum(math.log(r) for r in raw) / len(raw))
        bounds = algorithm.is_correction_threshold or (0.0, math.inf)
        for t, r in zip(own, raw, strict=True):
            w = 1.0 if kind == "none" else min(max(r, bounds[0]), bounds[1])
            if kind == "icepop":
                w = r if bounds[0] <= r <= bounds[1] else 0.0
            if kind == "seq-mask-tis" and not bounds[0] <= g <= bounds[1]:
                w = 0.0
            total = total + weights[t] * w * term
    (wanted,) = torch.autograd.grad(total, leaf)
    assert got.loss == pytest.approx(float(total.detach()), abs=1e-12)
    assert got.slopes == pytest.approx(wanted.tolist(), rel=1e-12, abs=1e-13)


def test_gspo_clamps_the_log_of_the_ratio():
    # Fails (inf) without the clamp; beyond it there is no gradient.
    got = evaluate(section("gspo"), now=[-1.0, -2.0], old=[-900.0, -900.0], advantages=[-1.0, -1.0])
    assert got.loss == pytest.approx(2 * math.exp(MAX_LOG_RATIO))
    assert got.slopes == [0.0, 0.0]


@pytest.mark.parametrize(
    ("ratio", "weight"),
    [(1.0, 1.0), (1.25, 1.25), (1.5, 1.28), (0.9, 0.9), (0.5, 0.8)],
)
@pytest.mark.parametrize("advantage", [2.0, -2.0])
def test_cispo_keeps_the_gradient_of_clipped_tokens(ratio, weight, advantage):
    # -sg(clip(rho)) A lp. Fails with the slope 0 of a clipped ratio, or if rho has a gradient.
    got, now = at_ratios(section("cispo"), [ratio], [advantage])
    assert got.loss == pytest.approx(-weight * advantage * now[0])
    assert got.slopes == pytest.approx([-weight * advantage])
    assert got.metrics["clip_ratio/region_mean"] == (weight != ratio)


def test_cispo_with_the_bounds_of_its_preset_has_no_lower_one():
    got, _ = at_ratios(section("cispo", eps_clip_low=1.0, eps_clip_high=4.0), [0.01, 7.0], [1, 1])
    assert got.slopes == pytest.approx([-0.01, -5.0])


@pytest.mark.parametrize(
    ("ratio", "weight"), [(1.0, 1.0), (1.25, 1.25), (1.5, 1.28), (0.5, 0.5), (0.01, 0.01)]
)
def test_tis_reinforce_by_token(ratio, weight):
    # tau = min(rho, 1.28): fails (0.8 in the last two) with a lower bound.
    got, now = at_ratios(section("tis_reinforce"), [ratio], [-3.0])
    assert got.loss == pytest.approx(3.0 * weight * now[0])
    assert got.slopes == pytest.approx([3.0 * weight])


def test_tis_reinforce_by_sequence_takes_the_mean_of_the_log_ratio_first():
    """Ratios 2 and 1/2 of one rollout: tau = exp(0) = 1; another alone: min(1.5, 1.28).

    Fails if tau is the mean of the ratios (1.25), or if tokens are truncated before the mean.
    """
    algorithm = section("tis_reinforce", importance_level="sequence")
    got, _ = at_ratios(algorithm, [2.0, 0.5, 1.5], [1.0, 1.0, 1.0], sequences=[0, 0, 1])
    assert got.slopes == pytest.approx([-1.0, -1.0, -1.28])


@pytest.mark.parametrize(
    ("base", "threshold", "weight"),
    [
        ("recompute", None, 2.0),  # w = e, cut at 2
        ("recompute", (0.0, 2.5), 2.5),
        ("decoupled", None, 2.0),  # its own weight, not the unbounded one
    ],
)
def test_tis_reinforce_brings_its_sampler_correction(base, threshold, weight):
    """lp_old - lp_rollout = 1. Fails without the weight, or if it is multiplied in twice."""
    algorithm = section("tis_reinforce", old_log_probs=base, is_correction_threshold=threshold)
    got = evaluate(algorithm, now=[-2.0], old=[-2.0], rollout=[-3.0], advantages=[1.0])
    assert got.slopes == pytest.approx([-weight])


def test_tis_reinforce_has_a_policy_before_the_step_of_its_own():
    """Both ratios of document 000: tau to that policy, w from there to the sampler, capped at 2.

    tau w is 1.1 * 2 here; with the sampler in the place of that policy it is min(3.3, 1.2). Fails
    if the preset, or the loss beside another preset, leaves the sampler there.
    """
    for named in ({"preset": "tis_reinforce"}, {"policy_loss": "tis_reinforce"}):
        algorithm = AlgorithmSection(**named).resolved(horizon=8)
        assert algorithm.old_log_probs == "recompute"
        got = evaluate(
            algorithm,
            now=[-2.0 + math.log(1.1)], old=[-2.0], rollout=[-2.0 - math.log(3.0)],
            advantages=[1.0], weights=[1.0],
        )  # fmt: skip
        assert got.slopes == pytest.approx([-1.1 * 2.0])
        with pytest.raises(ValueError, match="drops the cap on the second; set it to 'recompute'"):
            AlgorithmSection(**named, old_log_probs="rollout")
    assert AlgorithmSection().resolved(horizon=8).old_log_probs == "rollout"


@pytest.mark.parametrize(("advantage", "tau"), [(2.0, 1.0), (-2.0, 1.05), (0.0, 1.05)])
@pytest.mark.parametrize("ratio", [0.25, 1.0, 3.0])
def test_sapo_gates_smoothly(ratio, advantage, tau):
    gate = 4 / tau / (1 + math.exp(-tau * (ratio - 1)))
    share = gate * tau / 4
    got, _ = at_ratios(section("sapo"), [ratio], [advantage])
    assert got.loss == pytest.approx(-gate * advantage)
    # d gate / d lp = 4 sigma (1 - sigma) rho. Fails with the tau of the other sign.
    assert got.slopes == pytest.approx([-advantage * 4 * share * (1 - share) * ratio])


def test_only_losses_of_whole_rollouts_need_them_whole():
    assert needs_of(section("gspo")).whole_rollouts
    assert needs_of(section("tis_reinforce", importance_level="sequence")).whole_rollouts
    assert needs_of(section(is_correction_type="seq-mask-tis")).whole_rollouts
    for loss in ("ppo_clip", "cispo", "tis_reinforce", "sapo"):
        assert not needs_of(section(loss)).whole_rollouts


def test_a_penalty_in_the_loss_keeps_rows_without_an_advantage():
    assert not needs_of(section()).zero_advantage_rows
    assert needs_of(section(kl_coef=0.1, use_kl_loss=True)).zero_advantage_rows
    assert needs_of(section(kl_coef=0.1, use_kl_loss=True)).penalty_only
    assert not needs_of(section(kl_coef=0.1, use_kl_loss=False)).zero_advantage_rows


def test_an_unknown_loss_is_named_with_those_there_are():
    with pytest.raises(ConfigError, match=r"'ppo_clib'.*ppo_clip"):
        needs_of(section("ppo_clib"))
