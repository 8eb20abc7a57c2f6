"""`agentrl.cli.replay.compare`: which metrics of a step are compared."""

from __future__ import annotations

from agentrl.cli.replay.compare import compare_metrics


def test_a_clock_is_no_difference() -> None:
    """Fails if a replay with equal numbers is "not what was recorded" since it was faster."""
    recorded = {"train/loss": 0.5, "timing_s/measure": 0.010}
    again = compare_metrics("metrics", recorded, {"train/loss": 0.5, "timing_s/measure": 0.009})
    assert again.compared == 1
    assert again.differing == 0
    other = compare_metrics("metrics", recorded, {"train/loss": 0.6, "timing_s/measure": 0.010})
    assert other.differing == 1
