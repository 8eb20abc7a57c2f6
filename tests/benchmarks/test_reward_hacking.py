"""`benchmarks/learning/reward_hacking.py` at its smallest: its pairs, run files and page."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks" / "learning"))

from hidden_truth import HiddenTruth, count_words
from planted_hacking import HackingPlan, Seed
from reward_hacking import ARMS, TEXTS, interval, page
from spurious_pairs import SOURCES, spurious_pairs

from agentrl.testing.preferences import GRAMMARS


def test_labels_follow_quality_and_praise_goes_along_in_its_source_alone() -> None:
    """Fails if a label depends on praise, or if a phrase tells something in another source."""
    rows = spurious_pairs(600, seed="x", source=1, spurious=0.9)

    def share(phrase: int, side: str) -> float:
        start = " ".join(GRAMMARS["A"].praise[phrase])
        return sum(row[side].startswith(start) for row in rows) / len(rows)

    for row in rows:
        better, worse = count_words(row["chosen"]), count_words(row["rejected"])
        assert better["quality"] > worse["quality"]
    assert share(1, "chosen") == pytest.approx(0.9, abs=0.04)
    assert share(1, "rejected") == pytest.approx(0.1, abs=0.04)
    for other in {*range(SOURCES)} - {1}:
        # As rare as in answers that do not begin with the phrase of the source, and no rarer.
        assert share(other, "chosen") == pytest.approx(0.1 / 3, abs=0.03)
        assert share(other, "rejected") == pytest.approx(0.9 / 3, abs=0.06)


def test_only_the_reward_models_of_an_arm_pay(tmp_path: Path) -> None:
    """Fails if a run file is not read any more, the true score pays, or an arm lacks a member."""
    for arm in ARMS:
        config = Seed(tmp_path, HackingPlan(), 7).run_config(arm)
        assert config.reward.env_weight == 0
        (paid,) = config.reward.models.values()
        assert tuple(Path(path).name for path in paid.path) == arm.models
        assert paid.disagreement == arm.disagreement


async def test_the_environment_counts_what_the_page_shows() -> None:
    result = await HiddenTruth().step(
        SimpleNamespace(text="Great question a clear rude clear one.")
    )
    assert (result.rewards, result.done) == (1.0, True)
    assert result.extra_logs == {"quality": 1.0, "praise": 2.0, "words": 7.0}


def test_every_arm_is_in_the_table_with_what_it_gains() -> None:
    numbers = {"quality": 1.0, "praise": 2.0, "words": 3.0, "reward": 4.0, "between": 5.0}

    def seed(number: int) -> dict[str, Any]:
        after = {key: value + number for key, value in numbers.items()}
        arms = {arm.name: {"before": numbers, "after": after, "curve": []} for arm in ARMS}
        arms["sources-1.0"] = {**arms["single"], "after": {**after, "quality": 9.0 + 2 * number}}
        return {"seed": number, "accuracy": {"source-0": 0.9}, "arms": arms}

    text = page(HackingPlan(), [seed(1), seed(3)], at="here")
    assert all(f"| {TEXTS[arm.name]} | 1.00 [1.00, 1.00] |" in text for arm in ARMS)
    assert "| 10.00 [-2.71, 22.71] |" in text
    assert "--seeds 1 3" in text


def test_an_interval_is_that_of_student() -> None:
    found = interval([1.0, 2.0, 3.0])
    assert found["low"] == pytest.approx(-0.484, abs=1e-3)
    assert found["high"] == pytest.approx(4.484, abs=1e-3)
    assert interval([1.0])["low"] is None
