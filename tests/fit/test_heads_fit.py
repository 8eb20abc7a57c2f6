"""A fit of two heads on one body: resumed, measured, and paying rollouts."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import numpy as np
import pytest

from agentrl.config import load_config
from agentrl.config.plan import plan_run
from agentrl.disk.checkpoint import resolve_model_path
from agentrl.errors import ConfigError
from agentrl.fit.data.preferences.load import load_pairs
from agentrl.fit.rating.answers import encode_answer
from agentrl.fit.rating.reward_model import open_reward_model
from agentrl.fit.refresh.checks import check_refresh
from agentrl.reward.scale import ensemble_reward, load_scales
from agentrl.train.score_model import load_score_model
from tests.fit.fit_project import assert_same_fit, kill_at, weights, write_fit, write_rows
from tests.fit.vowel_model import mixed_pairs
from tests.runtime.reward_checkpoints import values_of
from tests.runtime.tiny_project import agentrl, write_project

HEADS = {"objective__ensemble": 2, "objective__ensemble_mode": "heads"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run directory of a fit that nothing interrupted, with `mixed.jsonl` beside its fit file."""
    folder = tmp_path_factory.mktemp("heads")
    path = write_fit(folder, "rm", **HEADS)
    write_rows(folder / "mixed.jsonl", mixed_pairs(60))
    status, text = agentrl(folder / "out.txt", "fit", path)
    assert status == 0, text
    assert "reward model of 2 heads on" in text
    return folder / "runs" / "fit"


def test_a_fit_of_heads_that_is_killed_goes_on_as_if_nothing_happened(run, tmp_path) -> None:
    """Fails if a resumed fit draws heads or bootstrap weights once more, or if heads are alike."""
    path = write_fit(tmp_path / "p", "rm", **HEADS)
    status = kill_at(tmp_path / "killed.txt", "os.rename", ".making-step-4", 1, "fit", path)
    assert status == -signal.SIGKILL, (tmp_path / "killed.txt").read_text()
    ours = path.parent / "runs" / "fit"
    status, text = agentrl(tmp_path / "last.txt", "fit", ours, "--resume")
    assert status == 0, text
    assert "resumed after step 2" in text
    assert_same_fit(ours, run)
    first, second = weights(run)["score.weight"]
    assert (first - second).abs().max() > 1e-3


def test_a_report_stores_scales_by_which_heads_pay_rollouts(run: Path, tmp_path: Path) -> None:
    """Fails if heads are averaged before they are whitened, if what RL pays is not mean less
    deviation, or if the report does not show the deviation."""
    source = Path(resolve_model_path(str(run)))
    (source / "reward_scale.json").unlink(missing_ok=True)
    folder, raw = run.parent.parent, load_score_model(str(source), device="cpu")
    opened = open_reward_model(str(run), device="cpu")
    rows = [encode_answer(opened.chat, p, p.chosen)
            for p in load_pairs(str(folder / "mixed.jsonl"))]  # fmt: skip
    raw_NK = raw.scores(rows)
    plain = np.stack([raw_NK.mean(axis=1), raw_NK.std(axis=1, ddof=1)], axis=1)
    assert np.allclose(opened.scores(rows), plain, rtol=0, atol=1e-12)

    model = {"path": str(run), "disagreement": 0.5}
    project = write_project(tmp_path, reward={"models": {"rm": model}})
    with pytest.raises(ConfigError, match=r"rm: .*does not exist.*rm report .* --store`$"):
        values_of(load_config(project), tmp_path, [])
    words = (run, "--data", folder / "mixed.jsonl", "--store", "--device", "cpu")
    status, text = agentrl(tmp_path / "out.txt", "rm", "report", *words)
    assert status == 0, text
    scales = load_scales(source, 2)
    report = json.loads((run / "report.json").read_text())
    assert report["disagreement"]["members"] == 2
    assert f"deviation between members: {report['disagreement']['mean']:.3g} on average" in text
    assert len(report["disagreement"]["accuracies"]) == 2
    assert "of 2 heads, one for each: temperature" in text

    mean, between = ensemble_reward(raw_NK.T, 0.0, scales=scales)
    found = open_reward_model(str(run), device="cpu").scores(rows)
    assert np.allclose(found, np.stack([mean, between], axis=1), rtol=0, atol=1e-6)
    values = values_of(load_config(project), tmp_path, rows)
    assert np.allclose([v.value for v in values], mean - 0.5 * between, rtol=0, atol=1e-4)
    assert np.allclose([v.parts["std_between"] for v in values], between, rtol=0, atol=1e-4)
    assert between.max() > 0.01


def test_what_heads_cannot_do_is_refused(run: Path, tmp_path: Path) -> None:
    model = {"path": str(run), "scale": "none"}
    config = load_config(write_project(tmp_path, reward={"models": {"rm": model}}))
    with pytest.raises(ConfigError, match="scale is none, but members of an ensemble"):
        values_of(config, tmp_path, [])
    refresh = {"every_steps": 2, "labeller": "verifier"}
    reward = {"models": {"rm": str(run)}, "refresh": refresh}
    config = load_config(write_project(tmp_path, reward=reward))
    with pytest.raises(ConfigError, match="an ensemble of 2 heads, and only a single model can"):
        check_refresh(plan_run(config, tmp_path).schedule, synchronous=True)
