"""A fit has the gradient of its formula, whatever is packed, shared or divided."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import logsigmoid

from agentrl.batch.examples import CHOSEN, REJECTED
from agentrl.config.fit import DpoObjective, RewardObjective
from agentrl.errors import TrainError
from agentrl.fit.losses.fitter import Fitter
from agentrl.metrics.names import is_of_machine
from tests.fit.losses.fit_examples import (
    examples,
    fitter,
    gradient,
    pairs,
    plain_gradient,
    preference_loss,
    reward_loss,
    scores,
    sft,
    summed,
    token_log_probs,
    value_model,
    whole,
)
from tests.train.tiny_llama import relative_error, tiny_model

PACKINGS = [(64, True), (24, True), (64, False), (32, False), (400, True)]


def same(found, wanted, *, bound=1e-11):
    loss, grads = found
    expected, plain = wanted
    assert loss == pytest.approx(expected, rel=1e-12)
    assert relative_error(grads, plain) < bound


@pytest.mark.parametrize(("budget", "sharing"), PACKINGS)
def test_supervised_fine_tuning_is_the_mean_likelihood(budget, sharing):
    """Fails if a mask is off by a token, or a mean is taken inside of a micro-batch."""
    data, model = examples(pairs=False), tiny_model()
    each = [-e.weight * token_log_probs(model, e, 0).mean() for e in data]
    loss = torch.stack(each).sum() / len(data)
    wanted = float(loss.detach()), plain_gradient(model, loss)
    same(gradient(fitter(tiny_model()), sft(data, budget=budget, sharing=sharing)), wanted)


def dpo(objective, data, model, reference):
    losses = []
    for e in data:
        parts = [token_log_probs(model, e, n) for n in (CHOSEN, REJECTED)]
        l_w, l_l = (p.sum() for p in parts)
        r_w, r_l = (token_log_probs(reference, e, n).sum().detach() for n in (CHOSEN, REJECTED))
        h = (l_w - r_w) - (l_l - r_l)
        p, x = e.label_probability, objective.beta * h
        loss = -p * logsigmoid(x) - (1 - p) * logsigmoid(-x)
        losses.append(e.weight * (loss - objective.nll_coef * parts[0].mean()))
    return torch.stack(losses).sum() / len(data)


@pytest.mark.parametrize(("budget", "sharing"), PACKINGS)
def test_preference_optimisation_is_the_mean_over_pairs(budget, sharing):
    """Fails if a pair is compared with the reference of another, or divided over micro-batches."""
    data, model, other = examples(pairs=True), tiny_model(), tiny_model(seed=5)
    objective = DpoObjective(beta=0.3, nll_coef=0.2)
    loss = dpo(objective, data, model, other)
    wanted = float(loss.detach()), plain_gradient(model, loss)
    made = fitter(tiny_model(), preference_loss(objective, summed(other, data), data))
    same(gradient(made, pairs(data, budget=budget, sharing=sharing)), wanted)


def reward(objective, data, model):
    pair_losses, every = [], []
    for e in data:
        r_c, r_r = scores(model, e)
        every += [r_c, r_r]
        gap = r_c - r_r - objective.margin_scale * e.margin
        p = e.label_probability
        loss = -p * logsigmoid(gap) - (1 - p) * logsigmoid(-gap)
        pair_losses.append(e.weight * (loss + objective.center_coef * (r_c + r_r) ** 2))
    mean = torch.stack(every).mean()
    return torch.stack(pair_losses).sum() / len(data) + objective.bsr_coef * mean**2


@pytest.mark.parametrize(("budget", "sharing"), PACKINGS)
def test_a_reward_model_is_trained_over_the_whole_update(budget, sharing):
    """Fails if the mean of `bsr_coef` is one of a micro-batch, or a score is read a token early."""
    data, model = examples(pairs=True), value_model()
    objective = RewardObjective(margin_scale=0.7, center_coef=0.05, bsr_coef=0.4)
    loss = reward(objective, data, model)
    wanted = float(loss.detach()), plain_gradient(model, loss)
    made = fitter(value_model(), reward_loss(objective, data))
    same(gradient(made, whole(data, budget=budget, sharing=sharing)), wanted)


def test_a_policy_equal_to_its_reference_prefers_nothing():
    data, model = examples(pairs=True), tiny_model()
    made = fitter(model, preference_loss(DpoObjective(), summed(tiny_model(), data)))
    found = made.evaluate(pairs(data)).result()
    assert found["x/loss"] == pytest.approx(
        math.log(2) * sum(e.weight for e in data) / len(data), rel=1e-9
    )
    assert found["pref/margin"] == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("kind", ["sft", "dpo", "rm"])
def test_training_goes_where_the_objective_points(kind):
    """Fails with the sign of a loss turned, or if evaluating moves weights."""
    data = examples(pairs=kind != "sft")
    if kind == "sft":
        made, update = fitter(tiny_model()), sft(data)
    elif kind == "dpo":
        loss = preference_loss(DpoObjective(), summed(tiny_model(), data))
        made, update = fitter(tiny_model(), loss), pairs(data)
    else:
        made, update = fitter(value_model(), reward_loss(RewardObjective(), data)), whole(data)
    before = made.evaluate(update).result()
    assert made.evaluate(update).result() == before
    for _ in range(5):
        made.step(update)
    after = made.evaluate(update).result()
    assert after["x/loss"] < before["x/loss"] - 0.05
    assert made.version == 5


def test_a_fit_goes_on_from_its_checkpoint_to_the_bit(tmp_path):
    data, first, second = examples(pairs=False), tiny_model(), tiny_model(seed=3)
    made = fitter(first)
    made.step(sft(data[:3]))
    made.save(tmp_path)
    made.step(sft(data[3:]))
    again = fitter(second)
    again.load(tmp_path)
    assert again.version == 1
    again.step(sft(data[3:]))
    for ours, theirs in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_numbers_that_are_not_finite_move_no_weight():
    data, model = examples(pairs=True), tiny_model()
    made = fitter(model, preference_loss(DpoObjective(), summed(tiny_model(), data)))
    with torch.no_grad():
        model.model.embed_tokens.weight[data[0].prompt_ids[0]] = math.nan
    before = [param.clone() for param in model.parameters()]
    with pytest.raises(TrainError, match="e0"):
        made.step(pairs(data))
    for ours, theirs in zip(model.parameters(), before, strict=True):
        assert torch.equal(ours.nan_to_num(7.0), theirs.nan_to_num(7.0))


@pytest.mark.parametrize("kind", ["dpo", "rm"])
def test_a_gradient_that_is_not_finite_names_the_pair(kind):
    """Fails if answers are tried one by one, where each lacks what it is compared with."""
    data = examples(pairs=True)
    if kind == "dpo":
        loss = preference_loss(DpoObjective(), summed(tiny_model(), data))
        made, update = fitter(tiny_model(torch.float32), loss), pairs(data)
    else:
        objective = RewardObjective(bsr_coef=0.1)
        made = fitter(value_model(), reward_loss(objective, data))
        update = whole(data)
    spoiled = []
    for micro in update.micro_batches:
        ours = np.array([row.rollout_id == "e2" for row in micro.rows])
        weights_R = np.where(ours[micro.row_R], np.inf, micro.weights_R)
        spoiled.append(replace(micro, weights_R=weights_R))
    update = replace(update, micro_batches=tuple(spoiled))
    with pytest.raises(TrainError, match=r"examples whose own gradient is not finite: e2; the"):
        made.step(update)
    assert made.version == 0


def test_a_reference_that_knows_a_pair_not_is_refused():
    data = examples(pairs=True)
    made = fitter(tiny_model(), preference_loss(DpoObjective(), summed(tiny_model(), data[1:])))
    with pytest.raises(TrainError, match="reference gave no log-probability for row e0"):
        made.step(pairs(data))


def fit_as(address, rank, world_size):
    """Two steps of a reward model with the term over the whole update, on one rank."""
    from tests.train.crew import joined

    ranks = joined(address, rank, world_size)
    try:
        return two_steps(ranks)
    finally:
        ranks.close()


def two_steps(ranks=None):
    data, model = examples(6, pairs=True), value_model()
    loss = reward_loss(RewardObjective(bsr_coef=0.4, margin_scale=0.5), data)
    made: Fitter = fitter(model, loss, ranks=ranks)
    metrics = [made.step(whole(data[start : start + 3])).result() for start in (0, 3)]
    numbers = [{k: v for k, v in m.items() if not is_of_machine(k)} for m in metrics]
    return {"weights": {n: p.detach() for n, p in model.named_parameters()}, "metrics": numbers}


@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_make_the_updates_of_one_process(crew, world_size):
    """Fails if the sum over the update stays with a rank, or a pair is divided between ranks."""
    alone = two_steps()
    for found in crew.run(world_size, fit_as):
        assert relative_error(found["weights"], alone["weights"]) < 1e-10
        for ours, theirs in zip(found["metrics"], alone["metrics"], strict=True):
            assert ours == pytest.approx(theirs, rel=1e-9, abs=1e-12)
