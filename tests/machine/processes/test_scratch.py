"""A tree with a scratch folder leaves no segment, semaphore, socket or file, however it ends."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import shared_memory
from pathlib import Path

import pytest

from agentrl.machine.processes import tree
from agentrl.machine.processes.scratch import PREFIX, SHARED_MEMORY, torch_cache
from agentrl.machine.processes.tree import command

LEAVER = Path(__file__).with_name("leaver.py")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder for temporary files, with a path short enough for those of sockets."""
    path = Path(tempfile.mkdtemp(prefix="t-", dir="/tmp"))
    yield path
    shutil.rmtree(path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    """A running `leaver.py` below a supervisor."""

    supervisor: subprocess.Popen[bytes]
    pid: int
    scratch: Path
    """TMPDIR of the tree."""
    segments: list[Path]

    def left(self) -> list[Path]:
        return [path for path in (self.scratch, *self.segments) if path.exists()]


@contextlib.contextmanager
def leaver(folder: Path, *words: str) -> Iterator[Leaving]:
    """A leaver of which the supervisor knows all that it has made."""
    with subprocess.Popen(
        [*command(0.5, scratch=True), sys.executable, str(LEAVER), *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(folder)},
    ) as supervisor:
        assert supervisor.stdout is not None
        told = json.loads(supervisor.stdout.readline())
        scratch = Path(told["folder"])
        record = scratch / ".segments"
        until(lambda: all(name in record.read_text() for name in told["segments"]))
        yield Leaving(
            supervisor=supervisor,
            pid=told["pid"],
            scratch=scratch,
            segments=[SHARED_MEMORY / name for name in told["segments"]],
        )


def until(condition: Callable[[], bool], limit_s: float = 120.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def until_gone(pid: int) -> None:
    until(lambda: not Path(f"/proc/{pid}").exists())


def start_another(folder: Path) -> None:
    """A tree that ends at once; its supervisor sweeps first."""
    words = [*command(0.5, scratch=True), "true"]
    environment = {**os.environ, "TMPDIR": str(folder)}
    with subprocess.Popen(words, stdin=subprocess.PIPE, env=environment) as supervisor:
        assert supervisor.wait(120) == 0


@pytest.mark.parametrize("end", ["pipe", "SIGTERM", "killed", "deaf"])
def test_nothing_is_left_of_a_tree(folder: Path, end: str) -> None:
    """Fails if segments are left to the tracker, or the folder is removed before the tree ends."""
    with leaver(folder, *(["deaf"] if end == "deaf" else [])) as leaving:
        assert leaving.scratch.parent == folder
        assert leaving.left() == [leaving.scratch, *leaving.segments]
        if end == "SIGTERM":
            leaving.supervisor.send_signal(signal.SIGTERM)
        elif end == "killed":
            os.kill(leaving.pid, signal.SIGKILL)
        else:
            assert leaving.supervisor.stdin is not None
            leaving.supervisor.stdin.close()
        leaving.supervisor.wait(120)
        assert leaving.left() == []
        assert list(folder.iterdir()) == []


def test_the_next_start_sweeps_what_a_killed_supervisor_left(folder: Path) -> None:
    with leaver(folder) as leaving:
        leaving.supervisor.kill()
    until_gone(leaving.pid)
    assert leaving.left() == [leaving.scratch, *leaving.segments]
    start_another(folder)
    assert leaving.left() == []
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("word", ["socket", "no-socket", "bare"])
def test_a_tree_that_still_runs_is_not_swept(folder: Path, word: str) -> None:
    """Fails if a folder counts as left when its lock is free, whatever uses it: its segments are
    then never removed."""
    with leaver(folder, "deaf", word) as leaving:
        start_another(folder)
        assert leaving.left() == [leaving.scratch, *leaving.segments]
        leaving.supervisor.kill()  # its process ignores the SIGTERM that this brings
    start_another(folder)
    assert leaving.left() == [leaving.scratch, *leaving.segments]
    os.kill(leaving.pid, signal.SIGKILL)
    until_gone(leaving.pid)
    start_another(folder)
    assert leaving.left() == []


def test_what_others_use_stays(folder: Path) -> None:
    """Fails if a new name is enough, or if other processes are not asked for what they use."""
    with leaver(folder) as leaving:
        mine = shared_memory.SharedMemory(create=True, size=4096)
        shared = shared_memory.SharedMemory(leaving.segments[0].name)
        time.sleep(0.6)  # two looks of the supervisor
        assert mine.name not in (leaving.scratch / ".segments").read_text()
        leaving.supervisor.send_signal(signal.SIGTERM)
        leaving.supervisor.wait(120)
        left = leaving.left()
        shared.close()
        shared.unlink()
        mine.close()
        mine.unlink()  # raises if it was removed
        assert left == [leaving.segments[0]]


@pytest.mark.parametrize("use", ["cwd", "segment"])
def test_a_folder_is_in_use_where_only_its_cwd_or_segment_is(folder: Path, use: str) -> None:
    """Fails if a process that was given another TMPDIR counts as none of the tree."""
    made = folder / f"{PREFIX}old"
    made.mkdir()
    segment = shared_memory.SharedMemory(create=True, size=4096)
    inode = (SHARED_MEMORY / segment.name).stat().st_ino
    text = f"{inode} {segment.name}\n" if use == "segment" else ""
    (made / ".segments").write_text(text)
    with subprocess.Popen(["sleep", "600"], cwd=made if use == "cwd" else None) as user:
        start_another(folder)
        assert made.exists()
        user.kill()
    segment.close()
    start_another(folder)
    assert not made.exists()
    assert (SHARED_MEMORY / segment.name).exists() == (use == "cwd")
    with contextlib.suppress(FileNotFoundError):
        segment.unlink()


@pytest.mark.parametrize(
    "record", [b"12 psm_\xc3", b"no number\n\n 3\n\xb2 x\n", None], ids=["torn", "odd", "folder"]
)
def test_a_record_that_cannot_be_read_stops_no_start(folder: Path, record: bytes | None) -> None:
    made = folder / f"{PREFIX}old"
    made.mkdir()
    if record is None:
        (made / ".segments").mkdir()
    else:
        (made / ".segments").write_bytes(record)
    start_another(folder)
    assert made.exists() == (record is None)


def test_a_segment_of_any_name_is_removed(folder: Path) -> None:
    """Fails if a name that is no text ends the supervisor, and not its tree."""
    odd = os.fsencode(SHARED_MEMORY) + b"/odd-%d-\xff" % os.getpid()
    script = (
        f"import os, time; f = os.open({odd!r}, os.O_CREAT); print(f, flush=True); time.sleep(9)"
    )
    with subprocess.Popen(
        [*command(0.5, scratch=True), sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(folder)},
    ) as supervisor:
        assert supervisor.stdout is not None
        supervisor.stdout.readline()
        (scratch,) = folder.iterdir()
        until(lambda: b"\xff" in (scratch / ".segments").read_bytes())
        assert supervisor.poll() is None
        supervisor.send_signal(signal.SIGTERM)
        supervisor.wait(120)
    assert not Path(os.fsdecode(odd)).exists()
    assert list(folder.iterdir()) == []


def test_a_folder_that_cannot_be_made_stops_no_start(folder: Path) -> None:
    """Fails if a command does not run because what cleans up after it cannot."""
    # The supervisor beside a housekeeper that can do nothing.
    shutil.copy(tree.__file__, folder / "tree.py")
    (folder / "scratch.py").write_text(
        "def sweep():\n    raise ValueError('odd')\n"
        "def ScratchFolder():\n    raise OSError('full')\n"
    )
    words = [*command(0.5, scratch=True), "echo", "ran"]
    words[2] = str(folder / "tree.py")
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as supervisor:
        assert supervisor.stdout is not None
        assert supervisor.stderr is not None
        assert supervisor.stdout.read() == "ran\n"
        printed = supervisor.stderr.read()
        assert "cannot clean up: ValueError('odd')" in printed
        assert "cannot clean up: OSError('full')" in printed
        assert supervisor.wait(120) == 0


def test_a_folder_in_the_making_is_not_swept(folder: Path) -> None:
    made = folder / f"{PREFIX}new"
    made.mkdir()
    start_another(folder)
    assert made.exists()
    os.utime(made, (0, 0))
    start_another(folder)
    assert not made.exists()


def test_sockets_have_short_paths(folder: Path) -> None:
    """Fails if a long TMPDIR becomes a path that no socket can have."""
    deep = folder / ("d" * 60)
    deep.mkdir()
    words = [*command(0.5, scratch=True), "sh", "-c", "echo $TMPDIR"]
    environment = {**os.environ, "TMPDIR": str(deep)}
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
    ) as supervisor:
        assert supervisor.stdout is not None
        told = supervisor.stdout.read().strip()
    assert told.startswith(f"/tmp/{PREFIX}")
    assert not Path(told).exists()


def test_code_that_torch_has_compiled_outlives_the_tree(folder: Path) -> None:
    """Fails if each server compiles headers anew, or a cache is removed through a link to it."""
    cache = folder / torch_cache().name
    cache.mkdir()
    (cache / "compiled").touch()
    words = [*command(0.5, scratch=True), "sh", "-c", f"cp $TMPDIR/{cache.name}/* {cache}/again"]
    environment = {**os.environ, "TMPDIR": str(folder)}
    with subprocess.Popen(words, stdin=subprocess.PIPE, env=environment) as supervisor:
        assert supervisor.wait(120) == 0
    assert list(folder.iterdir()) == [cache]
    assert {path.name for path in cache.iterdir()} == {"compiled", "again"}
