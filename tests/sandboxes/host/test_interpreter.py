"""The packed interpreter: complete, the same each time, and independent of the machine's files."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

from agentrl_sandboxes.host.channel import guest_modules
from agentrl_sandboxes.host.interpreter import PACKED_ENVIRONMENT, START, packed_interpreter


def names() -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(packed_interpreter().archive())) as archive:
        return archive.getnames()


def test_last_member_is_the_start() -> None:
    # A volume counts as full once it is there.
    assert names()[-1] == START


def test_digest_is_the_same_in_each_process() -> None:
    # Fails if times or orders of this machine are in it: each process would fill a volume.
    script = "from agentrl_sandboxes.host.interpreter import *; print(packed_interpreter().digest)"
    other = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": "7"},
    )
    assert other.stdout.strip() == packed_interpreter().digest


def test_it_holds_nothing_of_ours_and_little_of_the_library() -> None:
    found = names()
    assert not [name for name in found if "agentrl" in name or name.endswith(".py")]
    assert not [name for name in found if "/" + "json" in name or "/socket" in name]
    assert len(found) < 80


def test_it_runs_by_its_own_files(tmp_path: Path) -> None:
    # Fails if a module or a library is taken from where this machine has it.
    packed = packed_interpreter()
    with tarfile.open(fileobj=io.BytesIO(packed.archive())) as archive:
        # Python 3.11.2 of Debian 12 has no filters, and later ones warn without one.
        filtered = {"filter": "tar"} if hasattr(tarfile, "tar_filter") else {}
        archive.extractall(tmp_path, **filtered)
    command = packed.command(str(tmp_path))
    script = (
        "import sys, os, ctypes, select, resource, fcntl\n"
        "maps = {line.split()[-1] for line in open('/proc/self/maps') if '/' in line}\n"
        "print(sys.prefix, sys.path, *sorted(p for p in maps if not p.startswith(sys.argv[1])))"
    )
    run = [*command[: command.index("-c")], "-c", script, str(tmp_path)]
    done = subprocess.run(run, capture_output=True, text=True, env=PACKED_ENVIRONMENT, check=True)
    assert done.stderr == ""
    prefix, *rest = done.stdout.split()
    assert prefix == str(tmp_path)
    assert all(str(tmp_path) in word for word in rest), done.stdout


def test_modules_of_the_guest_are_compiled_for_it() -> None:
    assert all(not isinstance(code, str) or code == "" for _, code in guest_modules())
