"""States of a trainer in checkpoints: which stay, and what a kill leaves of a save."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest
import torch

from agentrl.config.schema import CheckpointSection
from agentrl.disk.checkpoint import (
    CheckpointState,
    checkpoint_to_resume,
    drop_states,
    list_checkpoints,
    save_checkpoint,
    sweep,
)
from agentrl.errors import RunError
from agentrl.train.checkpoint import load_trainer_state
from tests.train.saved_states import write_format_2, write_state

MODEL, ALL = (CheckpointSection(save=save, keep_last=2) for save in ("model", "all"))


def state(step: int) -> CheckpointState:
    return CheckpointState(step=step, version=step, cursor={"at": step}, elapsed_s=1.5)


def optimizer(step: int) -> dict[str, dict[str, object]]:
    full = {name: torch.full((40, 50), float(step)) for name in ("a", "b")}
    return {"masters": full, "moments": {"a": {"exp_avg": full["a"]}, "b": {}}}


def save(root: Path, step: int, section: CheckpointSection, ranks: int = 2) -> None:
    def write(folder: Path) -> None:
        (folder / "model.safetensors").write_bytes(b"w" * 100)
        write_state(folder, version=step, optimizer=optimizer(step), ranks=ranks)

    save_checkpoint(root, state(step), write, section)


def with_state(root: Path) -> dict[int, bool]:
    return {item.state.step: (item.path / "trainer").is_dir() for item in list_checkpoints(root)}


def test_the_newest_alone_has_the_state_until_the_end(tmp_path: Path) -> None:
    """Fails if an older state is deleted before the newer one is there, or the weights with it."""
    for step in (1, 2, 3):
        save(tmp_path, step, MODEL)
    assert with_state(tmp_path) == {2: False, 3: True}
    older, newest = list_checkpoints(tmp_path)
    assert [item.state.resumes for item in (older, newest)] == [False, True]
    assert load_trainer_state(older.path).version == 2
    assert not load_trainer_state(older.path).optimizer
    for steps, ends in ((3, 3), (9, 3)):
        found = checkpoint_to_resume(tmp_path, steps=steps)
        assert found is not None
        assert found.state.step == ends
    drop_states(tmp_path, ALL)
    assert with_state(tmp_path) == {2: False, 3: True}
    drop_states(tmp_path, MODEL)
    assert with_state(tmp_path) == {2: False, 3: False}
    assert checkpoint_to_resume(tmp_path, steps=9) is None
    last = checkpoint_to_resume(tmp_path, steps=3)
    assert last is not None
    assert last.state.step == 3
    # A run that trains its steps again keeps the state of the newest that has one.
    save(tmp_path, 1, CheckpointSection(keep_last=1))
    assert with_state(tmp_path) == {1: True, 3: False}
    # A kill between the two halves of a deletion leaves nothing for long.
    (list_checkpoints(tmp_path)[-1].path / "trainer").mkdir()
    sweep(tmp_path)
    assert with_state(tmp_path) == {1: True, 3: False}


def test_every_checkpoint_has_the_state_where_all_is_asked_for(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save(tmp_path, step, ALL)
    assert with_state(tmp_path) == {2: True, 3: True}


def test_a_small_state_of_adapters_stays(tmp_path: Path) -> None:
    def write(folder: Path) -> None:
        (folder / "model.safetensors").write_bytes(b"w" * 10**5)
        write_state(folder, version=1, optimizer=optimizer(1))

    save_checkpoint(tmp_path, state(1), write, MODEL)
    drop_states(tmp_path, MODEL)
    assert with_state(tmp_path) == {1: True}


@pytest.mark.parametrize("seed", range(6))
def test_a_kill_at_any_moment_of_a_save_leaves_whole_checkpoints(tmp_path: Path, seed: int) -> None:
    """Fails if a half one can be resumed from, or an older one goes before the newer is there."""
    save(tmp_path, 1, MODEL)
    child = os.fork()
    if child == 0:
        try:
            for step in range(2, 10_000):
                save(tmp_path, step, MODEL)
        finally:
            os._exit(1)
    time.sleep(random.Random(seed).uniform(0.02, 0.25))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    last = checkpoint_to_resume(tmp_path, steps=10**6)
    assert last is not None
    assert last.state.step == max(with_state(tmp_path))
    loaded = load_trainer_state(last.path)
    assert loaded.version == last.state.step
    assert torch.equal(
        loaded.optimizer["masters"]["b"], torch.full((40, 50), float(loaded.version))
    )
    sweep(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        f"step-{step}" for step in with_state(tmp_path)
    }


def test_parts_that_are_gone_torn_or_of_another_save_are_named(tmp_path: Path) -> None:
    one, two = (
        write_state(tmp_path / n, version=v, optimizer=optimizer(v), ranks=3)
        for n, v in (("one", 1), ("two", 2))
    )
    state = load_trainer_state(one)
    assert torch.equal(state.optimizer["masters"]["a"], torch.ones(40, 50))
    assert torch.equal(state.optimizer["moments"]["a"]["exp_avg"], torch.ones(40, 50))
    assert not state.optimizer["moments"]["b"]
    part = "part-00002-of-00003.safetensors"
    (two / "trainer" / part).rename(one / "trainer" / part)
    with pytest.raises(RunError, match="belongs to another checkpoint: it holds version 2"):
        load_trainer_state(one)
    with pytest.raises(RunError, match="was saved in 3 parts, and 2 are there"):
        load_trainer_state(two)


def test_a_state_of_format_2_is_read(tmp_path: Path) -> None:
    """Fails if a run that an older version saved cannot go on."""
    made = optimizer(4)
    write_format_2(tmp_path, version=4, optimizer=made, kl_coef=0.25)
    state = load_trainer_state(tmp_path)
    assert (state.version, state.kl_coef) == (4, 0.25)
    assert torch.equal(state.optimizer["masters"]["a"], made["masters"]["a"])
