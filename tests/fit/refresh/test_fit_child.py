"""The process of a refresh: how it fails, and the temperature of a refreshed reward model."""

from __future__ import annotations

import logging
import math
import re
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from agentrl.fit.rating.scored_pairs import ScoredPairs
from agentrl.fit.refresh.fit_child import serve, temperature_of
from agentrl.fit.refresh.jobs import RefreshJob
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


class SentFrames:
    """The channel of a process, which keeps what is sent."""

    def __init__(self, job: RefreshJob) -> None:
        self.sent: list[dict[str, Any]] = []
        self._head = asdict(job)

    def end_with_parent(self) -> None:
        pass

    def receive(self) -> Any:
        return SimpleNamespace(head=self._head)

    def send(self, head: dict[str, Any]) -> None:
        self.sent.append(head)


@pytest.mark.parametrize(
    ("origin", "why"),
    [("rm", r"model\.path.*nowhere.*"), ("x" * 300, r"OSError: .*too long.* at .*\.py:\d+")],
)
def test_a_job_that_fails_is_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, origin: str, why: str
) -> None:
    """Fails if its log has a traceback, or if an error that is none of ours has no words."""
    job = RefreshJob(
        folder=str(tmp_path), step=2, current=str(tmp_path / "nowhere"), origin=origin,
        base=str(tmp_path), models=str(tmp_path / "made"), version=1, old=None, earlier=(),
        held_out=0.4, seed=0, steps=1, learning_rate=1e-3, device="cpu", longest=128,
        needs_scale=True,
    )  # fmt: skip
    channel = SentFrames(job)
    with caplog.at_level(logging.INFO):
        serve(cast(Any, channel))
    assert [each.exc_info for each in caplog.records if each.exc_info] == []
    assert len(channel.sent) == 1
    assert re.fullmatch(why, channel.sent[0]["error"]), channel.sent
    assert f"the refresh ends: {channel.sent[0]['error']}" in caplog.messages
