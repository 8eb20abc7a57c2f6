"""A policy that is fitted is rolled out, and what it solves decides which checkpoint is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.config.fit import FitConfig
from agentrl.disk.checkpoint import list_checkpoints
from agentrl.errors import ConfigError
from agentrl.fit.launch import check_fit
from agentrl.metrics.sinks import read_metrics
from tests.fit.fit_project import write_fit
from tests.runtime.tiny_project import agentrl, write_project


def test_rollouts_are_scored_with_the_weights_of_their_step(tmp_path: Path) -> None:
    """Fails if rollouts see other weights, or a step is scored twice or never."""
    run_file = write_project(tmp_path / "world")
    path = write_fit(
        tmp_path / "p", data__epochs=1, eval__every_steps=2, checkpoint__every_steps=100,
        checkpoint__keep_best={"eval/held/pass@2": 1}, checkpoint__keep_last=1,
        eval__rollouts={"config": str(run_file), "n_samples": 2, "limit": 2},
    )  # fmt: skip
    status, text = agentrl(tmp_path / "out.txt", "fit", path)
    assert status == 0, text
    run = path.parent / "runs" / "fit"
    lines = [line for line in read_metrics(run / "metrics.jsonl") if "eval/held/pass@2" in line]
    assert [line["step"] for line in lines] == [0, 2, 3]
    assert "eval/held/sft/loss" not in lines[0]
    assert all("eval/held/score_low" in line for line in lines)
    kept = {item.state.step: item.state.scores for item in list_checkpoints(run / "checkpoints")}
    assert set(kept) <= {2, 3}
    assert all("eval/held/pass@2" in scores for scores in kept.values())
    assert sorted(folder.name for folder in (run / "trajectories" / "eval").iterdir()) == ["held"]
    assert "eval held after step 2: pass@1" in text


def test_a_reward_model_is_no_policy() -> None:
    data = {"data": {"source": "x"}, "objective": "rm", "eval": {"rollouts": {"config": "r.yaml"}}}
    with pytest.raises(ValueError, match="no policy to roll out"):
        FitConfig.model_validate(data)


def test_rollouts_without_what_rolls_out_are_refused_before_anything_is_read(
    tmp_path: Path,
) -> None:
    data = {"data": {"source": "x"}, "eval": {"rollouts": {"config": "none.yaml"}}}
    with pytest.raises(ConfigError, match="without a scorer"):
        check_fit(FitConfig.model_validate(data), base=tmp_path, scorer=None)
