"""Several heads on one body: their loss is the mean of the losses that they have one by one."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from agentrl.batch.examples import Example
from agentrl.batch.update_terms import centered_update
from agentrl.config.fit import FitConfig, RewardObjective
from agentrl.fit.data.fit_data import FitData
from agentrl.fit.heads import bootstrap_weight, draw_heads, with_head_weights
from agentrl.train.model.value_head import ValueModel
from tests.fit.losses.fit_examples import (
    examples,
    fitter,
    gradient,
    plain_gradient,
    reward_loss,
    whole,
)
from tests.train.tiny_llama import relative_error, tiny_model

HEADS = 3


def objective(**changes: Any) -> RewardObjective:
    settings = {"ensemble": HEADS, "ensemble_mode": "heads", "margin_scale": 0.7, **changes}
    return RewardObjective.model_validate(settings)


def model_of_heads() -> ValueModel:
    """Heads that are not zero, and no bias to train."""
    made = ValueModel(tiny_model(seed=0).model, outputs=HEADS, heads=HEADS)
    torch.manual_seed(1)
    with torch.no_grad():
        made.value_head.weight.normal_()
    made.value_head.bias.requires_grad_(False)
    return made


def counted(found: list[Example]) -> list[Example]:
    """Each pair with other weights for the heads, 0 among them."""
    rows = [(1.0, 0.0, 2.0), (0.0, 0.0, 0.0), (3.0, 1.0, 1.0)]
    return [replace(e, head_weights=rows[n % 3]) for n, e in enumerate(found)]


def score(model: ValueModel, example: Example, answer: int, head: int) -> Tensor:
    """Of one head alone, at the last token of one row."""
    ids = torch.tensor([[*example.prompt_ids, *example.answers[answer].ids]])
    hidden_E = model.body(ids).last_hidden_state[0, -1]
    return (model.value_head.weight[head] * hidden_E).sum()


def loss_of_head(
    model: ValueModel,
    data: list[Example],
    apart: list[Example],
    settings: RewardObjective,
    head: int,
) -> Tensor:
    """What a reward model with this head alone would minimise."""
    losses, every = [], []
    for e in data:
        r_c, r_r = score(model, e, 0, head), score(model, e, 1, head)
        every += [r_c, r_r]
        gap, p = r_c - r_r - settings.margin_scale * (e.margin or 0.0), e.label_probability or 0.0
        pair = -p * logsigmoid(gap) - (1 - p) * logsigmoid(-gap)
        pair = pair + settings.center_coef * (r_c + r_r) ** 2
        losses.append(e.weight * (e.head_weights[head] if e.head_weights else 1.0) * pair)
    total = torch.stack(losses).sum() / len(data)
    total = total + settings.bsr_coef * torch.stack(every).mean() ** 2
    if apart:
        mean = torch.stack([score(model, e, 0, head) for e in apart]).mean()
        total = total + settings.center_set_coef * mean**2
    return total


@pytest.mark.parametrize(("budget", "sharing"), [(64, True), (32, False), (400, True)])
def test_heads_have_the_gradient_of_separate_losses(budget: int, sharing: bool) -> None:
    """Fails if a head learns from the scores or the sums of another one, if heads are summed, or if
    a pair counts otherwise than its weights say."""
    data = counted(examples(pairs=True))
    apart = [replace(e, id=f"c{n}") for n, e in enumerate(examples(4, pairs=False, seed=9))]
    settings = objective(
        center_coef=0.05, bsr_coef=0.4, center_set_coef=0.3, center_data={"source": "none"}
    )
    model = model_of_heads()
    losses = [loss_of_head(model, data, apart, settings, head) for head in range(HEADS)]
    loss = torch.stack(losses).mean()
    made = fitter(model_of_heads(), reward_loss(settings, data))
    update = centered_update(data, apart, micro_batch_tokens=budget, prefix_sharing=sharing)
    found, grads = gradient(made, update)
    assert found == pytest.approx(float(loss.detach()), rel=1e-12)
    wanted = plain_gradient(model, loss)
    assert relative_error(grads, wanted) < 1e-10
    single = plain_gradient(model, loss_of_head(model, data, apart, settings, 0))
    assert relative_error(wanted, single) > 0.1


def test_metrics_are_those_of_the_mean_score_and_of_the_deviation() -> None:
    data = examples(pairs=True)
    made, model = fitter(model_of_heads(), reward_loss(objective(), data)), model_of_heads()
    found = made.evaluate(whole(data)).result()
    with torch.no_grad():
        gaps_PK = torch.tensor([
            [float(score(model, e, 0, k) - score(model, e, 1, k)) for k in range(HEADS)]
            for e in data
        ])  # fmt: skip
    assert found["rm/margin"] == pytest.approx(float(gaps_PK.mean()), rel=1e-5)
    right = (gaps_PK.mean(dim=1) > 0).double()
    assert found["rm/accuracy"] == pytest.approx(float(right.mean()))
    assert found["rm/std_between"] == pytest.approx(float(gaps_PK.std(dim=1).mean()), rel=1e-5)


def test_heads_count_pairs_as_bootstrap_samples_do() -> None:
    """Fails if two heads count alike, or if a resumed process would count otherwise."""
    names = [f"pair-{number}" for number in range(20_000)]
    first, second = ([bootstrap_weight(seed, name) for name in names] for seed in (5, 6))
    for weights in (first, second):
        for times in range(4):
            share = weights.count(times) / len(names)
            assert share == pytest.approx(math.exp(-1) / math.factorial(times), abs=0.02)
        assert sum(weights) / len(names) == pytest.approx(1.0, abs=0.03)
    both = sum(a * b for a, b in zip(first, second, strict=True)) / len(names)
    assert both == pytest.approx(1.0, abs=0.05), "one head's count says nothing of another's"
    assert first[:12] == [1, 0, 0, 2, 1, 1, 1, 0, 2, 1, 1, 0]


def test_only_what_is_trained_on_has_bootstrap_weights() -> None:
    data = FitData(examples=tuple(examples(pairs=True)), left_out=())

    def weighted(**settings: Any) -> FitData:
        kind = objective(**settings).model_dump()
        return with_head_weights(
            data,
            FitConfig.model_validate(
                {"run": {"seed": 5}, "data": {"source": "none"}, "objective": kind}
            ),
        )

    for number, example in enumerate(weighted().examples):
        seeds = (5, 6, 7)
        assert example.head_weights == tuple(bootstrap_weight(s, f"e{number}") for s in seeds)
    assert weighted(bootstrap=False) is data


def test_a_head_begins_as_the_head_of_the_member_of_its_number() -> None:
    def drawn(count: int, **settings: Any) -> Tensor:
        weight = torch.zeros(count, 8)
        run, kind = {"seed": settings.pop("seed")}, {"kind": "rm", **settings}
        draw_heads(
            weight,
            FitConfig.model_validate({"run": run, "data": {"source": "none"}, "objective": kind}),
        )
        return weight

    heads = drawn(2, seed=3, ensemble=2, ensemble_mode="heads")
    assert torch.equal(heads[0:1], drawn(1, seed=3, head_std=0.01))
    assert torch.equal(heads[1:2], drawn(1, seed=4, head_std=0.01))
    assert not drawn(1, seed=3).any()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ensemble": 1}, "ensemble is 1; set the number of heads"),
        ({"loss": "purm"}, "purm gives a deviation of its own.*set loss: bt, or ensemble_mode"),
        ({"ensemble_mode": "members", "bootstrap": False}, "members draws no pairs"),
    ],
)
def test_heads_that_cannot_be_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        objective(**settings)
