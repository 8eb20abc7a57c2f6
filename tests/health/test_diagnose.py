"""The registry of detectors, and a detector of a user."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentrl.cli import main
from agentrl.errors import ConfigError
from agentrl.health import DETECTORS, THRESHOLDS, History, Series, diagnose
from agentrl.types.finding import Status

TOY = '''
from agentrl.types.finding import Status
from agentrl.health import Evidence, bound, detector
from agentrl.health.findings import fine, found, unknown


@detector(bound("most", 0.5, "share of empty answers", "ours"))
def silence(history, limits):
    """The policy says nothing."""
    series = history.metrics.get("toy/empty")
    if series is None:
        return unknown("silence", "toy/empty is not logged")
    if series.values[-1] <= limits["silence/most"]:
        return fine("silence", "it speaks")
    text = f"{series.values[-1]:.0%} of the answers are empty"
    return found("silence", Status.FAIL, text, Evidence(text=text, first_step=1, last_step=2))
'''


@pytest.fixture
def toy(tmp_path: Path) -> str:
    (tmp_path / "toy_detectors.py").write_text(TOY)
    return f"{tmp_path / 'toy_detectors.py'}:silence"


def test_every_detector_speaks_under_the_name_it_is_registered_by() -> None:
    assert [verdict.name for verdict in diagnose(History(metrics={}))] == list(DETECTORS)
    assert all(item.name.partition("/")[2] for item in THRESHOLDS)


def test_a_detector_of_a_user_brings_its_own_threshold(toy: str) -> None:
    silence = DETECTORS.find(toy)
    quiet = Series(steps=(1, 2), values=(0.2, 0.8))
    history = History(metrics={"toy/empty": quiet})
    last = diagnose(history, {}, more=[silence])[-1]
    assert (last.name, last.status, last.first_step) == ("silence", Status.FAIL, 1)
    assert last.detail == "80% of the answers are empty"
    assert diagnose(history, {"silence/most": 0.9}, more=[silence])[-1].status is Status.OK
    with pytest.raises(ConfigError, match="silence/most"):
        diagnose(history, {"silence/mots": 0.9}, more=[silence])
    with pytest.raises(ConfigError, match="unknown threshold"):
        diagnose(history, {"silence/most": 0.9})


def test_what_is_no_detector_is_named(toy: str) -> None:
    with pytest.raises(ConfigError, match=r"kl_too_large.*is named by an import string"):
        DETECTORS.find("kl_to_large")
    with pytest.raises(ConfigError, match=r"expected a function under @detector.*got function"):
        DETECTORS.find(toy.replace(":silence", ":fine"))


def test_the_command_takes_a_detector_of_a_user(
    toy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    lines = [{"step": step, "toy/empty": 0.9} for step in (1, 2)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(SystemExit) as left:
        main(["doctor", str(run), "--detector", toy])
    assert left.value.code == 1
    assert "FAIL silence: 90% of the answers are empty" in capsys.readouterr().out
