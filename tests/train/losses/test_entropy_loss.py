"""The entropy bonus: its numbers, where it looks, and when it is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from agentrl.config.schema import AlgorithmSection, TrainSection
from agentrl.errors import TrainError
from agentrl.train.backends.torch_backend import TorchBackend
from agentrl.train.losses import needs_of
from agentrl.train.losses.penalty import entropy_loss
from agentrl.train.trainer import Trainer
from tests.train.losses.loss_parts import evaluate, section
from tests.train.tiny_llama import algorithm, make_groups, make_step, replaced, tiny_model


def doubles(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_the_bonus_of_given_tokens() -> None:
    entropy = doubles(1.5, float("nan"), 2.0, 4.0).requires_grad_()
    result = entropy_loss(
        entropy,
        weights_R=doubles(0.5, float("nan"), 0.25, float("nan")),
        mask_R=torch.tensor([True, False, True, False]),
        entropy_coef=0.1,
    )
    (slope,) = torch.autograd.grad(result.loss, entropy)
    assert result.loss.item() == pytest.approx(-0.1 * (0.75 + 0.5), rel=1e-14)
    assert slope.tolist() == pytest.approx([-0.05, 0.0, -0.025, 0.0], rel=1e-14)
    assert result.value_R.tolist() == [1.5, 0.0, 2.0, 0.0]
    assert result.share_R.tolist() == pytest.approx([-0.075, 0.0, -0.05, 0.0], rel=1e-14)


def test_an_entropy_without_gradient_is_refused() -> None:
    # A bonus that trains nothing would not be noticed.
    with pytest.raises(TrainError, match=r"entropy_coef is 0\.1.*without gradient"):
        evaluate(section(entropy_coef=0.1), now=[-1.0], advantages=[0.0])


@pytest.mark.parametrize("value", [-0.1, float("nan"), float("inf"), "much"])
def test_a_weight_that_is_none_is_refused(value: Any) -> None:
    with pytest.raises(ValidationError, match="entropy_coef"):
        AlgorithmSection(entropy_coef=value)


def test_rows_without_advantage_are_computed_for_it() -> None:
    assert not needs_of(algorithm()).zero_advantage_rows
    bonus = algorithm(entropy_coef=0.1)
    assert needs_of(bonus).zero_advantage_rows
    rows = [
        sum(len(micro.rows) for micro in make_step(make_groups(3), algorithm=one).updates[0]
            .micro_batches)
        for one in (algorithm(), bonus)
    ]  # fmt: skip
    assert rows[0] < rows[1]


class Wishes(TorchBackend):
    """A backend that remembers what it was asked for."""

    def __init__(self, model: Any) -> None:
        super().__init__(model, train=TrainSection(), gradient_checkpointing=False)
        self.asked: list[bool] = []

    def log_probs(self, batch: Any, **given: Any) -> Any:
        self.asked.append(batch.entropy_gradient)
        return super().log_probs(batch, **given)


@pytest.mark.parametrize("coef", [0.0, 0.25])
def test_a_gradient_is_asked_for_and_logged_only_with_a_weight(coef: float) -> None:
    model = tiny_model()
    bonus = algorithm(entropy_coef=coef, loss_agg_mode="token-mean")
    backend = Wishes(model)
    trainer = Trainer(model, train=TrainSection(), algorithm=bonus, backend=backend)
    found = trainer.step(make_step(make_groups(), algorithm=bonus)).result()
    assert set(backend.asked) == {coef > 0.0}
    assert ("train/entropy_loss" in found) == (coef > 0.0)
    if coef:
        # A mean over all tokens, as the metric is.
        assert found["train/entropy_loss"] == pytest.approx(-coef * found["entropy"], rel=1e-12)


def test_it_raises_the_entropy_where_nothing_else_is_learned() -> None:
    model, bonus = tiny_model(), algorithm(entropy_coef=1.0, loss_agg_mode="token-mean")
    groups = [
        replace(group, trajectories=tuple(replaced(row, reward=1.0) for row in group.trajectories))
        for group in make_groups()
    ]
    trainer = Trainer(model, train=TrainSection(learning_rate=1e-2), algorithm=bonus)
    found = [trainer.step(make_step(groups, algorithm=bonus)).result()["entropy"] for _ in range(6)]
    assert found == sorted(found)
    assert found[-1] > found[0]
