"""The cheap part of the grid of misbehaving user code; `test_whole_grid` runs all of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PLACES = {
    "step": (
        "panic",
        "cancelled",
        "fork",
        "alarm_left_on",
        "unprintable",
        "raise_much",
        "overflow",
    ),
    "reward": ("hang", "leave", "stop_iteration", "fork", "low_recursion_limit", "return_much"),
    "constructor": ("circles", "close_stdout", "close_descriptors", "signals_ignored"),
    "tool": ("unpicklable", "patch_clock", "no_logging", "task_left_behind"),
}
"""Some ways for each place, so that every kind of fault occurs somewhere."""


def run_grid(*words: str) -> tuple[int, str]:
    """Status and findings of cells of the grid."""
    ran = subprocess.run(
        [sys.executable, "-m", "tests.rollout.user_code.grid", *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        timeout=900,
        check=False,
    )
    return ran.returncode, ran.stdout


@pytest.mark.parametrize("place", PLACES)
def test_what_misbehaves_costs_its_own_rollout(place: str) -> None:
    """Fails if another rollout is lost or changed, the culprit is not named, or the run stands."""
    ways = PLACES[place]
    status, found = run_grid(place, *ways)
    assert (status, found.splitlines()[-1:]) == (0, [f"{len(ways)} cells, 0 wrong"]), found
