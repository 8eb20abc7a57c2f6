"""A run whose environment changes the current folder."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml

from agentrl.config import load_config
from agentrl.disk.checkpoint import list_checkpoints
from agentrl.disk.run_directory import RunDir
from agentrl.metrics.sinks import read_metrics
from agentrl.runtime.launch import train
from agentrl.runtime.progress import Progress
from tests.runtime.tiny_project import ENV, agentrl, write_project


def steps_of(run: Path) -> list[int]:
    """Steps of the metrics; step 0 is the evaluation before the first."""
    return [
        line["step"]
        for line in read_metrics(run / "metrics.jsonl")
        if "timing_s/checkpoint" not in line  # comes when the files are there
    ]


async def test_nothing_is_lost_where_an_environment_leaves_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if a path is made absolute when it is used, and not when the file is read."""
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    here.mkdir()
    elsewhere.mkdir()
    file = write_project(
        tmp_path / "own", train__steps=2, model__path="model", checkpoint__save="all"
    )
    document = yaml.safe_load(file.read_text())
    del document["run"]["dir"]
    file.write_text(yaml.safe_dump(document))
    moves = f"import os\n        os.chdir({str(elsewhere)!r})\n        if self.fail =="
    (file.parent / "vowels.py").write_text(ENV.replace("if self.fail ==", moves, 1))

    monkeypatch.chdir(here)
    await train(load_config(file), base=file.parent, progress=Progress())
    assert Path.cwd() == elsewhere
    assert list(elsewhere.iterdir()) == []
    run = here / "runs" / "tiny"
    assert steps_of(run) == [0, 1, 2]
    assert [found.state.step for found in list_checkpoints(run / "checkpoints")] == [2]
    assert len(list((run / "trajectories" / "train").glob("*.parquet"))) == 2

    # It goes on from any folder, and its stored config names the same places.
    directory, config, base = RunDir.resume(run)
    assert config.model.path == str(file.parent / "model")
    more = config.model_copy(update={"train": config.train.model_copy(update={"steps": 3})})
    await train(more, base=base, run_dir=directory, progress=Progress())
    assert steps_of(run)[-1] == 3


def test_a_run_is_renamed_resumed_started_again_and_rolled_out(tmp_path: Path) -> None:
    """Fails if a renamed folder does not go on, if the schedule of its rate moves without a word,
    if the same run started anew trains other weights, or if a rollout folder has no log."""
    changes = {"train__schedule": "cosine", "train__learning_rate": 1e-2, "run__seed": 5}
    changes["checkpoint__save"] = "all"  # a finished run goes on
    path = write_project(tmp_path, train__steps=2, eval={"datasets": {}}, **changes)
    status, text = agentrl(tmp_path / "first.log", "train", path)
    assert status == 0, text
    run = tmp_path / "runs" / "other"
    (tmp_path / "runs" / "tiny").rename(run)
    status, text = agentrl(tmp_path / "more.log", "train", run, "--resume", "train.steps=3")
    assert status == 0, text
    assert steps_of(run)[-1] == 3
    assert "the learning rate of step 3 is" in (run / "run.log").read_text()
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["other"]

    (tmp_path / "train.jsonl").write_text((tmp_path / "train.jsonl").read_text() + "\n")
    status, text = agentrl(tmp_path / "again.log", "train", "--again", run, "train.steps=2")
    assert status == 0, text
    assert "train.jsonl has changed" in text.replace("\n", "")
    again = tmp_path / "runs" / "other-2"
    ours, theirs = (
        [row for file in sorted((found / "trajectories" / "train").glob("*.parquet"))[:2]
         for row in pq.read_table(file, columns=["response_ids"]).to_pylist()]
        for found in (again, run)
    )  # fmt: skip
    assert ours == theirs
    assert len(ours) > 0

    out = tmp_path / "out"
    status, text = agentrl(tmp_path / "rollout.log", "rollout", run, "--limit", "1", "--out", out)
    assert status == 0, text
    assert (out / "run.log").is_file()
