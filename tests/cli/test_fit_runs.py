"""Every command on the run directory of a fit: it works, or says in one sentence why it cannot."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from agentrl.disk.checkpoint import latest_checkpoint
from agentrl.inspect.web.library import Library
from tests.fit.fit_project import trained_steps, weights, write_fit
from tests.runtime.tiny_project import agentrl, write_project

KINDS = ("sft", "dpo", "rm")


@pytest.fixture(scope="module")
def fits(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Run directories of finished fits."""
    found: dict[str, Path] = {}
    for kind in KINDS:
        folder = tmp_path_factory.mktemp(kind)
        path = write_fit(
            folder, kind, checkpoint__every_steps=1, checkpoint__keep_best=1, eval__every_steps=1
        )
        status, text = agentrl(folder / "out.txt", "fit", path, "train.steps=3")
        assert status == 0, text
        found[kind] = folder / "runs" / "fit"
    return found


def call(tmp_path: Path, *words: object, status: int = 0) -> str:
    found, text = agentrl(tmp_path / "out.txt", *words)
    assert found == status, text
    assert "Traceback" not in text
    assert "unexpected error" not in text
    return text


@pytest.mark.parametrize("kind", KINDS)
def test_doctor_judges_the_curves(fits: dict[str, Path], tmp_path: Path, kind: str) -> None:
    text = call(tmp_path, "doctor", fits[kind])
    assert "3 steps" in text
    assert "a run of `agentrl fit`: nothing is rolled out" in text
    assert "not one of this version" not in text
    notes = json.loads(call(tmp_path, "doctor", fits[kind], "--json"))["notes"]
    assert len(notes) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_the_inspector_reads_a_fit(fits: dict[str, Path], kind: str) -> None:
    (reader,) = Library([fits[kind]]).readers()
    history = reader.curves()
    assert len(history.metrics[f"{kind}/loss"].values) == 3
    assert history.config["objective.kind"] == kind


@pytest.mark.parametrize(
    ("kind", "options"),
    [("sft", ()), ("sft", ("--step", "2")), ("dpo", ("--best",)), ("rm", ()), ("rm", ("--best",))],
)
def test_export(fits: dict[str, Path], tmp_path: Path, kind: str, options: tuple[str, ...]) -> None:
    """Fails if the trainer's files come along, or a better loss is a worse checkpoint."""
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

    out = tmp_path / "model"
    text = call(tmp_path, "export", fits[kind], out, *options)
    assert f"step {2 if '--step' in options else 3}" in text
    assert not [path.name for path in out.iterdir() if path.name.startswith("trainer")]
    loader = AutoModelForSequenceClassification if kind == "rm" else AutoModelForCausalLM
    assert loader.from_pretrained(out) is not None


def test_what_needs_rollouts_says_that_there_are_none(
    fits: dict[str, Path], tmp_path: Path
) -> None:
    run = fits["sft"]
    for command in (("traj", "show", run), ("traj", "list", run)):
        assert "samples no trajectories" in call(tmp_path, *command, status=2)
    text = call(tmp_path, "prefs", "make", run, "--out", tmp_path / "p", status=2)
    assert "trajectories" in text
    for command in ("eval", "rollout", "replay", "mismatch", "preflight"):
        text = call(tmp_path, command, run, status=2)
        assert "is a file of `agentrl fit`" in text, command
        assert len(text.splitlines()) == 1, text


def run_file(tmp_path: Path) -> Path:
    return write_project(tmp_path / "rl", train__steps=1)


def test_reinforcement_learning_begins_with_a_fit_and_a_fit_with_it(
    fits: dict[str, Path], tmp_path: Path
) -> None:
    """Fails if the base model is trained instead of the checkpoint of the fit."""
    rl = run_file(tmp_path)
    began = fits["sft"]
    call(tmp_path, "train", rl, f"model.path={began}", "train.learning_rate=1e-12")
    run = tmp_path / "rl" / "runs" / "tiny"
    ours, theirs = weights(run), weights(began)
    assert all(torch.allclose(ours[name], theirs[name], atol=1e-6) for name in theirs)
    path = write_fit(tmp_path / "next", "sft", data__source=f"run:{run}")
    text = call(tmp_path, "fit", path, f"model.path={run}", "eval.datasets={}")
    checkpoint = latest_checkpoint(run / "checkpoints")
    assert checkpoint is not None
    assert f"model {checkpoint.path}" in text
    assert trained_steps(tmp_path / "next" / "runs" / "fit")
    text = call(tmp_path, "eval", rl, "--model", began, "--n", 1, "--out", tmp_path / "scores")
    assert "held (3)" in text


def test_a_reward_model_is_no_policy(fits: dict[str, Path], tmp_path: Path) -> None:
    """Fails if a model with a random head is trained or served without a word."""
    rl, rm = run_file(tmp_path), fits["rm"]
    fit = write_fit(tmp_path / "next", "sft")
    for words in (
        ("train", rl, f"model.path={rm}"),
        ("train", rl, f"model.path={rm}", "--dry-run"),
        ("eval", rl, "--model", rm, "--out", tmp_path / "scores"),
        ("fit", fit, f"model.path={rm}"),
        ("fit", fit, f"model.path={rm}", "--dry-run"),
        ("fit", fit, "objective.kind=dpo", f"objective.reference={rm}", "data.source=held.jsonl"),
    ):
        if "objective.kind=dpo" in words:
            write_fit(tmp_path / "next", "dpo")
        text = " ".join(call(tmp_path, *words, status=2).split())
        assert "a reward model: it scores answers and cannot write any" in text, words


def test_a_reward_model_goes_on_from_another(fits: dict[str, Path], tmp_path: Path) -> None:
    path = write_fit(tmp_path / "next", "rm", train__steps=1, train__learning_rate=1e-12)
    call(tmp_path, "fit", path, f"model.path={fits['rm']}")
    ours, theirs = weights(tmp_path / "next" / "runs" / "fit"), weights(fits["rm"])
    assert theirs["score.weight"].any()
    assert torch.allclose(ours["score.weight"], theirs["score.weight"], atol=1e-6)
