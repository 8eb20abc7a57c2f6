"""Ensembles: members that are fits of their own, read as one model; and what an export keeps."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

from agentrl.batch.examples import ScoredTokens
from agentrl.config import load_config
from agentrl.config.load import FIT_FILE
from agentrl.disk.checkpoint import resolve_model_path
from agentrl.disk.other_models import member_runs
from agentrl.errors import ConfigError
from agentrl.fit.data.preferences.load import load_pairs
from agentrl.fit.ensemble import member_config
from agentrl.fit.rating.answers import encode_answer
from agentrl.fit.rating.reward_model import open_reward_model
from agentrl.reward.scale import RewardScale
from agentrl.types import RewardValue
from tests.fit.fit_project import assert_same_fit, kill_at, pairs, weights, write_fit
from tests.runtime.reward_checkpoints import values_of
from tests.runtime.tiny_project import agentrl, write_project

TWO = {"objective__ensemble": 2, "data__epochs": 1, "chat__system_prompt": "be brief"}


@pytest.fixture(scope="module")
def ensemble(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run directory of an ensemble of two that nothing interrupted."""
    folder = tmp_path_factory.mktemp("ensemble")
    path = write_fit(folder / "p", "rm", **TWO)
    status, text = agentrl(folder / "out.txt", "fit", path)
    assert status == 0, text
    run = path.parent / "runs" / "fit"
    assert all(f"checkpoint: {run}/members/{k}/checkpoints/step-3\n" in text for k in (0, 1))
    return run


def test_a_member_is_the_fit_of_its_own_seed(ensemble: Path, tmp_path: Path) -> None:
    """Fails if members share an order or a head, or differ from what their seed alone makes."""
    first, second = member_runs(ensemble)
    heads = [weights(run)["score.weight"] for run in (first, second)]
    assert not torch.equal(*heads)
    path = write_fit(
        tmp_path / "p", "rm", run__seed=4, objective__head_std=0.01, data__epochs=1,
        chat__system_prompt="be brief",
    )  # fmt: skip
    status, text = agentrl(tmp_path / "out.txt", "fit", path)
    assert status == 0, text
    assert_same_fit(path.parent / "runs" / "fit", second)


def test_an_ensemble_that_is_killed_goes_on_with_its_second_member(
    ensemble: Path, tmp_path: Path
) -> None:
    """Fails if a member that was done is trained again."""
    path = write_fit(tmp_path / "p", "rm", **TWO)
    out = tmp_path / "killed.txt"
    status = kill_at(out, "os.rename", "members/1/checkpoints/.making-step-3", 1, "fit", path)
    assert status == -signal.SIGKILL, out.read_text()
    run = path.parent / "runs" / "fit"
    done = run / "members" / "0" / "checkpoints" / "step-3" / "model.safetensors"
    made = done.stat().st_mtime_ns
    status, text = agentrl(tmp_path / "last.txt", "fit", run, "--resume")
    assert status == 0, text
    assert done.stat().st_mtime_ns == made
    for ours, theirs in zip(member_runs(run), member_runs(ensemble), strict=True):
        assert_same_fit(ours, theirs)


def test_an_ensemble_that_cannot_begin_leaves_nothing(tmp_path: Path) -> None:
    path = write_fit(tmp_path / "p", "rm", **TWO, data__source="none.jsonl")
    status, text = agentrl(tmp_path / "out.txt", "fit", path)
    assert status == 2
    assert "none.jsonl" in text
    assert not (path.parent / "runs" / "fit").exists()


