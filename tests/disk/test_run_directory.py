"""Checkpoints and run directories: complete or not there, one writer, never overwritten."""

from pathlib import Path

import pytest

from agentrl.config import parse_config
from agentrl.config.load import RUN_FILE
from agentrl.config.schema import CheckpointSection
from agentrl.disk.checkpoint import (
    CheckpointState,
    latest_checkpoint,
    list_checkpoints,
    resolve_model_path,
    save_checkpoint,
)
from agentrl.disk.run_directory import RunDir
from agentrl.disk.run_name import holds_a_run
from agentrl.errors import ConfigError, RunError

MINIMAL = {"env": {"target": "x:Y"}, "dataset": {"source": "x.jsonl"}}


def state(step: int) -> CheckpointState:
    return CheckpointState(step=step, version=step, cursor={"at": step}, elapsed_s=1.5)


def fill(folder: Path) -> None:
    (folder / "weights.bin").write_bytes(b"w" * 1000)
    (folder / "inner").mkdir()
    (folder / "inner" / "more.bin").write_bytes(b"m" * 10)


def config(tmp_path: Path, **train: object):
    return parse_config({**MINIMAL, "run": {"dir": str(tmp_path), "name": "one"}, "train": train})


def test_the_latest_complete_checkpoint_is_found_by_looking(tmp_path: Path) -> None:
    for step in (2, 9, 10):
        save_checkpoint(tmp_path, state(step), fill, CheckpointSection(keep_last=2))
    found = list_checkpoints(tmp_path)
    assert [item.state.step for item in found] == [9, 10]
    assert found[-1].state == state(10)
    # Fails if names are compared as text ("step-9" > "step-10").
    latest = latest_checkpoint(tmp_path)
    assert latest is not None
    assert latest.path.name == "step-10"


@pytest.mark.parametrize("damage", ["shorter", "missing", "no state", "torn state"])
def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path, damage: str) -> None:
    save_checkpoint(tmp_path, state(1), fill, CheckpointSection(keep_last=5))
    path = save_checkpoint(tmp_path, state(2), fill, CheckpointSection(keep_last=5))
    # Fails if a folder counts as complete because of its name alone.
    if damage == "shorter":
        (path / "weights.bin").write_bytes(b"w" * 999)
    elif damage == "missing":
        (path / "inner" / "more.bin").unlink()
    elif damage == "no state":
        (path / "state.json").unlink()
    else:
        (path / "state.json").write_bytes(b'{"step": 2, "ver')
    latest = latest_checkpoint(tmp_path)
    assert latest is not None
    assert latest.state.step == 1


def test_a_full_disk_leaves_the_previous_checkpoint_and_nothing_else(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, state(1), fill, CheckpointSection(keep_last=1))

    def full(folder: Path) -> None:
        fill(folder)
        # The real thing: a device that takes no byte.
        with Path("/dev/full").open("wb", buffering=0) as file:
            file.write(b"x")

    with pytest.raises(OSError, match="No space left"):
        save_checkpoint(tmp_path, state(2), full, CheckpointSection(keep_last=1))
    # Fails if the half-written folder stays, or if old ones go before the new one is complete.
    assert [path.name for path in tmp_path.iterdir()] == ["step-1"]


def test_debris_of_a_killed_save_is_swept(tmp_path: Path) -> None:
    debris = tmp_path / ".making-step-7"
    debris.mkdir()
    fill(debris)
    assert latest_checkpoint(tmp_path) is None
    save_checkpoint(tmp_path, state(8), fill, CheckpointSection(keep_last=1))
    assert [path.name for path in tmp_path.iterdir()] == ["step-8"]


def test_a_run_stands_for_its_latest_checkpoint(tmp_path: Path) -> None:
    assert resolve_model_path("org/name") == "org/name"
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(RunError, match="no complete checkpoint"):
        resolve_model_path(str(tmp_path))
    save_checkpoint(tmp_path / "checkpoints", state(3), fill, CheckpointSection(keep_last=1))
    assert resolve_model_path(str(tmp_path)).endswith("checkpoints/step-3")


def test_two_writers_never_meet(tmp_path: Path) -> None:
    first = RunDir.create(config(tmp_path), base=tmp_path)
    # Fails if the lock is only advisory text, or is taken after the directory was emptied.
    with pytest.raises(RunError, match=r"in use by process \d+ .* run\.name=one-2"):
        RunDir.create(config(tmp_path), base=tmp_path)
    with pytest.raises(RunError, match="in use"):
        RunDir.resume(first.path)
    first.close()
    RunDir.create(config(tmp_path), base=tmp_path).close()


def test_a_run_is_never_overwritten(tmp_path: Path) -> None:
    run = RunDir.create(config(tmp_path), base=tmp_path)
    run.log_file.write_text("an old failure")
    run.close()
    RunDir.create(config(tmp_path), base=tmp_path).close()
    assert not run.log_file.exists()
    (run.trajectories / "train").mkdir(parents=True)
    (run.trajectories / "train" / "step_000001.parquet").write_bytes(b"precious")
    with pytest.raises(RunError, match=r"already holds a run.*--resume.*run\.name=one-2"):
        RunDir.create(config(tmp_path), base=tmp_path)


