"""Other runs named by a config: a run keeps the checkpoints that they stood for at its start."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agentrl.cli.console.start import read_config
from agentrl.cli.replay.recorded_run import open_recorded
from agentrl.config import RunConfig, parse_config
from agentrl.config.distill import CheckpointTeacher
from agentrl.config.load import RUN_FILE
from agentrl.config.plan import Plan
from agentrl.config.schema import CheckpointSection
from agentrl.disk.checkpoint import CheckpointState, save_checkpoint
from agentrl.disk.run_directory import RunDir
from agentrl.errors import RunError

NAMES = ("policy", "critic", "teacher", "rm", "both/members/0", "both/members/1")


def save(run: Path, step: int, *, keep_last: int = 5) -> Path:
    """Save a checkpoint whose bytes nothing else has."""

    def write(folder: Path) -> None:
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_bytes(f"{run.name} {step} ".encode() * 50_000)

    state = CheckpointState(step=step, version=step, cursor={}, elapsed_s=0.0)
    return save_checkpoint(
        run / "checkpoints", state, write, CheckpointSection(keep_last=keep_last)
    )


def config(folder: Path, **changes: Any) -> RunConfig:
    models = {"rm": {"path": "rm"}, "both": {"path": ["both"]}, "hub": {"path": "owner/name"}}
    return parse_config({
        "env": {"target": "x:Y"}, "dataset": {"source": "x.jsonl"},
        "run": {"dir": str(folder / "runs"), "name": "one"}, "train": {"steps": 5},
        "model": {"path": str(folder / "policy")}, "critic": {"path": "critic"},
        "algorithm": {
            "preset": "ppo", "distill": {"teacher": {"path": "teacher"}, "with_reward": True},
        },
        "reward": {"models": models}, **changes,
    })  # fmt: skip


def models_of(plan: Plan) -> SimpleNamespace:
    """The sections of a plan that name models, under the names of the config."""
    trainer, rollouts = plan.trainer, plan.rollouts
    return SimpleNamespace(
        model=rollouts.model,
        critic=trainer.critic,
        algorithm=trainer.algorithm,
        reward=rollouts.reward,
    )


def paths_of(config: RunConfig | SimpleNamespace) -> dict[str, str | tuple[str, ...] | None]:
    assert config.algorithm.distill is not None
    teacher = config.algorithm.distill.teacher
    assert isinstance(teacher, CheckpointTeacher)
    return {
        "policy": config.model.path, "critic": config.critic.path, "teacher": teacher.path,
        **{name: item.path for name, item in config.reward.models.items()},
    }  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in NAMES:
        save(tmp_path / name, 1)
    return tmp_path


def first(folder: Path, name: str) -> str:
    return str(folder / name / "checkpoints" / "step-1")


def test_a_run_keeps_every_checkpoint_it_began_with(folder: Path) -> None:
    """Fails if one key is left out, if paths do not start at the run file, or if a resume takes
    what the other run has reached since."""
    began = config(folder)
    run = RunDir.create(began, base=folder)
    for name in NAMES:
        save(folder / name, 2)
    wanted = {name: first(folder, name) for name in ("policy", "critic", "teacher")} | {
        "rm": (first(folder, "rm"),),
        "both": (first(folder, "both/members/0"), first(folder, "both/members/1")),
        "hub": ("owner/name",),
    }
    assert paths_of(run.resolve_models(began)) == wanted
    run.close()
    run, stored, base = RunDir.resume(run.path)
    # As the user wrote it, with absolute paths.
    assert stored == RUN_FILE.whole(began, folder)
    run.adopt(stored, base=base)
    assert paths_of(run.resolve_models(stored)) == wanted
    run.close()
    assert paths_of(models_of(open_recorded(run.path).plan)) == wanted
    assert paths_of(read_config(run.path, [], with_models=True)[0]) == wanted
    chosen = read_config(run.path, ["reward.models.rm.path=other"], with_models=True)[0]
    assert paths_of(chosen) == wanted | {"rm": ("other",)}, "what is said on the line wins"


def rewritten(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"rm 1 " * 49_999 + b"RM 1 ")


def rescaled(folder: Path) -> None:
    (folder / "reward_scale.json").write_text("{}")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (shutil.rmtree, "but it is gone; put the old files back"),
        (rewritten, "but model.safetensors changed since"),
        (rescaled, "but reward_scale.json changed since"),
    ],
)
def test_a_resume_refuses_another_checkpoint(
    folder: Path, damage: Callable[[Path], None], message: str
) -> None:
    """Fails if other weights of the same size, or another scale, go unseen."""
    began = config(folder)
    run = RunDir.create(began, base=folder)
    damage(Path(first(folder, "rm")))
    with pytest.raises(RunError, match=rf"began with reward.models.rm.path at .*{message}"):
        run.adopt(began, base=folder)
    run.close()


def test_a_resume_finds_a_model_that_was_moved(folder: Path) -> None:
    """Fails if a run cannot go on with the very files that it began with, or goes on with others
    because they are named."""
    run = RunDir.create(config(folder), base=folder)
    (folder / "kept").mkdir()
    for name, place in (("policy", "moved"), ("rm", "kept/rm")):
        shutil.move(first(folder, name), folder / place)
        shutil.rmtree(folder / name)
    models = {"rm": {"path": "kept/rm"}, "both": {"path": ["both"]}, "hub": {"path": "owner/name"}}
    there = {"model": {"path": str(folder / "moved")}, "reward": {"models": models}}
    with pytest.raises(RunError, match=r"it is gone.*add [a-z.]+path=FOLDER to the command"):
        run.adopt(config(folder), base=folder)
    run.adopt(config(folder, **there), base=folder)
    found = paths_of(run.resolve_models(config(folder, **there)))
    assert (found["policy"], found["rm"]) == (str(folder / "moved"), (str(folder / "kept/rm"),))
    assert set(run.changed) == {"model.path", "reward.models.rm.path"}
    run.close()
    rewritten(folder / "moved")
    run, stored, base = RunDir.resume(run.path)
    with pytest.raises(RunError, match=r"model.path at .*/moved, .* changed since"):
        run.adopt(stored, base=base)
    run.close()


def test_files_that_do_not_change_a_score_may_change(folder: Path) -> None:
    """Fails if scores that an evaluation adds to `state.json`, or a report, stop a resume."""
    began = config(folder)
    run = RunDir.create(began, base=folder)
    (Path(first(folder, "rm")) / "report.json").write_text("{}")
    (Path(first(folder, "rm")) / "state.json").write_text("{}")
    run.adopt(began, base=folder)
    run.close()


def test_a_run_of_an_older_make_is_held_to_what_it_resumes_with(folder: Path) -> None:
    began = config(folder)
    run = RunDir.create(began, base=folder)
    identity = json.loads(run.identity_file.read_bytes())
    del identity["models"]
    run.identity_file.write_text(json.dumps(identity))
    for name in NAMES:
        save(folder / name, 2)
    run.adopt(began, base=folder)
    resolved = paths_of(run.resolve_models(began))
    assert resolved["policy"] == first(folder, "policy")
    assert resolved["rm"] == (str(folder / "rm" / "checkpoints" / "step-2"),)
    save(folder / "rm", 3)
    run.adopt(began, base=folder)
    assert paths_of(run.resolve_models(began)) == resolved
    run.close()


def test_a_path_that_is_not_used_is_not_asked_for(folder: Path) -> None:
    """Fails if a run without values is stopped by a critic that nothing loads."""
    shutil.rmtree(folder / "critic" / "checkpoints" / "step-1")
    run = RunDir.create(config(folder, algorithm={}), base=folder)
    assert "critic.path" not in json.loads(run.identity_file.read_bytes())["models"]
    run.close()
