"""States of a trainer in checkpoints: which stay, and what a kill leaves of a save."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from agentrl.config.schema import CheckpointSection
from agentrl.disk import checkpoint
from agentrl.disk.checkpoint import (
    CheckpointState,
    checkpoint_to_resume,
    list_checkpoints,
    make_folder,
    round_state,
    save_checkpoint,
    sweep,
)
from agentrl.errors import RunError
from agentrl.train.checkpoint import load_trainer_state
from agentrl.train.saving.rounded import write_rounded
from tests.train.saved_states import write_format_2, write_state

MODEL, ALL = (CheckpointSection(save=save, keep_last=2) for save in ("model", "all"))


def state(step: int) -> CheckpointState:
    return CheckpointState(step=step, version=step, cursor={"at": step}, elapsed_s=1.5)


def optimizer(step: int) -> dict[str, dict[str, object]]:
    full = {name: torch.full((40, 50), float(step)) for name in ("a", "b")}
    return {"masters": full, "moments": {"a": {"exp_avg": full["a"]}, "b": {}}}


def save(root: Path, step: int, section: CheckpointSection, ranks: int = 2) -> None:
    def write(folder: Path) -> None:
        save_file({"w": torch.zeros(25)}, folder / "model.safetensors")
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
    round_state(tmp_path, ALL, write_rounded)
    assert with_state(tmp_path) == {2: False, 3: True}
    round_state(tmp_path, MODEL, write_rounded)
    assert with_state(tmp_path) == {2: False, 3: False}
    # It goes on from there, and from a run that trains its steps again the newer state goes.
    last = checkpoint_to_resume(tmp_path, steps=9)
    assert last is not None
    assert (last.state.step, last.state.resumes) == (3, True)
    save(tmp_path, 4, CheckpointSection(keep_last=2))
    assert with_state(tmp_path) == {3: False, 4: True}
    assert not (last.path / "trainer-rounded").exists()
    assert not load_trainer_state(last.path).optimizer
    # A kill between the two halves of a deletion leaves nothing for long.
    (last.path / "trainer").mkdir()
    (last.path / ".making-trainer-rounded").mkdir()
    sweep(tmp_path)
    assert with_state(tmp_path) == {3: False, 4: True}
    assert not list(last.path.glob(".*"))


def assert_close(loaded: Any, exact: Any, *, ties: int) -> None:
    for name, tensor in exact["masters"].items():
        there = loaded["masters"][name]
        assert torch.equal(loaded["masters"].numbers(name, 3, 6), there.reshape(-1)[3:6])
        apart = (there.view(torch.int32) - tensor.view(torch.int32)).abs()
        assert int(apart.max()) <= 1
        assert int(apart.sum()) <= (ties if name == "model.w" else 0)
    for kind, tensor in exact["moments"]["model.w"].items():
        there = loaded["moments"]["model.w"][kind]
        torch.testing.assert_close(there, tensor, rtol=2**-8, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_run_that_ended_keeps_its_state_in_less_room(tmp_path: Path, dtype: torch.dtype) -> None:
    """Fails if a master is off by more than its last bit, a moment by more than 16 bits are, or a
    part lies on the weights of another place; and if a kill at any moment leaves no whole state."""
    torch.manual_seed(0)
    master = torch.randn(90, 1100) * 0.05
    # Both ends of what rounds to one weight: 1 + 2^-8 lies in the middle, and rounds to the even 1.
    bits = torch.tensor([0x3F808000, 0x3F818000, 0x3F807FFF, -0x407F8000], dtype=torch.int32)
    master.view(-1)[:4] = bits.view(torch.float32)
    weight = master.to(dtype)
    if dtype == torch.float32:
        master = weight.clone()
    few = torch.randn(7)
    exact = {
        "masters": {"model.w": master, "few": few, "head": master * 3},
        "moments": {
            "model.w": {"exp_avg": master / 7, "exp_avg_sq": master**2, "step": torch.tensor(9.0)},
            "few": {},
            "head": {},
        },
    }

    def write(folder: Path) -> None:
        weights = {"model.w": weight, "few": few.to(dtype), "head": (master * 5).to(dtype)}
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        write_state(folder, version=1, optimizer=exact, ranks=2)

    path = save_checkpoint(tmp_path, state(1), write, MODEL)
    before = sum(file.stat().st_size for file in (path / "trainer").iterdir())
    write_whole = checkpoint.write_whole
    for moment in ("writing", "before the switch", "after the switch", "none"):

        def die(path: Path, content: bytes, moment: str = moment) -> None:
            if moment == "before the switch":
                raise KeyboardInterrupt
            write_whole(path, content)
            if moment == "after the switch":
                raise KeyboardInterrupt

        def half(source: Path, folder: Path, moment: str = moment) -> None:
            write_rounded(source, folder)
            if moment == "writing":
                os.truncate(next(folder.iterdir()), 50)
                raise KeyboardInterrupt

        checkpoint.write_whole = die  # as a kill at that moment
        try:
            round_state(tmp_path, MODEL, half)
        except KeyboardInterrupt:
            assert moment != "none"
        finally:
            checkpoint.write_whole = write_whole
        for clear in (lambda root: None, sweep):
            clear(tmp_path)
            (found,) = list_checkpoints(tmp_path)
            assert found.state.resumes
            assert_close(load_trainer_state(path).optimizer, exact, ties=3)
        switched = moment in ("after the switch", "none")
        assert with_state(tmp_path) == {1: not switched}
    after = sum(file.stat().st_size for file in (path / "trainer-rounded").iterdir())
    assert after < 0.75 * before  # the head is not that of the weights, and stays whole


def test_every_checkpoint_has_the_state_where_all_is_asked_for(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save(tmp_path, step, ALL)
    assert with_state(tmp_path) == {2: True, 3: True}


def test_a_small_state_of_adapters_stays(tmp_path: Path) -> None:
    def write(folder: Path) -> None:
        save_file({"w": torch.zeros(10**5)}, folder / "model.safetensors")
        write_state(folder, version=1, optimizer=optimizer(1))

    save_checkpoint(tmp_path, state(1), write, MODEL)
    round_state(tmp_path, MODEL, write_rounded)
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


def test_what_is_of_another_run_is_named(tmp_path: Path) -> None:
    """Fails if equal steps of two runs are put together, whose files have the same sizes."""
    one, two = (
        write_state(tmp_path / n, version=1, optimizer=optimizer(v), ranks=2, run_id=n)
        for n, v in (("one", 1), ("two", 2))
    )
    part = "part-00002-of-00002.safetensors"
    shutil.copy(two / "trainer" / part, one / "trainer" / part)
    with pytest.raises(RunError, match="belongs to another checkpoint: it holds run two, and"):
        load_trainer_state(one)
    # Masters that lie on top of weights, and the weights are those of another step.
    shutil.rmtree(one)
    write_state(one, version=1, optimizer=optimizer(1))
    for folder, value in ((one, 1.0), (two, 2.0)):
        weights = {name: torch.full((40, 50), value).bfloat16() for name in ("a", "b")}
        save_file(weights, folder / "model.safetensors")
    (one / "trainer-rounded").mkdir()
    write_rounded(one, one / "trainer-rounded")
    shutil.rmtree(one / "trainer")
    assert torch.equal(load_trainer_state(one).optimizer["masters"]["a"], torch.ones(40, 50))
    shutil.copy(two / "model.safetensors", one / "model.safetensors")
    with pytest.raises(RunError, match=r"belongs to other weights .* 2 of 2 differ"):
        load_trainer_state(one)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 128 KiB."""
    if os.geteuid():
        pytest.skip("only root mounts a disk of its own")
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", folder]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no disk can be mounted here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def test_a_real_disk_that_is_full_or_read_only(small_disk: Path, tmp_path: Path) -> None:
    """Fails if what did not fit stays, or the checkpoint before it is torn or deleted first."""
    root = small_disk / "checkpoints"
    save(root, 1, MODEL)
    (room := small_disk / "room").write_bytes(b"x" * (shutil.disk_usage(small_disk).free - 2**14))
    before = {path: path.stat().st_size for path in root.rglob("*")}
    with pytest.raises(OSError, match="No space left on device"):
        save(root, 2, MODEL)
    with pytest.raises(OSError, match="No space left on device"):
        round_state(root, MODEL, write_rounded)
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    for work in (
        lambda: save(root, 2, MODEL),
        lambda: round_state(root, MODEL, write_rounded),
        lambda: make_folder(small_disk / "out", lambda folder: None),
    ):
        with pytest.raises(OSError, match="Read-only file system"):
            work()
    assert {path: path.stat().st_size for path in root.rglob("*")} == before
    assert load_trainer_state(root / "step-1").version == 1
    subprocess.run(["mount", "-o", "remount,rw", small_disk], check=True)
    room.unlink()
    round_state(root, MODEL, write_rounded)
    assert with_state(root) == {1: False}
    assert load_trainer_state(root / "step-1").optimizer


def test_a_state_of_format_2_is_read(tmp_path: Path) -> None:
    """Fails if a run that an older version saved cannot go on."""
    made = optimizer(4)
    write_format_2(tmp_path, version=4, optimizer=made, kl_coef=0.25)
    state = load_trainer_state(tmp_path)
    assert (state.version, state.kl_coef) == (4, 0.25)
    assert torch.equal(state.optimizer["masters"]["a"], made["masters"]["a"])
