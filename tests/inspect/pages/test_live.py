"""What the page is told of a run while it runs: only while it does, and whatever the file holds."""

from __future__ import annotations

import fcntl
import json
from pathlib import Path

import pytest

from agentrl.inspect.pages.live import live_answer, pulse_answer
from agentrl.inspect.read.reader import RunReader
from agentrl.inspect.read.runs import FoundRun
from tests.inspect.synthetic import write_live, write_metrics


@pytest.fixture
def reader(tmp_path: Path) -> RunReader:
    write_metrics(tmp_path, {"step": 1, "reward": 0.5})
    return RunReader(FoundRun(id="run", path=tmp_path))


def test_a_dead_run_does_not_look_alive(reader: RunReader) -> None:
    """Fails if the file that a killed run left is shown."""
    write_live(reader.path)
    assert live_answer(reader) is not None
    assert pulse_answer(reader) | {"revision": ""} == {
        "revision": "", "state": "stopped", "live": None,
    }  # fmt: skip
    with reader.paths.lock_file.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        now = pulse_answer(reader)
    assert now["state"] == "running"
    assert now["live"]["rollouts"]["count"] == 3
    assert pulse_answer(reader)["live"] is None


def test_the_age_is_counted_from_when_it_was_written(reader: RunReader) -> None:
    write_live(reader.path, written=1000.0)
    early, late = (live_answer(reader, now=lambda at=at: at) for at in (990.0, 1042.5))
    assert early is not None
    assert late is not None
    assert (early["age_s"], late["age_s"]) == (0.0, 42.5)


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[1, 2]", "null", '{"written": "soon"}', '{"written": true}',
        '{"written": 1, "phase": 3, "engines": "x", "rollouts": [], "finished_groups": null}',
        '{"written": 1, "engines": [7, {"name": ["x"], "slots": "many"}], '
        '"rollouts": {"waits": {"model": 4}, "oldest": [null, {"turn": "\\ud800"}]}}',
    ],
)  # fmt: skip
def test_a_file_of_anything_is_no_error(reader: RunReader, text: str) -> None:
    reader.paths.live_file.write_text(text)
    json.dumps(live_answer(reader), allow_nan=False)


def test_a_long_file_is_cut(reader: RunReader) -> None:
    many = [{"task_id": "t" * 5000, "age_s": 1.0}] * 5000
    write_live(reader.path, rollouts={"count": 5000, "waits": {}, "oldest": many[:100]})
    answer = live_answer(reader)
    assert answer is not None
    assert {len(one["task_id"]) for one in answer["rollouts"]["oldest"]} == {300}