def test_a_score_is_the_mean_of_whitened_members(ensemble: Path, tmp_path: Path) -> None:
    """Fails if members are not whitened, or with each other's scale."""
    for run in member_runs(ensemble):
        scale = Path(resolve_model_path(str(run))) / "reward_scale.json"
        scale.unlink(missing_ok=True)
    with pytest.raises(
        ConfigError, match=r"members/0 has no reward_scale\.json.*agentrl rm report"
    ):
        open_reward_model(str(ensemble), device="cpu")
    scales = [
        RewardScale(temperature=2.0, mean=0.1, std=0.5),
        RewardScale(temperature=1.0, mean=-0.2, std=0.01),
    ]
    for run, scale in zip(member_runs(ensemble), scales, strict=True):
        scale.save(Path(resolve_model_path(str(run))))
    held, lines = ensemble.parents[1] / "held.jsonl", []
    for number, model in enumerate((ensemble, *member_runs(ensemble))):
        out = tmp_path / f"{number}.jsonl"
        words = (held, "--out", out, "--device", "cpu")
        status, text = agentrl(tmp_path / "out.txt", "rm", "score", model, *words)
        assert status == 0, text
        lines.append([json.loads(line) for line in out.read_text().splitlines()])
    every, *members = lines
    for line, *own in zip(every, *members, strict=True):
        for answer in ("chosen", "rejected"):
            white = [each[f"{answer}_reward"] for each in own]
            assert line[answer] == pytest.approx(np.mean(white), rel=1e-4, abs=1e-6)
            deviation = np.std(white, ddof=1)
            assert line[f"{answer}_deviation"] == pytest.approx(deviation, rel=1e-4, abs=1e-6)
    assert len(every) == len(pairs(3))


def test_the_run_of_an_ensemble_stands_for_its_members(ensemble: Path, tmp_path: Path) -> None:
    """Fails if a run pays by its first member alone, or without their deviation."""
    shutil.copytree(ensemble, tmp_path / "many")
    members = ["many/members/0", "many/members/1"]
    for run, std in zip(member_runs(tmp_path / "many"), (0.5, 0.01), strict=True):
        RewardScale(std=std).save(Path(resolve_model_path(str(run))))
    rows = [ScoredTokens(prompt_ids=(5, 6), ids=(7, 8, number)) for number in range(20, 24)]

    def paid(path: str | list[str]) -> list[RewardValue]:
        model = {"path": path, "disagreement": 0.5}
        config = load_config(write_project(tmp_path, reward={"models": {"rm": model}}))
        return values_of(config, tmp_path, rows)

    found = paid("many")
    assert found == paid(members)
    assert all(value.parts["std_between"] > 0 for value in found)
    with pytest.raises(ConfigError, match=r"rm: path names the model .*members/0.* twice"):
        paid(["many", members[0]])


def test_members_have_seeds_and_folders_of_their_own(tmp_path: Path) -> None:
    config = FIT_FILE.load(write_fit(tmp_path / "p", "rm", objective__ensemble=3), ())
    made = [member_config(config, number, tmp_path / "run") for number in range(3)]
    assert [one.run.seed for one in made] == [3, 4, 5]
    assert [one.run.name for one in made] == ["0", "1", "2"]
    objectives = [one.objective for one in made if one.objective.kind == "rm"]
    assert [(o.ensemble, o.head_std) for o in objectives] == [(1, 0.01)] * 3


def test_an_exported_reward_model_reads_conversations_as_before(
    ensemble: Path, tmp_path: Path
) -> None:
    """Fails if an export forgets the section chat: prompts would lack what the fit put there."""
    run, out = member_runs(ensemble)[0], tmp_path / "exported"
    status, text = agentrl(tmp_path / "out.txt", "export", run, out)
    assert status == 0, text
    (pair, *_) = load_pairs(str(ensemble.parents[1] / "held.jsonl"))

    def read(path: Path) -> tuple[int, ...]:
        chat = open_reward_model(str(path), device="cpu").chat
        return encode_answer(chat, pair, pair.chosen).prompt_ids

    assert read(out) == read(run)
    chat = (out / "chat_section.json").read_text()
    (out / "chat_section.json").unlink()
    assert read(out) != read(run)
    (out / "chat_section.json").write_text(chat + "x")
    with pytest.raises(ConfigError, match="is no section chat"):
        open_reward_model(str(out), device="cpu")
