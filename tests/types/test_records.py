"""Every record that stages pass on shows an example, and the examples of the contracts run."""

from __future__ import annotations

import dataclasses
import doctest
import importlib

import pytest

from agentrl import types

MODULES = (
    "agentrl.types.endings",
    "agentrl.types.messages",
    "agentrl.types.turns",
    "agentrl.types.rollouts",
    "agentrl.types.examples",
    "agentrl.plugins.imports",
    "agentrl.plugins.registry",
    "agentrl.estimators.contract",
    "agentrl.estimators.critic",
    "agentrl.estimators.statistics",
    "agentrl.batch.advantages",
    "agentrl.batch.returns",
    "agentrl.batch.whitening",
    "agentrl.sync.transfer_kind",
)


def test_every_record_has_an_example() -> None:
    records = [found for found in vars(types).values() if dataclasses.is_dataclass(found)]
    assert len(records) >= 11
    assert [r.__name__ for r in records if "Example:\n" not in (r.__doc__ or "")] == []


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_run(name: str) -> None:
    done = doctest.testmod(importlib.import_module(name))
    assert done.attempted > 0
    assert done.failed == 0
