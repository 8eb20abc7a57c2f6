"""Time that evaluations are expected to take, of which the end of a run is reckoned."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from agentrl.data import TrajectoryStore
from agentrl.runtime.scoring.score_book import ScoreBook
from agentrl.runtime.stages import GroupHandle
from agentrl.types import Task


async def test_an_evaluation_in_flight_is_owed_beside_the_last_one(tmp_path: Path) -> None:
    """Fails if a run whose evaluation goes on beside training keeps time for one alone."""
    now, owed = [0.0], list[float]()
    book = ScoreBook(
        {"a": (), "b": ()},
        TrajectoryStore(tmp_path),
        n_samples=1,
        logged={4: {"timing_s/eval": 90.0}, 2: {"timing_s/eval": 30.0}, 5: {"timing_s/eval": 60.0}},
        now=lambda: now[0],
    )

    async def roll_out(name: str, tasks: Sequence[Task]) -> list[GroupHandle]:
        now[0] += 25.0
        owed.append(book.owed_s)
        return []

    assert book.owed_s == 90  # the longest of an earlier process
    metrics = await book.evaluate(6, roll_out, on_score=lambda summary: None)
    assert owed == [90 + 65, 90 + 40]
    assert metrics["timing_s/eval"] == 50
    assert book.owed_s == 90