def test_a_folder_with_the_users_own_files_is_not_emptied(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "thesis.tex").write_text("years of work")
    with pytest.raises(RunError, match="already holds"):
        RunDir.create(config(tmp_path), base=tmp_path)
    assert (tmp_path / "one" / "thesis.tex").read_text() == "years of work"


def test_a_failed_start_leaves_nothing(tmp_path: Path) -> None:
    run = RunDir.create(config(tmp_path), base=tmp_path)
    run.discard()
    assert not run.path.exists()


def test_resume_refuses_another_config_and_says_which_key(tmp_path: Path) -> None:
    RunDir.create(config(tmp_path, learning_rate=1e-5), base=tmp_path).close()
    run, stored, base = RunDir.resume(tmp_path / "one")
    assert (stored.train.learning_rate, base) == (1e-5, tmp_path)
    with pytest.raises(RunError, match=r"train\.learning_rate: 1e-05 in the run, 0\.001 now"):
        run.adopt(config(tmp_path, learning_rate=1e-3), base=tmp_path)
    run.adopt(config(tmp_path, learning_rate=1e-5, steps=99), base=tmp_path)
    run.close()
    again, stored, _ = RunDir.resume(tmp_path / "one")
    again.close()
    assert stored.train.steps == 99


def test_a_run_of_an_older_version_is_refused_where_a_setting_of_it_is_gone(
    tmp_path: Path,
) -> None:
    """Fails if later steps are trained in another way than the finished ones, unnoticed; or if what
    changes no number stands in the way."""
    run = RunDir.create(config(tmp_path), base=tmp_path)
    run.close()
    text = run.config_file.read_text()
    run.config_file.write_text(text.replace("algorithm:\n", "algorithm:\n  std_eps: 0.5\n"))
    with pytest.raises(ConfigError, match=r"algorithm\.std_eps was 0\.5 and has no effect now: "):
        RunDir.resume(run.path)
    run.config_file.write_text(text.replace("serving:\n", "serving:\n  lanes: 3\n"))
    RunDir.resume(run.path)[0].close()


def test_not_a_run_directory(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"holds no config\.yaml"):
        RunDir.resume(tmp_path)
    with pytest.raises(RunError, match="is not a directory"):
        RunDir.resume(tmp_path / "nowhere")
    assert not holds_a_run(tmp_path / "nowhere")


def test_a_resumed_run_may_move_to_other_machines_but_not_to_another_schedule(
    tmp_path: Path,
) -> None:
    """Fails if a run that has outgrown its machine, or its weight backend, cannot go on."""
    RunDir.create(config(tmp_path), base=tmp_path).close()
    run, stored, _ = RunDir.resume(tmp_path / "one")
    data = stored.model_dump(mode="json")
    data |= {"runtime": {"kind": "ray", "trainer_ranks": 2}, "sync": {"backend": "collective"}}
    run.adopt(parse_config(data), base=tmp_path)
    data["schedule"] = {"oversample": 2.0}
    with pytest.raises(RunError, match=r"schedule\.oversample: 1\.0 in the run, 2\.0 now"):
        run.adopt(parse_config(data), base=tmp_path)
    run.close()


def test_a_server_that_did_not_start_leaves_its_log_and_a_free_name(tmp_path: Path) -> None:
    """Fails if the log that an error names is deleted, or stands in the way of the next try."""
    run = RunDir.create(config(tmp_path), base=tmp_path)
    for folder, file in ((run.logs, "vllm-0.log"), (run.weights, "step-1")):
        folder.mkdir()
        (folder / file).write_text("why")
    run.discard()
    assert (run.logs / "vllm-0.log").read_text() == "why"
    assert not run.weights.exists()
    again = RunDir.create(config(tmp_path), base=tmp_path)
    assert not again.logs.exists()
    again.close()


def test_logs_that_are_not_of_a_run_are_the_users(tmp_path: Path) -> None:
    """Fails if the name of a folder alone makes it ours to delete."""
    (tmp_path / "one" / "logs").mkdir(parents=True)
    with pytest.raises(RunError, match="already holds"):
        RunDir.create(config(tmp_path), base=tmp_path)


def test_a_run_keeps_the_model_it_began_with(tmp_path: Path) -> None:
    """Fails if a run that began with another run's checkpoint goes on, or measures its penalty,
    from whatever that run has reached since."""
    other = tmp_path / "other"
    save_checkpoint(other / "checkpoints", state(1), fill, CheckpointSection(keep_last=5))
    data = config(tmp_path).model_dump(mode="json")
    began = parse_config({**data, "model": {"path": str(other)}})
    run = RunDir.create(began, base=tmp_path)
    save_checkpoint(other / "checkpoints", state(2), fill, CheckpointSection(keep_last=5))
    first = str(other / "checkpoints" / "step-1")
    assert run.resolve_models(began).model.path == first
    run.close()
    run, stored, _ = RunDir.resume(run.path)
    assert stored == RUN_FILE.whole(began, tmp_path)
    run.adopt(stored, base=tmp_path)
    assert run.resolve_models(stored).model.path == first
    run.close()
