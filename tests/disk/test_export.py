"""`agentrl export`: whole or not at all, of the checkpoint that was asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from agentrl.cli import main
from agentrl.config import parse_config
from agentrl.config.schema import AlgorithmSection, CheckpointSection, TrainSection
from agentrl.disk.checkpoint import CheckpointState, resolve_model_path, save_checkpoint
from agentrl.disk.export import export
from agentrl.disk.run_directory import RunDir
from agentrl.errors import ConfigError, RunError
from agentrl.models.stored import check_exported
from tests.runtime.tiny_project import write_model

MINIMAL = {"env": {"target": "x:Y"}, "dataset": {"source": "x.jsonl"}}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Three checkpoints of different weights; the best is step 2, the latest step 3."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from agentrl.train import Trainer

    write_model(tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    config = parse_config({**MINIMAL, "run": {"dir": str(tmp_path), "name": "one"}})
    directory = RunDir.create(config, base=tmp_path)
    directory.close()
    for step, score in ((1, 0.1), (2, 0.9), (3, 0.5)):
        model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
        with torch.no_grad():
            model.model.norm.weight.fill_(float(step))
        trainer = Trainer(
            model, train=TrainSection(), algorithm=AlgorithmSection().resolved(horizon=1)
        )

        def write(folder: Path, model=model, trainer=trainer) -> None:
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
            trainer.save(folder)
            (folder / "critic").mkdir()
            (folder / "critic" / "config.json").write_text("{}")

        state = CheckpointState(
            step=step, version=step, cursor={}, elapsed_s=1.0, scores={"eval/held/score": score}
        )
        save_checkpoint(directory.checkpoints, state, write, CheckpointSection(keep_last=9))
    return directory.path


def norm(folder: Path) -> float:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    assert AutoTokenizer.from_pretrained(folder).encode("a")
    return AutoModelForCausalLM.from_pretrained(folder).model.norm.weight[0].item()


def test_the_latest_a_named_and_the_best_step(run: Path, tmp_path: Path) -> None:
    # The weights say which one came. Fails if --best follows the step or --step is ignored.
    assert export(run, tmp_path / "latest").step == 3
    assert export(run, tmp_path / "first", step=1).step == 1
    made = export(run, tmp_path / "best", best=True)
    assert (made.step, made.score) == (2, 0.9)
    found = [norm(tmp_path / name) for name in ("latest", "first", "best")]
    assert found == [3.0, 1.0, 2.0]


def test_only_the_policy_is_exported(run: Path, tmp_path: Path) -> None:
    # Fails if masters and moments, six times the weights, or another model go along.
    export(run, tmp_path / "out")
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= names
    assert not names & {"trainer.pt", "state.json", "critic"}


def test_nothing_is_overwritten_and_an_empty_folder_is_filled(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    export(run, out)
    (out / "mine.txt").write_text("x")
    with pytest.raises(RunError, match="out exists already; nothing is overwritten"):
        export(run, out, step=1)
    assert (out / "mine.txt").exists()


def test_a_checkpoint_that_is_not_whole_and_finite_is_not_exported(
    run: Path, tmp_path: Path
) -> None:
    export(run, tmp_path / "out", check=check_exported)
    file = tmp_path / "out" / "model.safetensors"
    whole, name = load_file(file), "model.layers.0.mlp.up_proj.weight"
    without = {key: tensor for key, tensor in whole.items() if key != name}
    poisoned = {**whole, name: whole[name] * torch.nan}
    for weights, said in ((without, f"1 missing: {name}"), (poisoned, f"not finite.* {name}")):
        save_file(weights, file, metadata={"format": "pt"})
        with pytest.raises(ConfigError, match=rf"out .*{said}"):
            # Looked at before anything is written, and where the run has it.
            export(run, tmp_path / "lost", check=lambda _: check_exported(tmp_path / "out"))
        assert not (tmp_path / "lost").exists()


def test_a_failed_export_leaves_nothing(run: Path, tmp_path: Path) -> None:
    # A file that cannot be read stands for a disk that fails. Fails if files go to OUT directly.
    last = run / "checkpoints" / "step-3" / "zz.json"
    last.symlink_to(tmp_path / "missing")
    with pytest.raises(RunError, match=r"broken could not be written: .*No such file"):
        export(run, tmp_path / "broken")
    assert not (tmp_path / "broken").exists()
    assert not list(tmp_path.glob(".making-*"))


def test_an_export_that_was_killed_is_made_again(run: Path, tmp_path: Path) -> None:
    # Fails (File exists) if the folder that the killed one was filling is in the way.
    left = tmp_path / ".making-out"
    left.mkdir()
    (left / "half.safetensors").write_text("x")
    export(run, tmp_path / "out")
    assert not left.exists()
    assert not (tmp_path / "out" / "half.safetensors").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--step", "7"], "has no checkpoint of step 7; it has those of steps 1, 2, 3"),
        (["--step", "1", "--best"], "give --step or --best, not both"),
        (["--adapter"], "step-3 has no adapters: the run trained all weights"),
    ],
)
def test_mistakes_are_one_message(
    run: Path, tmp_path: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["export", str(run), str(tmp_path / "out"), *words])
    assert caught.value.code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"holds no config\.yaml, so it is not a run directory"):
        export(tmp_path, tmp_path / "out")


def test_a_run_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    config = parse_config({**MINIMAL, "run": {"dir": str(tmp_path), "name": "one"}})
    directory = RunDir.create(config, base=tmp_path)
    directory.close()
    with pytest.raises(RunError, match="has no complete checkpoint below"):
        export(directory.path, tmp_path / "out")


def test_checkpoints_that_lack_a_part_are_named(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fails if the user is told that there is none yet."""
    for step, name in ((1, "model.safetensors"), (2, "tokenizer.json")):
        (run / "checkpoints" / f"step-{step}" / name).unlink()
    part = run / "checkpoints" / "step-3" / "trainer" / "part-00001-of-00001.safetensors"
    part.write_bytes(part.read_bytes()[:-1])
    with pytest.raises(SystemExit) as caught:
        main(["export", str(run), str(tmp_path / "out")])
    assert caught.value.code == 2
    text = " ".join(capsys.readouterr().err.split())
    assert f"run {run} has no complete checkpoint below {run}/checkpoints: of step-1: of" in text
    assert "1 are missing (model.safetensors); copy the folder once more, whole" in text
    assert "of step-3: 1 of its" in text
    assert "files changed size (trainer/part-00001-of-00001.safetensors has" in text
    with pytest.raises(RunError, match=r"of step-2: of its .* are missing"):
        resolve_model_path(str(run))


def test_the_command_says_what_it_made(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["export", str(run), str(tmp_path / "out"), "--best"])
    assert not caught.value.code
    assert f"step 2 (score 0.900): {tmp_path / 'out'}" in capsys.readouterr().out
