"""The temperature of a refreshed reward model."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from agentrl.fit.rating.scored_pairs import ScoredPairs
from agentrl.fit.refresh.fit_child import temperature_of
from agentrl.types import Completion, Message, PreferencePair


def scored(differences: list[float]) -> ScoredPairs:
    said = Completion(messages=(Message(role="assistant", content="x"),))
    prompt = (Message(role="user", content="?"),)
    pairs = [
        PreferencePair(id=str(index), prompt=prompt, chosen=said, rejected=said)
        for index in range(len(differences))
    ]
    apart = np.array(differences)[:, None]
    return ScoredPairs(
        pairs=tuple(pairs), chosen_NO=apart, rejected_NO=np.zeros_like(apart), left_out=Counter()
    )


@pytest.mark.parametrize(
    ("differences", "prior"), [([1.0, 1.0, 1.0, -1.0], False), ([1.0, 1.0], True)]
)
def test_held_out_pairs_give_the_temperature(differences: list[float], prior: bool) -> None:
    """Fails (None) if a model that has all of few pairs right gets no temperature of its own."""
    found = temperature_of(scored(differences))
    assert found is not None
    assert found.value == pytest.approx(1.0 / math.log(3.0))
    assert bool(found.prior) is prior


@pytest.mark.parametrize("differences", [[0.0, 0.0], [-1.0, -1.0], []])
def test_pairs_without_one_leave_that_of_the_version_before(differences: list[float]) -> None:
    """Fails if ties, or a model that has all of them wrong, are read at some bound."""
    assert temperature_of(scored(differences)) is None
