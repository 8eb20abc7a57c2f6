"""`agentrl prefs`: pairs of a run's rollouts, and the report on pairs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agentrl.cli.prefs import app
from agentrl.data import TrajectoryStore
from agentrl.errors import AgentrlError, ConfigError, DataError, RunError
from agentrl.fit.data.preferences.load import load_pairs
from tests.chat.byte_level import byte_level
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
    """Fails if characters that are spread over tokens are not put together again."""
    import pyarrow.parquet as pq

    text = call("make", run, "--out", tmp_path / "none")
    assert "its pairs have no texts" in text
    row = pq.read_table(tmp_path / "none" / "train.parquet").to_pylist()[0]
    assert (row["prompt"], row["chosen"]) == ("add 1", None)

    tokenizer = byte_level()
    (run / "checkpoints" / "step-3").mkdir(parents=True)
    tokenizer.save(str(run / "checkpoints" / "step-3" / "tokenizer.json"))
    ids = tuple(tokenizer.encode("h\u00e9llo").ids)
    rows = [
        trajectory(
            task_id="t", group_id="4-t", rollout_id=f"4-t-{n}", prompt_ids=(1,), turns=(),
            response_ids=(*ids, n), response_mask=(1,) * (len(ids) + 1),
            rollout_log_probs=(-1.0,) * (len(ids) + 1), policy_versions=(0,) * (len(ids) + 1),
            reward=float(n),
        )
        for n in (0, 1)
    ]  # fmt: skip
    TrajectoryStore(run / "trajectories").write(4, "train", [group(*rows)])
    call("make", run, "--out", tmp_path / "prefs", "--held-out", 0)
    row = pq.read_table(tmp_path / "prefs" / "train.parquet").to_pylist()[-1]
    assert row["chosen"].startswith("h\u00e9llo")


def test_a_run_given_twice_gives_no_pair_twice(run: Path, tmp_path: Path) -> None:
    call("make", run, run, "--out", tmp_path / "prefs")
    made = json.loads((tmp_path / "prefs" / "made.json").read_text())
    assert sum(made["parts"].values()) == 96
    assert made["pairs_left_out"] == {"the same tokens as another pair": 96}


def test_a_file_has_no_splits(run: Path, tmp_path: Path) -> None:
    """Fails if a file is compared with itself, and all of it is called a leak."""
    call("make", run, "--out", tmp_path / "prefs")
    path = tmp_path / "prefs" / "train.parquet"
    with pytest.raises(ConfigError, match="has no splits"):
        call("check", path, "--against-split", "test")
    with pytest.raises(DataError, match="does not exist"):
        call("check", path, "--against", tmp_path / "tset.parquet")


def test_broken_rows_do_not_end_the_report(tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    good = {"prompt": "p", "chosen": "good", "rejected": "bad"}
    path.write_text("\n".join(map(json.dumps, [good, {**good, "margin": "x"}])))
    text = call("check", path, status=1)
    assert "1 of 2 rows cannot be read" in text
    assert "1 pairs of 1 prompts" in text


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
    with pytest.raises(RunError, match="holds data already"):
        call("make", run, "--out", tmp_path)


def test_columns_of_other_names_are_given_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text('{"q": "p", "win": "good answer", "lose": "bad"}\n')
    words = ["--column", "prompt=q", "--column", "chosen=win", "--column", "rejected=lose"]
    assert "1 pairs of 1 prompts" in call("check", path, *words)
    with pytest.raises(ConfigError, match="expected NAME=COLUMN"):
        call("check", path, "--column", "prompt")


def biased_lines(path: Path) -> Path:
    """Longer ones are chosen three times of four."""
    rows = [
        {"prompt": f"p{n}", "chosen": "a" * 30, "rejected": "b" * 10}
        if n % 4
        else {"prompt": f"p{n}", "chosen": "a" * 10, "rejected": "b" * 30}
        for n in range(80)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def test_balanced_pairs_pass_the_check_that_the_others_fail(tmp_path: Path) -> None:
    source, out = biased_lines(tmp_path / "pairs.jsonl"), tmp_path / "balanced.jsonl"
    before = source.read_bytes()

    def length(path: Path) -> dict[str, str]:
        findings = json.loads(call("check", path, "--json"))
        return next(finding for finding in findings if finding["name"] == "length")

    assert length(source)["status"] == "warn"
    text = call("balance", source, "--out", out)
    assert f"before: {length(source)['detail']}" in text
    assert f"after:  {length(out)['detail']}" in text
    assert length(out)["status"] == "ok"
    assert "40 of 80 pairs in" in text
    assert "left out: 40 with the longer one chosen and 0 with the shorter" in text
    assert source.read_bytes() == before
    figures = json.loads(call("balance", source, "--out", tmp_path / "again.jsonl", "--json"))
    assert (figures["each"], figures["longer_left_out"], figures["kept"]) == (20, 40, 40)
    assert (tmp_path / "again.jsonl").read_bytes() == out.read_bytes()


def test_sampled_pairs_are_balanced_as_they_were_sampled(run: Path, tmp_path: Path) -> None:
    store = TrajectoryStore(run / "trajectories")
    for step in (4, 5):  # in the second the shorter one is right
        rows = [
            trajectory(
                task_id="t", group_id=f"{step}-t", rollout_id=f"{step}-t-{n}", prompt_ids=(1,),
                turns=(), response_ids=(5, 6, 7, 8)[: 2 + 2 * n], response_mask=(1,) * (2 + 2 * n),
                rollout_log_probs=(-1.0,) * (2 + 2 * n), policy_versions=(0,) * (2 + 2 * n),
                reward=float(n if step == 4 else 1 - n),
            )
            for n in (0, 1)
        ]  # fmt: skip
        store.write(step, "train", [group(*rows)])
    call("make", run, "--out", tmp_path / "prefs", "--held-out", 0)
    out = tmp_path / "other" / "balanced.parquet"
    text = call("balance", tmp_path / "prefs", "--out", out)
    assert "1 with the longer one chosen and 1 with the shorter" in text
    made, kept = (load_pairs(str(path)) for path in (tmp_path / "prefs" / "train.parquet", out))
    assert [replace(p, source="") for p in kept] == [replace(p, source="") for p in made]
    assert len(kept) > 2


def test_balance_never_writes_in_place(tmp_path: Path) -> None:
    source = biased_lines(tmp_path / "pairs.jsonl")
    call("balance", source, status=2)
    with pytest.raises(RunError, match="is there already; name another file"):
        call("balance", source, "--out", source)
    with pytest.raises(DataError, match=r"messages are written as \.jsonl"):
        call("balance", source, "--out", tmp_path / "balanced.parquet")
    source.write_text(source.read_text() + "\n{}")
    with pytest.raises(DataError, match="line 81"):
        call("balance", source, "--out", tmp_path / "balanced.jsonl")
    assert [path.name for path in tmp_path.iterdir()] == ["pairs.jsonl"]
