"""The order of a fit's examples is the same in every process, and leaves none out."""

from __future__ import annotations

import pytest

from agentrl.fit.data.order import ExampleOrder
from tests.fit.losses.fit_examples import examples


@pytest.mark.parametrize("per_step", [1, 3, 7, 20])
def test_each_example_comes_once_in_every_epoch(per_step):
    data = examples(7, pairs=False)
    order = ExampleOrder(data, per_step=per_step, seed=1)
    epochs = []
    for epoch in range(3):
        steps = range(epoch * order.steps_per_epoch, (epoch + 1) * order.steps_per_epoch)
        taken = [example.id for step in steps for example in order.step(step)]
        assert sorted(taken) == sorted(example.id for example in data)
        epochs.append(tuple(taken))
    assert len(set(epochs)) == 3


def test_a_step_does_not_depend_on_those_before_it():
    """Fails if a resumed fit, which asks for a later step first, gets other examples."""
    data = examples(7, pairs=False)

    def ids(order, step):
        return [example.id for example in order.step(step)]

    steps = range(9)
    once = ExampleOrder(data, per_step=3, seed=1)
    forwards = [ids(once, step) for step in steps]
    assert [ids(once, step) for step in reversed(steps)] == forwards[::-1]
    assert [ids(ExampleOrder(data, per_step=3, seed=1), step) for step in steps] == forwards
    assert [ids(ExampleOrder(data, per_step=3, seed=2), step) for step in steps] != forwards
