"""`agentrl prefs`: pairs of a run's rollouts, and the report on pairs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agentrl.cli.prefs import app
from agentrl.data import TrajectoryStore
from agentrl.errors import AgentrlError, ConfigError, DataError, RunError
from tests.data.records import group, trajectory


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of three steps of eight groups of four rollouts, two of which are right."""
    path = tmp_path / "my-run"
    path.mkdir()
    (path / "config.yaml").write_text("")
    store = TrajectoryStore(path / "trajectories")
    for step in (1, 2, 3):
        groups = [
            group(
                *(
                    trajectory(
                        task_id=f"task-{task}",
                        group_id=f"{step}-{task}",
                        rollout_id=f"{step}-{task}-{n}",
                        prompt_ids=(1, 2, task),
                        response_ids=(10 * step, 20 + n, 12, 13),
                        reward=float(n % 2),
                    )
                    for n in range(4)
                )
            )
            for task in range(8)
        ]
        store.write(step, "train", groups)
    return path


def call(*words: object, status: int = 0) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == status, result.output
    return result.stdout


def test_pairs_are_made_divided_by_task_and_checked(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "prefs"
    text = call("make", run, "--out", out, "--held-out", 0.3, "--per-group", 2)
    made = json.loads((out / "made.json").read_text())
    assert sum(made["parts"].values()) == 48
    assert made["parts"]["train"] > made["parts"]["heldout"] > 0
    assert f"{made['parts']['train']} pairs of" in text
    assert "pairs: more than 2 of a group (48)" in text
    assert "0 of 24 groups gave none" in text
    findings = {f["name"]: f for f in json.loads(call("check", out, "--json"))}
    assert findings["leaks"]["status"] == "ok"
    assert f"{made['parts']['train']} pairs of" in findings["pairs"]["detail"]
    # The same tasks in both parts, as where pairs are divided and not tasks.
    (out / "heldout.parquet").write_bytes((out / "train.parquet").read_bytes())
    assert "leaks" in call("check", out, status=1)


def test_plain_readers_find_pairs_of_text(run: Path, tmp_path: Path) -> None:
    """Fails if another trainer cannot read what was made."""
    import pyarrow.parquet as pq

    call("make", run, "--out", tmp_path / "prefs")
    row = pq.read_table(tmp_path / "prefs" / "train.parquet").to_pylist()[0]
    assert {"prompt", "chosen", "rejected", "margin"} <= set(row)
    assert row["prompt"] == "add 1"


@pytest.mark.parametrize(
    ("words", "error", "message"),
    [
        (["--by", "rewards"], RunError, "did you mean 'reward'"),
        (["--min-gap", "2"], DataError, "no pair in 24 groups"),
        (["--kind", "eval/x"], RunError, "eval/x"),
    ],
)
def test_what_gives_no_pairs_is_an_error(
    run: Path, tmp_path: Path, words: list[str], error: type[AgentrlError], message: str
) -> None:
    with pytest.raises(error, match=message):
        call("make", run, "--out", tmp_path / "prefs", *words)
    assert not (tmp_path / "prefs").exists()


def test_a_part_without_a_task_is_not_written(run: Path, tmp_path: Path) -> None:
    """Fails if a check of few tasks ends at an empty held-out file."""
    out = tmp_path / "prefs"
    assert "0 pairs of 0 tasks for the part 'heldout'" in call(
        "make", run, "-o", out, "--held-out", 0
    )
    assert not (out / "heldout.parquet").exists()
    call("check", out)


def test_a_folder_that_holds_pairs_is_kept(run: Path, tmp_path: Path) -> None:
    call("make", run, "--out", tmp_path)
    with pytest.raises(RunError, match="holds pairs already"):
        call("make", run, "--out", tmp_path)


def test_columns_of_other_names_are_given_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text('{"q": "p", "win": "good answer", "lose": "bad"}\n')
    words = ["--column", "prompt=q", "--column", "chosen=win", "--column", "rejected=lose"]
    assert "1 pairs of 1 prompts" in call("check", path, *words)
    with pytest.raises(ConfigError, match="expected NAME=COLUMN"):
        call("check", path, "--column", "prompt")
