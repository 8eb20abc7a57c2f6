"""Pair losses and their slopes against 40-digit arithmetic, and their limits."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import mpmath
import pytest
import torch

from agentrl.config.fit import DpoObjective
from agentrl.errors import TrainError
from agentrl.fit.losses.pair_losses import (
    PairInputs,
    chosen_nll,
    hinge,
    ipo,
    orpo,
    robust,
    sigmoid,
    simpo,
)

mpmath.mp.dps = 40
LOSSES = {
    "sigmoid": sigmoid,
    "robust": robust,
    "ipo": ipo,
    "hinge": hinge,
    "simpo": simpo,
    "orpo": orpo,
    "nll": chosen_nll,
}
# l(w), l(l), lr(w), lr(l), N(w), N(l): sure, unsure and wrong policies, long and short answers.
PAIRS = [
    (-10.5, -14.25, -11.0, -13.0, 7.0, 9.0),
    (-3.0, -2.5, -2.0, -4.5, 1.0, 2.0),
    (-120.0, -80.0, -100.0, -85.0, 60.0, 31.0),
    (-0.001, -0.5, -0.01, -0.25, 4.0, 3.0),
    (-40.0, -400.0, -55.0, -380.0, 2.0, 5.0),
]
OBJECTIVES = {
    "plain": {},
    "strong": {"beta": 2.5, "gamma": 0.75},
    "smoothed": {"beta": 0.5, "label_smoothing": 0.2},
    "normalized": {"beta": 0.8, "length_normalized": True, "label_smoothing": 0.1},
}


def pairs(
    *rows: Sequence[float], reference: bool = True, dtype: torch.dtype = torch.float64, **keys
) -> PairInputs:
    """The inputs of some rows as in `PAIRS`; log-probabilities collect a gradient."""
    columns = [torch.tensor(column, dtype=dtype) for column in zip(*rows, strict=True)]
    return PairInputs(
        chosen_P=columns[0].requires_grad_(),
        rejected_P=columns[1].requires_grad_(),
        ref_chosen_P=columns[2] if reference else None,
        ref_rejected_P=columns[3] if reference else None,
        chosen_tokens_P=columns[4],
        rejected_tokens_P=columns[5],
        # Numbers of all losses at once, of which a config takes those that its loss reads.
        objective=DpoObjective.model_construct(**keys),
    )


def at_h(*values: float, dtype: torch.dtype = torch.float64, **keys) -> PairInputs:
    """Pairs of one-token answers with these h: the chosen answer has all of the difference."""
    rows = [(h - 20_000.0, -20_000.0, -20_000.0, -20_000.0, 1.0, 1.0) for h in values]
    return pairs(*rows, dtype=dtype, **keys)


def slopes(loss: Callable[[PairInputs], torch.Tensor], inputs: PairInputs):
    """Loss of each pair, and its derivative by l(w) and l(l)."""
    loss_P = loss(inputs)
    chosen, rejected = torch.autograd.grad(
        loss_P.sum(), (inputs.chosen_P, inputs.rejected_P), allow_unused=True
    )
    zero = torch.zeros_like(inputs.chosen_P)
    return (
        loss_P.detach(),
        zero if chosen is None else chosen,
        zero if rejected is None else rejected,
    )


def expected(name: str, objective: DpoObjective, row: Sequence[float]):
    """The same in 40 digits, straight from the definitions: logarithms of quotients."""
    _, _, ref_w, ref_l, tokens_w, tokens_l = (mpmath.mpf(value) for value in row)
    beta, e = mpmath.mpf(objective.beta), mpmath.mpf(objective.label_smoothing)
    gamma = mpmath.mpf(objective.gamma)
    by_w, by_l = (tokens_w, tokens_l) if objective.length_normalized else (1, 1)

    def sig(x):
        return 1 / (1 + mpmath.exp(-x))

    def odds(mean):
        return mpmath.exp(mean) / (1 - mpmath.exp(mean))

    def value(w, l):  # noqa: E741 (the formulas' own letter)
        h = (w - ref_w) / by_w - (l - ref_l) / by_l
        right, wrong = -mpmath.log(sig(beta * h)), -mpmath.log(sig(-beta * h))
        likelihood = -w / tokens_w
        if name == "sigmoid":
            return (1 - e) * right + e * wrong
        if name == "robust":
            return ((1 - e) * right - e * wrong) / (1 - 2 * e)
        if name == "ipo":
            return (h - 1 / (2 * beta)) ** 2
        if name == "hinge":
            return max(mpmath.mpf(0), 1 - beta * h)
        if name == "simpo":
            return -mpmath.log(sig(beta * (w / tokens_w - l / tokens_l) - gamma))
        if name == "nll":
            return likelihood
        ratio = odds(w / tokens_w) / odds(l / tokens_l)
        return likelihood - beta * mpmath.log(sig(mpmath.log(ratio)))

    at = (mpmath.mpf(row[0]), mpmath.mpf(row[1]))
    return (
        value(*at),
        mpmath.diff(lambda w: value(w, at[1]), at[0]),
        mpmath.diff(lambda l: value(at[0], l), at[1]),  # noqa: E741
    )


@pytest.mark.parametrize("keys", OBJECTIVES.values(), ids=OBJECTIVES)
@pytest.mark.parametrize("name", LOSSES)
def test_golden_numbers(name, keys):
    """Fails with a sign, factor, length or smoothing that is not the formula's."""
    inputs = pairs(*PAIRS, **keys)
    got = slopes(LOSSES[name], inputs)
    for index, row in enumerate(PAIRS):
        want = [float(number) for number in expected(name, inputs.objective, row)]
        assert [float(part[index]) for part in got] == pytest.approx(want, rel=1e-12, abs=1e-12)


