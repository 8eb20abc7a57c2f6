"""What an evaluation leaves in the account of training when it fails."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from agentrl.metrics import MetricBag
from agentrl.runtime.drivers.evaluator import Evaluator
from agentrl.runtime.drivers.filters.pending_groups import PendingGroups
from agentrl.runtime.stages import RolloutStage


class Counting:
    """Stands for a rollout stage that counts for all who use it."""

    def __init__(self) -> None:
        self.bag = MetricBag()

    def count(self, number: int) -> None:
        self.bag.sum("waste/tokens/aborted", number)

    def counts(self) -> MetricBag:
        bag, self.bag = self.bag, MetricBag()
        return bag


@pytest.mark.parametrize(
    ("beside", "error", "counted"),
    [
        (False, ConnectionError("no engine"), 1),
        (False, asyncio.CancelledError(), 1),
        (True, ConnectionError("no engine"), 1 + 20),
        (True, asyncio.CancelledError(), 1),
    ],
)
async def test_what_training_counts_beside_an_evaluation_that_fails_is_kept(
    beside: bool, error: BaseException, counted: int
) -> None:
    """Fails if the ledger loses it, or gets what an evaluation alone has cost."""
    stage = Counting()
    stage.count(1)

    async def evaluate(*args: Any, **kwargs: Any) -> dict[str, float]:
        stage.count(20)
        raise error

    pending = PendingGroups(cast(RolloutStage, stage))
    none = cast(Any, None)
    evaluator = Evaluator(
        none,
        seed=0,
        book=cast(Any, SimpleNamespace(evaluate=evaluate)),
        rollouts=none,
        learner=none,
        watch=none,
        pending=pending,
        progress=cast(Any, SimpleNamespace(evaluated=None)),
    )
    with pytest.raises(type(error)):
        await evaluator.evaluate(3, beside=beside)
    assert pending.take_counts().result() == {"waste/tokens/aborted": counted}
