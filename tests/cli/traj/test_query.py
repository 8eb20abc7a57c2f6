from __future__ import annotations

import csv
import io
import json
import re
import shlex
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from agentrl.cli.traj.command import app
from agentrl.data import TrajectoryStore
from agentrl.errors import RunError
from agentrl.inspect.pages.find_line import parse_question
from agentrl.types import Termination, Turn
from tests.data.records import group, trajectory
from tests.inspect.hacked_runs import write_hacked_run
from tests.inspect.pages.test_compare import once_each

HOSTILE = "\x1b]0;owned\x07[red]\u202e,\"'\n\ud800"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Three steps of one rollout each; the last one is hostile."""
    store = TrajectoryStore(tmp_path / "my-run" / "trajectories")
    for step in (1, 2):
        row = trajectory(task_id=f"task-{step}", rollout_id=f"r{step}", reward=step - 1.0)
        store.write(step, "train", [group(row)])
    said = Turn(role="assistant", start=0, end=4, text=f"needle {HOSTILE} end")
    hostile = trajectory(
        task_id=HOSTILE, rollout_id="bad", turns=(said,), reward=float("nan"),
        termination=Termination.MAX_TURNS,
    )  # fmt: skip
    store.write(3, "train", [group(hostile)])
    (tmp_path / "my-run" / "metrics.jsonl").write_text('{"step": 1, "reward": 0.5}\n')
    return tmp_path / "my-run"


def call(*words: object) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def fails(*words: object) -> str:
    with pytest.raises(RunError) as caught:
        call(*words)
    return str(caught.value)


def test_an_answer_is_printed_as_a_table(run: Path) -> None:
    text = call("query", run, "select step, reward from trajectories where step < 3 order by 1")
    lines = [line.replace("\u2502", " ").split() for line in text.splitlines()]
    assert ["1", "0"] in lines
    assert ["2", "1"] in lines
    assert text.splitlines()[-1].startswith("2 rows in 0.")


def test_a_table_is_cut_and_says_so(run: Path) -> None:
    text = call("query", run, "select repeat('x', 500) a from range(5)", "--limit", 2)
    assert "2 rows" in text
    assert "there are more, see --limit" in text
    assert "[... 300 more]" in text.replace("\n", "")


def test_an_answer_as_json_and_as_csv(run: Path, tmp_path: Path) -> None:
    sql = "select task_id, reward, reward as reward, [1] as list from trajectories order by step"
    rows = json.loads(call("query", run, sql, "--format", "json"))
    assert rows[1] == {"task_id": "task-2", "reward": 1.0, "reward_2": 1.0, "list": [1]}
    assert rows[2]["task_id"] == HOSTILE
    assert rows[2]["reward"] is None
    assert json.loads(call("query", run, "select 1 where false", "--format", "json")) == []
    output = tmp_path / "deep" / "x.csv"
    assert call("query", run, sql, "-o", output) == f"3 rows in {output}\n"
    found = list(csv.reader(io.StringIO(output.read_bytes().decode())))
    assert found[0] == ["task_id", "reward", "reward", "list"]
    assert found[2] == ["task-2", "1.0", "1.0", "[1]"]
    assert len(found) == 4


def test_an_answer_as_parquet_holds_every_row(run: Path, tmp_path: Path) -> None:
    call("query", run, "select * from range(5000)", "-o", tmp_path / "x.parquet")
    assert pq.read_table(tmp_path / "x.parquet").num_rows == 5000
    assert "say which file" in fails("query", run, "select 1", "--format", "parquet")


def test_hostile_text_in_an_answer_is_not_obeyed(run: Path) -> None:
    for words in (
        ["query", run, "select task_id from trajectories"],
        ["find", run, "needle"],
    ):
        text = call(*words)
        assert not set(text) & set("\x1b\x07\u202e\ud800")
    assert "[red]" in text


def test_rollouts_are_found_by_text_and_filters(run: Path) -> None:
    def ids(*words: str) -> list[str]:
        lines = call("find", run, *words, "--json").splitlines()
        return [json.loads(line)["rollout_id"] for line in lines]

    assert ids("NEEDLE") == ["bad"]
    assert ids("add(1)") == ["r1", "r2"]
    assert ids("add(1)", "step>=2") == ["r2"]
    assert ids("task:task-1") == ["r1"]
    assert ids("reward<0.5") == ["r1"]
    assert ids("end:max_turns") == ["bad"]
    assert ids("is:truncated") == ["bad"]
    assert ids("nothing says this") == []
    assert len(ids("is:whole", "--limit", "1")) == 1
    assert "the first 1" in call("find", run, "add(1)", "--limit", "1")


def test_a_line_of_words_and_filters_is_a_question() -> None:
    asked = parse_question("two  words task:a step=3 reward>0.5 is:flat", limit=7)
    assert (asked.text, asked.task, asked.limit) == ("two words", "a", 7)
    assert (asked.step_min, asked.step_max) == (3, 3)
    assert 0.5 < (asked.reward_min or 0.0) < 0.50001
    assert asked.zero_advantage is True
    assert parse_question("two  words ").text == "two  words"
    assert parse_question("http://x").text == "http://x"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("is:odd", "valid: is:truncated"),
        ("reward>=x", "expected a number"),
        ("lag<=1", "lag can only be asked with >="),
    ],
)
def test_a_filter_that_is_none_is_explained(line: str, message: str) -> None:
    with pytest.raises(RunError, match=message):
        parse_question(line)


def test_what_is_no_run_is_explained(run: Path, tmp_path: Path) -> None:
    assert "did you mean 'my-run'" in fails("query", tmp_path / "my-rum", "select 1")
    assert "is not a run directory" in fails("query", tmp_path, "select 1")
    assert "valid: csv, json, parquet" in fails("query", run, "select 1", "-o", "x.txt")
    for number in range(40):
        (tmp_path / f"other-{number}").mkdir()
    assert "other-" not in fails("find", tmp_path / "zzz", "x")


def test_tasks_and_two_sets_of_rollouts_are_compared(run: Path, tmp_path: Path) -> None:
    store = TrajectoryStore(run / "trajectories")
    for step, scores in ((0, (0.0, 1.0, 0.5)), (3, (1.0, 0.0, 0.5))):
        rows = [
            trajectory(task_id=task, group_id=task, rollout_id=f"{step}-{task}", score=score)
            for task, score in zip(("won", "lost", HOSTILE), scores, strict=True)
        ]
        store.write(step, "eval/held", [group(row) for row in rows])
    text = call("tasks", run, "--kind", "eval/held", "--sort", "loss")
    lines = [line.replace("\u2502", " ").split() for line in text.splitlines()]
    assert ["lost", "1", "0", "-1", "1", "/", "1"] in lines
    assert ["won", "0", "1", "+1", "1", "/", "1"] in lines
    assert text.splitlines()[-1].startswith(
        "eval/held step 0 against step 3: 0.500 -> 0.500, 0 [-2.48, +2.48] by task; 1 gained"
    )
    assert "\x1b" not in text
    one = json.loads(call("tasks", run, "--find", "WON", "--json"))
    assert (one["task_id"], one["change"]) == ("won", 1.0)
    assert "'x'; valid: after, before" in fails("tasks", run, "--sort", "x")
    assert "expected a step or a range" in fails("tasks", run, "--after", "-1")
    told = call("compare", run)
    assert "failed -> solved: 1 tasks: won" in told
    assert "solved -> failed: 1 tasks: lost" in told
    both = json.loads(call("compare", run, "--steps", "0", "--other-steps", "0", "--json"))
    assert (both["solved_count"], both["common_tasks"]) == (0, 3)
    once_each(tmp_path / "once")
    apart = call("compare", tmp_path / "once", "--steps", "1", "--other-steps", "2")
    assert "A and B share no task" in apart
    assert "score, family sum" in apart
    assert "reward = tests =" in apart
    assert "2 of 4 (50 % -> 50 %)" in apart


def test_a_hacked_reward_is_named_with_its_clusters_and_their_members(tmp_path: Path) -> None:
    run = write_hacked_run(tmp_path / "hacked")
    text = call("hacking", run, "--step", "40")
    assert text.startswith("Probably: The reward rises and the environment's own score falls")
    assert "Paid is a reward of 0.6 or more: the median reward of right rollouts" in text
    assert "part confidence" in text
    assert "0.900 " + 30 * "#" + " 16  score 0" in text
    count = re.search(
        r"(\d+) rollouts, reward 0\.900, score 0; same text in 8 tasks: paid and wrong in 8", text
    )
    assert count is not None
    assert "\x1b" not in text
    command = next(line.strip() for line in text.splitlines() if "agentrl traj find" in line)
    _, _, *words = shlex.split(command)
    assert f"{count[1]} rollouts" in call(*words)
    told = json.loads(call("hacking", run, "--steps", "40", "--json"))
    assert (told["level"], told["clusters"]["clusters"][0]["rollouts"]) == ("fail", 16)
    assert "expected a step or a range" in fails("hacking", run, "--steps", "x")
    assert "valid: train" in fails("hacking", run, "--kind", "eval/none")