def test_float32_stays_float32_and_is_near():
    for name, loss in LOSSES.items():
        single, double = loss(pairs(*PAIRS, dtype=torch.float32)), loss(pairs(*PAIRS))
        assert single.dtype is torch.float32, name
        assert single.tolist() == pytest.approx(double.tolist(), rel=2e-4), name


def test_equal_answers_cost_log_2_with_a_slope_of_half_beta():
    for loss in (sigmoid, robust, simpo):
        got, chosen, rejected = slopes(loss, at_h(0.0, beta=0.3))
        assert got.item() == math.log(2.0)
        assert (chosen.item(), rejected.item()) == (-0.15, 0.15)


def test_at_the_reference_the_gradient_is_half_beta_times_that_of_the_log_ratio():
    """-(beta/2) (grad l(w) - grad l(l)) for two answers of a policy of three tokens."""
    logits = torch.tensor([0.3, -1.0, 0.5], dtype=torch.float64, requires_grad=True)
    log_probs = logits.log_softmax(0)
    chosen, rejected = 2 * log_probs[0] + log_probs[2], log_probs[1]
    inputs = PairInputs(
        chosen_P=chosen[None],
        rejected_P=rejected[None],
        ref_chosen_P=chosen.detach()[None],
        ref_rejected_P=rejected.detach()[None],
        chosen_tokens_P=torch.tensor([3.0]).double(),
        rejected_tokens_P=torch.tensor([1.0]).double(),
        objective=DpoObjective(beta=0.4),
    )
    (of_loss,) = torch.autograd.grad(sigmoid(inputs).sum(), logits, retain_graph=True)
    (of_ratio,) = torch.autograd.grad(chosen - rejected, logits)
    assert of_loss.tolist() == pytest.approx((-0.2 * of_ratio).tolist(), abs=1e-15)


@pytest.mark.parametrize("loss", [sigmoid, robust])
def test_a_vanishing_beta_leaves_no_preference(loss):
    got, chosen, _ = slopes(loss, at_h(50.0, -50.0, beta=1e-12, label_smoothing=0.2))
    assert got.tolist() == pytest.approx([math.log(2.0)] * 2, abs=1e-9)
    assert chosen.abs().max() < 1e-12


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("name", LOSSES)
def test_far_pairs_are_finite(name, smoothing, dtype):
    inputs = at_h(1e4, -1e4, beta=1.0, label_smoothing=smoothing, dtype=dtype)
    for part in slopes(LOSSES[name], inputs):
        assert part.isfinite().all()
    if name == "sigmoid":
        got, chosen, _ = slopes(sigmoid, inputs)
        assert got.tolist() == pytest.approx([smoothing * 1e4, (1 - smoothing) * 1e4])
        assert chosen.tolist() == pytest.approx([smoothing, smoothing - 1.0])


def test_without_smoothing_all_logistic_losses_are_one():
    """To the last bit; with smoothing they part, and robust is the steeper one."""
    hs = (-3.0, -0.1, 0.0, 2.0, 40.0)
    plain, other = slopes(sigmoid, at_h(*hs)), slopes(robust, at_h(*hs))
    for one, two in zip(plain, other, strict=True):
        assert torch.equal(one, two)
    near = slopes(robust, at_h(*hs, label_smoothing=1e-9))
    for one, two in zip(plain, near, strict=True):
        assert two.tolist() == pytest.approx(one.tolist(), abs=1e-7)
    smoothed = slopes(sigmoid, at_h(*hs, label_smoothing=0.2))
    sure = slopes(robust, at_h(*hs, label_smoothing=0.2))
    assert (sure[1] < plain[1]).all()
    assert (plain[1] < smoothed[1]).all()


def test_robust_is_unbiased_under_wrong_labels():
    """(1 - e) loss(h) + e loss(-h) of robust is the plain loss of the right label."""
    e = 0.3
    right, wrong = robust(at_h(1.7, -1.7, label_smoothing=e)).tolist()
    assert (1 - e) * right + e * wrong == pytest.approx(sigmoid(at_h(1.7)).item())


def test_smoothing_puts_the_minimum_at_the_log_odds_of_a_right_label():
    h = math.log(0.8 / 0.2) / 0.5
    _, chosen, _ = slopes(sigmoid, at_h(h - 0.1, h, h + 0.1, beta=0.5, label_smoothing=0.2))
    assert chosen[0] < -1e-3
    assert abs(chosen[1]) < 1e-12
    assert chosen[2] > 1e-3


