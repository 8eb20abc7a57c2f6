"""Pairs of rollouts with images: made of a run, kept in files, and learned from by DPO."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from rich.console import Console
from typer.testing import CliRunner

from agentrl.cli.console.fit_view import FitView
from agentrl.cli.prefs import app
from agentrl.config.fit import FitConfig
from agentrl.data import TrajectoryStore
from agentrl.errors import ConfigError, DataError
from agentrl.fit.data.preferences.load import load_pairs
from agentrl.fit.launch import fit
from agentrl.metrics.sinks import read_metrics
from agentrl.models.vision.checks import check_seeing_fit
from agentrl.types import TrajectoryGroup
from tests.models.vision.seeing_rows import seeing_groups
from tests.models.vision.tiny_seeing import checkpoint, picture, reader_for

NAME = "qwen2_vl"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of groups with images; one has the ids of another prompt with other images."""
    path = tmp_path / "run"
    path.mkdir()
    (path / "config.yaml").write_text("")
    (both, *others) = seeing_groups(NAME, path / "images")
    other = picture(9)
    reader_for(NAME, path / "images").expand(other)
    rows = tuple(
        replace(
            row,
            task_id="other",
            group_id="other",
            rollout_id=f"other/{index}",
            images=(replace(row.images[0], digest=other.digest), row.images[1]),
        )
        for index, row in enumerate(both.trajectories)
    )
    twin = TrajectoryGroup(group_id="other", task_id="other", trajectories=rows)
    TrajectoryStore(path / "trajectories").write(1, "train", [both, *others, twin])
    return path


def make(run: Path, out: Path) -> None:
    done = CliRunner().invoke(
        app, ["make", str(run), "--out", str(out), "--held-out", "0"], catch_exceptions=False
    )
    assert done.exit_code == 0, done.output


def test_pairs_keep_their_images_and_the_files(run: Path, tmp_path: Path) -> None:
    """Fails if two prompts of the same ids and other images are taken for one."""
    make(run, tmp_path / "prefs")
    pairs = load_pairs(str(tmp_path / "prefs"))
    stored = {
        row.trajectory.rollout_id: row.trajectory
        for row in TrajectoryStore(run / "trajectories").read("train")
    }
    assert sorted(pair.task_id for pair in pairs) == ["both", "later", "other", *["text"] * 3]
    for pair in pairs:
        names = pair.id.partition("/")[2].split(" > ")
        for name, answer in zip(names, (pair.chosen, pair.rejected), strict=True):
            assert answer.images == stored[name].images
    kept = {path.name for path in (tmp_path / "prefs" / "images").iterdir()}
    assert kept == {span.digest for row in stored.values() for span in row.images}

    # A digest is the name of a file.
    table = pq.read_table(tmp_path / "prefs" / "train.parquet").to_pylist()
    (shown, *_) = (row for row in table if row["chosen_images"])
    shown["chosen_images"][0]["digest"] = "../made.json"
    (tmp_path / "bad.jsonl").write_text(json.dumps(shown) + "\n")
    with pytest.raises(DataError, match=r"chosen_images is .*expected a list of digest"):
        load_pairs(str(tmp_path / "bad.jsonl"))


def settings(folder: Path, source: str, **objective: object) -> FitConfig:
    return FitConfig.model_validate(
        {
            "run": {"name": "fit", "dir": str(folder / "runs")},
            "model": {"path": str(folder / "model"), "dtype": "float32", "device": "cpu"},
            "data": {"source": source, "examples_per_step": 3, "epochs": 3},
            "objective": objective,
            "train": {"learning_rate": 1e-3, "micro_batch_tokens": 1024},
        }
    )


async def test_dpo_learns_from_pairs_with_images(run: Path, tmp_path: Path) -> None:
    """Policy and reference begin equal, so the first loss is log 2 where both see the same."""
    checkpoint(NAME, tmp_path / "model")
    make(run, tmp_path / "prefs")
    config = settings(tmp_path, str(tmp_path / "prefs"), kind="dpo")
    result = await fit(config, base=tmp_path, progress=FitView(Console()))
    lines = read_metrics(result.path / "metrics.jsonl")
    losses = [line["dpo/loss"] for line in lines if "dpo/loss" in line]
    assert losses[0] == pytest.approx(0.6931, abs=1e-3)
    assert losses[-1] < losses[0]
    assert (result.path / "checkpoints" / "step-6" / "preprocessor_config.json").is_file()


def test_objectives_without_images_are_refused_with_their_reason(tmp_path: Path) -> None:
    check_seeing_fit(settings(tmp_path, "data", kind="dpo"))
    with pytest.raises(ConfigError, match=r"objective: sft or dpo \(got rm\)"):
        check_seeing_fit(settings(tmp_path, "data", kind="rm"))
    with pytest.raises(ConfigError, match=r"objective\.loss: one of pairs \(got kto\)"):
        check_seeing_fit(settings(tmp_path, "data", kind="dpo", loss="kto"))
