"""Rewards centered on a set of answers: the square of one mean over the whole update."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import logsigmoid

from agentrl.batch.update_terms import centered_update
from agentrl.config.fit import RewardObjective
from agentrl.fit.losses.fitter import Fitter
from tests.fit.losses.fit_examples import (
    examples,
    fitter,
    gradient,
    plain_gradient,
    reward_loss,
    scores,
    value_model,
    whole,
)
from tests.train.tiny_llama import relative_error

PACKINGS = [(64, True), (32, True), (64, False), (32, False), (400, True)]


def objective(**changes) -> RewardObjective:
    settings = {"center_set_coef": 0.3, "center_data": {"source": "none"}, **changes}
    return RewardObjective.model_validate(settings)


def centered(count: int = 4):
    drawn = examples(count, pairs=False, seed=9)
    return [replace(e, id=f"c{number}") for number, e in enumerate(drawn)]


def wanted(data, apart, model, settings):
    losses, every = [], []
    for e in data:
        r_c, r_r = scores(model, e)
        every += [r_c, r_r]
        p = e.label_probability
        losses.append(e.weight * (-p * logsigmoid(r_c - r_r) - (1 - p) * logsigmoid(r_r - r_c)))
    total = torch.stack(losses).sum() / len(data)
    mean = torch.stack([scores(model, e)[0] for e in apart]).mean()
    return total + settings.center_set_coef * mean**2 + settings.bsr_coef * torch.stack(
        every
    ).mean() ** 2, float(mean.detach())


@pytest.mark.parametrize("bsr", [0.0, 0.4])
@pytest.mark.parametrize(("budget", "sharing"), PACKINGS)
def test_centering_is_one_square_over_the_set(budget, sharing, bsr):
    """Fails if the mean is one of a micro-batch, if answers of the set count as pairs, or if both
    sums over the update are mixed."""
    data, apart, settings = examples(pairs=True), centered(), objective(bsr_coef=bsr)
    model = value_model()
    loss, mean = wanted(data, apart, model, settings)
    made = fitter(value_model(), reward_loss(settings, data))
    update = centered_update(data, apart, micro_batch_tokens=budget, prefix_sharing=sharing)
    assert update.global_sequences == len(data)
    asked = None
    if not bsr:
        asked = centered_update((), apart, micro_batch_tokens=budget, prefix_sharing=sharing)
    step = made.step

    def measured(update):
        found = step(update, measured=asked)
        assert found.result()["rm/center_set_mean"] == pytest.approx(mean, rel=1e-9)
        return found

    made.step = measured  # type: ignore[method-assign]
    found, grads = gradient(made, update)
    assert found == pytest.approx(float(loss.detach()), rel=1e-12)
    assert relative_error(grads, plain_gradient(model, loss)) < 1e-11


def test_the_mean_of_the_set_goes_to_zero():
    data, apart = examples(pairs=True), centered()
    made = fitter(value_model(), reward_loss(objective(center_set_coef=5.0), data))
    update = centered_update(data, apart, micro_batch_tokens=64)
    means = [abs(made.step(update).result()["rm/center_set_mean"]) for _ in range(30)]
    assert means[-1] < 0.3 * means[0]


def test_an_update_without_answers_of_the_set_has_no_such_part():
    data = examples(pairs=True)
    plain = fitter(value_model(), reward_loss(RewardObjective(), data))
    made = fitter(value_model(), reward_loss(objective(), data))
    assert made.evaluate(whole(data)).result() == plain.evaluate(whole(data)).result()


def centered_steps(ranks=None):
    data, apart, model = examples(6, pairs=True), centered(6), value_model()
    made: Fitter = fitter(model, reward_loss(objective(), data), ranks=ranks)
    metrics = []
    for start in (0, 3):
        part = apart[start : start + 3]
        update = centered_update(data[start : start + 3], part, micro_batch_tokens=48)
        asked = centered_update((), part, micro_batch_tokens=48)
        metrics.append(made.step(update, measured=asked).result())
        del metrics[-1]["train/tokens_per_second"]
    return {"weights": {n: p.detach() for n, p in model.named_parameters()}, "metrics": metrics}


def centered_as(address, rank, world_size):
    from tests.train.crew import joined

    ranks = joined(address, rank, world_size)
    try:
        return centered_steps(ranks)
    finally:
        ranks.close()


def test_ranks_center_on_the_whole_set(crew):
    """Fails if a rank squares the mean of its own answers."""
    alone = centered_steps()
    for found in crew.run(3, centered_as):
        assert relative_error(found["weights"], alone["weights"]) < 1e-10
        for ours, theirs in zip(found["metrics"], alone["metrics"], strict=True):
            assert ours == pytest.approx(theirs, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"center_set_coef": 0.1}, "there is no center_data"),
        ({"center_data": {"source": "x"}}, "center_set_coef is 0"),
    ],
)
def test_a_set_and_its_weight_belong_together(settings, message):
    with pytest.raises(ValueError, match=message):
        RewardObjective.model_validate(settings)
