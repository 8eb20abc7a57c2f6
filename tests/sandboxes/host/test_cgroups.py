"""Cgroups of sandboxes: where they may be made, and that none stays."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from agentrl_sandboxes import BACKENDS
from agentrl_sandboxes.host import cgroups
from agentrl_sandboxes.host.cgroups import GroupHome, group_home, group_name, sweep_groups

from agentrl.sandbox import Outcome, SandboxLimits

V1 = "35 30 0:29 / {mount} rw,relatime - cgroup cgroup rw,memory"
V2 = "31 30 0:26 {root} {mount} rw,relatime - cgroup2 cgroup2 rw"
OTHER = "30 20 0:25 / /sys rw - sysfs sysfs rw"


def proc(place: Path, *, cgroup: str, mounts: list[str]) -> Path:
    """A directory like that of a process in /proc."""
    place.mkdir()
    (place / "cgroup").write_text(cgroup)
    (place / "mountinfo").write_text("\n".join([OTHER, *mounts]) + "\n")
    return place


def test_place_of_version_1_is_our_own(tmp_path: Path) -> None:
    mounts = [V1.format(mount="/cg/memory"), V2.format(mount="/cg/unified", root="/")]
    text = "9:name=systemd:/x\n4:cpu,memory:/docker/one\n0::/\n"
    found = cgroups.group_places(proc(tmp_path / "p", cgroup=text, mounts=mounts))
    assert found == [GroupHome(path=Path("/cg/memory/docker/one"), version=1)]


@pytest.mark.parametrize(
    ("own", "above", "expected"),
    [
        ("memory pids", "", ["app/run"]),
        ("", "cpu memory", ["app"]),
        ("cpu", "cpu", []),
        ("memory", "memory", ["app/run", "app"]),
    ],
)
def test_place_of_version_2_passes_its_controller_on(
    tmp_path: Path, own: str, above: str, expected: list[str]
) -> None:
    # Fails if a cgroup with processes in it is taken: the kernel refuses to bound what is below.
    home = tmp_path / "cg"
    (home / "app" / "run").mkdir(parents=True)
    (home / "app" / "cgroup.subtree_control").write_text(above + "\n")
    (home / "app" / "run" / "cgroup.subtree_control").write_text(own + "\n")
    mounts = [V2.format(mount=home, root="/user")]
    found = cgroups.group_places(proc(tmp_path / "p", cgroup="0::/user/app/run\n", mounts=mounts))
    assert found == [GroupHome(path=home / place, version=2) for place in expected]


def test_no_cgroups_is_no_error(tmp_path: Path) -> None:
    assert cgroups.group_places(tmp_path / "missing") == []
    assert cgroups.group_places(proc(tmp_path / "p", cgroup="0::/x\n", mounts=[])) == []


def test_only_what_the_dead_have_left_is_swept(tmp_path: Path) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    mine = group_name()
    parts = mine.split("-")
    dead = "-".join([*parts[:2], str(ended.pid), "1", "0"])
    elsewhere = "-".join([parts[0], "1", str(ended.pid), "1", "0"])
    for name in (mine, dead, elsewhere, "agentrl-app", "other"):
        (tmp_path / name).mkdir()
    home = GroupHome(path=tmp_path, version=2)
    assert sweep_groups(home) == [tmp_path / dead]
    assert {path.name for path in tmp_path.iterdir()} == {mine, elsewhere, "agentrl-app", "other"}


HOST = """
import asyncio, os, signal, sys
from agentrl.sandbox import SandboxLimits
from agentrl_sandboxes import BACKENDS

async def main():
    backend = BACKENDS[sys.argv[1]]()
    boxes = [await backend.create(SandboxLimits()) for _ in range(2)]
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


def groups(pid: int) -> set[str]:
    """Cgroups that a process has made below our home."""
    home = group_home()
    assert isinstance(home, GroupHome)
    return {path.name for path in home.path.glob(f"agentrl-*-{pid}-*")}


@pytest.mark.skipif(isinstance(group_home(), str), reason="no cgroup can be made here")
@pytest.mark.parametrize("backend_name", ["bubblewrap", "userns", "process"], indirect=True)
async def test_a_cgroup_comes_and_goes_with_its_sandbox(backend_name: str) -> None:
    # Fails if a supervisor does not join, if a program inherits the files of the cgroup, or if the
    # next process does not sweep what a kill has left.
    home = group_home()
    assert isinstance(home, GroupHome)
    before = groups(os.getpid())
    backend = BACKENDS[backend_name]()
    sandbox = await backend.create(SandboxLimits())
    (name,) = groups(os.getpid()) - before
    try:
        files = await sandbox.exec(("sh", "-c", "ls /proc/self/fd | wc -l; sleep 0.2"))
        assert files.stdout.strip() == "4"
        inside = (home.path / name / "cgroup.procs").read_text().split()
        assert inside
        assert os.getpid() not in map(int, inside)
        hog = "x = [bytearray(1 << 20) for _ in range(1000)]"
        assert (await sandbox.exec(("python3", "-c", hog))).outcome is not Outcome.OK
    finally:
        await backend.close()
    assert groups(os.getpid()) == before
    killed = subprocess.Popen([sys.executable, "-c", HOST, backend_name])
    assert killed.wait(timeout=120) == -signal.SIGKILL
    for _ in range(2400):
        if not groups(killed.pid):
            break
        sweep_groups(home)
        await asyncio.sleep(0.05)
    assert not groups(killed.pid)