def test_ipo_is_least_at_half_the_inverse_of_beta():
    got, chosen, rejected = slopes(ipo, at_h(1.0, 2.0, 3.0, beta=0.25))
    assert got.tolist() == [1.0, 0.0, 1.0]
    assert chosen.tolist() == [-2.0, 0.0, 2.0]
    assert rejected.tolist() == [2.0, 0.0, -2.0]


def test_hinge_ends_at_a_margin_of_one():
    got, chosen, _ = slopes(hinge, at_h(3.0, 4.0, 5.0, beta=0.25))
    assert got.tolist() == [0.25, 0.0, 0.0]
    assert chosen.tolist() == [-0.25, 0.0, 0.0]


def test_one_token_answers_are_their_own_mean():
    """Length-normalised and plain losses agree there, and only there."""
    short, long = (-1.5, -2.5, -1.0, -2.0, 1.0, 1.0), (-1.5, -2.5, -1.0, -3.0, 2.0, 5.0)
    for loss in (sigmoid, robust, ipo, hinge):
        plain, mean = (
            loss(pairs(short, long, beta=0.7, length_normalized=on)) for on in (False, True)
        )
        assert plain[0] == mean[0]
        assert plain[1] != mean[1]


def test_length_normalised_ratios_divide_each_answer_by_its_own_length():
    inputs = pairs((-6.0, -10.0, -3.0, -5.0, 3.0, 5.0), length_normalized=True)
    assert inputs.log_ratio_chosen_P.item() == pytest.approx(-1.0)
    assert inputs.log_ratio_rejected_P.item() == pytest.approx(-1.0)
    assert inputs.h_P.item() == pytest.approx(0.0)


def test_without_a_reference_its_log_probabilities_count_as_zero():
    row = (-6.0, -10.0, -3.0, -5.0, 3.0, 5.0)
    assert pairs(row, reference=False).h_P.item() == pytest.approx(4.0)
    assert pairs(row).h_P.item() == pytest.approx(2.0)
    for loss in (simpo, orpo):
        assert torch.equal(loss(pairs(row, reference=False)), loss(pairs(row)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_orpo_with_a_certain_answer_is_finite(dtype):
    """Fails where log(1 - 1) or its slope gets through."""
    rows = [(0.0, -3.0), (-3.0, 0.0), (0.0, 0.0), (-1e-12, -1e-9)]
    inputs = pairs(*[(*row, 0.0, 0.0, 2.0, 2.0) for row in rows], dtype=dtype)
    for part in slopes(orpo, inputs):
        assert part.isfinite().all()
    assert orpo(inputs)[2].item() == pytest.approx(0.1 * math.log(2.0))


def test_orpo_of_a_nearly_certain_answer_keeps_its_digits():
    """p = exp(-1e-9): 1 - p from exp() alone has 7 right digits of 16."""
    row = (-0.5, -1e-9, 0.0, 0.0, 1.0, 1.0)
    inputs = pairs(row, beta=1.0)
    want = [float(number) for number in expected("orpo", inputs.objective, row)]
    assert [float(p) for p in slopes(orpo, inputs)] == pytest.approx(want, rel=1e-12)


def test_every_loss_wants_the_chosen_answer_up_and_the_rejected_one_down():
    for name, loss in LOSSES.items():
        _, chosen, rejected = slopes(loss, pairs(PAIRS[1], length_normalized=name == "ipo"))
        assert chosen.item() < 0, name
        assert rejected.item() > 0 or name == "nll"


def test_pairs_of_other_shapes_are_refused():
    """Fails if [P] and [1] are broadcast, which trains each pair against the first reference."""
    two = torch.zeros(2)
    parts = dict.fromkeys(("chosen_P", "rejected_P", "ref_chosen_P", "ref_rejected_P"), two)
    parts |= {"chosen_tokens_P": two + 1, "rejected_tokens_P": two + 1}
    objective = DpoObjective()
    PairInputs(**parts, objective=objective)
    with pytest.raises(TrainError, match=r"ref_rejected_P has shape \[1\] and chosen_P \[2\]"):
        PairInputs(**(parts | {"ref_rejected_P": torch.zeros(1)}), objective=objective)
    with pytest.raises(TrainError, match=r"chosen_P has shape \[\]"):
        PairInputs(**(parts | {"chosen_P": torch.tensor(0.0)}), objective=objective)
    with pytest.raises(TrainError, match="both or neither"):
        PairInputs(**(parts | {"ref_rejected_P": None}), objective=objective)


def test_a_label_probability_is_the_label_smoothing_of_its_pair() -> None:
    """Fails if it is ignored, or smoothing is not applied to it."""
    probability_P = torch.full((len(PAIRS),), 0.8, dtype=torch.float64)
    soft = replace(pairs(*PAIRS, beta=0.7, label_smoothing=0.1), label_probability_P=probability_P)
    assert torch.allclose(
        sigmoid(soft), sigmoid(pairs(*PAIRS, beta=0.7, label_smoothing=0.26)), rtol=1e-14
    )
