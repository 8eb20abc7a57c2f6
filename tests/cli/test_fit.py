"""`agentrl fit`: what it prints, how it ends, and which mistakes it explains."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.fit.fit_project import trained_steps, write_fit
from tests.runtime.tiny_project import agentrl, write_project


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory of a finished fit of two steps."""
    folder = tmp_path_factory.mktemp("fit")
    status, text = agentrl(folder / "out.txt", "fit", write_fit(folder), "train.steps=2")
    assert status == 0, text
    return folder / "runs" / "fit"


def call(tmp_path: Path, *words: object, status: int = 0) -> str:
    found, text = agentrl(tmp_path / "out.txt", *words)
    assert found == status, text
    assert "Traceback" not in text
    return text


def test_a_dry_run_reads_all_data_and_writes_nothing(tmp_path: Path) -> None:
    path = write_fit(tmp_path, "dpo")
    text = call(tmp_path, "fit", path, "--dry-run")
    assert "data: 7 examples with 86 trained tokens\n" in text
    assert "eval held: 3 examples with 37 trained tokens\n" in text
    assert not (tmp_path / "runs").exists()
    text = call(tmp_path, "fit", path, "--dry-run", "data.source=none.jsonl", status=2)
    assert "none.jsonl" in text
    settings = tmp_path / "model" / "config.json"
    settings.write_text(
        settings.read_text().replace('"num_hidden_layers": 2', '"num_hidden_layers": 3')
    )
    text = call(tmp_path, "fit", path, "--dry-run", status=2)
    assert re.search(r"error: model\.path .* 9 missing: model\.layers\.2", text)


def test_a_mistake_leaves_nothing_behind(tmp_path: Path) -> None:
    path = write_fit(tmp_path, "dpo")
    text = call(tmp_path, "fit", path, "objective.loss=sigmod", status=2)
    assert text.startswith("error: ")
    assert "did you mean 'sigmoid'" in text
    assert not (tmp_path / "runs" / "fit").exists()


def test_a_loss_that_fails_in_the_first_step_can_be_mended(tmp_path: Path) -> None:
    """Fails if the reference is computed again, or the next try is refused as another run."""
    path = write_fit(tmp_path, "dpo", objective__loss="own.py:loss")
    (tmp_path / "own.py").write_text("def loss(inputs):\n    return inputs.h\n")
    text = call(tmp_path, "fit", path, "eval.datasets={}", status=2)
    assert f"pair loss '{tmp_path}/own.py:loss' raised AttributeError" in text
    made = tmp_path / "runs" / "fit" / "reference.parquet"
    before = made.stat().st_mtime_ns
    text = call(tmp_path, "fit", path, "eval.datasets={}", "objective.loss=ipo", "train.steps=1")
    assert "step 1/1" in text
    assert made.stat().st_mtime_ns == before


def test_a_directory_needs_resume(fitted: Path, tmp_path: Path) -> None:
    assert "add --resume" in call(tmp_path, "fit", fitted, status=2)
    text = call(tmp_path, "fit", fitted, "--resume", "train.steps=3")
    assert "resumed after step 2" in text
    assert [step for step, _, _ in trained_steps(fitted)] == [1, 2, 3]
    text = call(tmp_path, "fit", fitted, "--resume", "train.learning_rate=0.5", status=2)
    assert "train.learning_rate: 0.001 in the run, 0.5 now" in text


def test_files_of_the_other_command(fitted: Path, tmp_path: Path) -> None:
    run, fit = write_project(tmp_path), write_fit(tmp_path)
    assert "is a run file, of `agentrl train`" in call(tmp_path, "fit", run, status=2)
    assert "is a file of `agentrl fit`" in call(tmp_path, "train", fit, status=2)
    text = call(tmp_path, "train", fitted, "--resume", status=2)
    assert "is a file of `agentrl fit`" in text
