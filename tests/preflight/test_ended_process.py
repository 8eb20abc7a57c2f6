"""A preflight whose checks end their process goes on with the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.preflight.watchdog import run_watched

PLANS = "tests.preflight.troubled_plans"


def test_the_rest_knows_what_was_found_out_before_a_process_ended(tmp_path: Path) -> None:
    # The environment that ended it is kept from what comes after.
    log = tmp_path / "log"
    lines = run_watched(f"{PLANS}:exits_between", arguments={"log": str(log)}).checks
    assert [line.name for line in lines] == ["datasets", "prompts", "budget"]
    assert lines[2].detail == "sandbox True, environment False"
    assert log.read_text() == "found out\n" * 2


@pytest.mark.parametrize(
    ("make", "words"), [("exits_at_once", "status 9"), ("raises_at_once", "status 1")]
)
def test_checks_that_never_begin_are_not_started_for_ever(make: str, words: str) -> None:
    checks = run_watched(f"{PLANS}:{make}", arguments={}).checks
    assert [check.name for check in checks] == ["start"]
    assert words in checks[0].detail
