"""Whole runs whose metrics go elsewhere too."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runtime.tiny_project import agentrl, write_project


def test_a_resumed_run_goes_on_with_its_run_at_the_tracker(tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    textfile = tmp_path / "metrics.prom"
    sinks = {"mlflow": {"names": "verl"}, "prometheus": {"textfile": str(textfile)}}
    for steps in (2, 3):
        project = write_project(
            tmp_path, log__sinks=sinks, train__steps=steps, checkpoint__every_steps=2
        )
        words = ["--resume"] if steps == 3 else []
        status, text = agentrl(tmp_path / "out", "train", project, *words)
        assert status == 0, text
    run = tmp_path / "runs" / "tiny"
    (stored,) = (run / "sinks" / "mlflow").glob("*/*/metrics")
    assert stored.parent.name == (run / "sinks" / "mlflow.id").read_text().strip()
    steps = [line.split()[2] for line in (stored / "actor/entropy").read_text().splitlines()]
    assert steps == ["1", "2", "3"]
    # Two rollouts for each task of an evaluation, before and after training.
    scores = (stored / "val-core/held/reward/mean_2").read_text().splitlines()
    assert [line.split()[2] for line in scores][:1] == ["0"]
    assert (stored.parent / "params" / "train.learning_rate").read_text() == "0.001"
    assert 'agentrl_step{metric="step",run="tiny"} 3.0' in textfile.read_text()


def test_a_sink_that_is_not_there_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    project = write_project(tmp_path, log__sinks={"wand": {}})
    status, text = agentrl(tmp_path / "out", "train", project)
    assert status == 2
    assert "log.sinks: got 'wand'; did you mean 'wandb'?" in text
    assert not (tmp_path / "runs" / "tiny" / "config.yaml").exists()
