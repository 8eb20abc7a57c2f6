"""A real vLLM server leaves no segment, semaphore, socket or file, however it or its owner ends."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentrl.machine.processes.scratch import torch_cache
from agentrl.machine.processes.tree import children_of, descendants_of

pytestmark = [pytest.mark.fleet, pytest.mark.slow]

OWNER = """
import asyncio, dataclasses, sys
from pathlib import Path
from agentrl.serving.vllm.launcher import launch_servers
from tests.serving.tiny_vllm import tiny_command

async def main():
    command = tiny_command(Path(sys.argv[1]))
    # As servers of several devices have it: segments carry what their processes say.
    mp = (*command.argv, "--distributed-executor-backend", "mp")
    command = dataclasses.replace(command, argv=mp)
    servers = await launch_servers([command] * 2, log_dir=Path(sys.argv[2]), start_limit_s=240)
    print(*[server.pid for server in servers], flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    await servers[0].stop()
    print("stopped", flush=True)
    await asyncio.to_thread(sys.stdin.readline)

asyncio.run(main())
"""
"""Starts two servers, prints their supervisors' process ids, and stops the first when it reads a
line."""


@pytest.fixture
def folder() -> Iterator[Path]:
    """TMPDIR of the owner, with a path short enough for those of sockets."""
    path = Path(tempfile.mkdtemp(prefix="t-", dir="/tmp"))
    yield path
    shutil.rmtree(path)


def segments() -> set[str]:
    return {path.name for path in Path("/dev/shm").iterdir()}


def scratch_of(supervisor: int) -> Path:
    """The private folder of a server's tree."""
    (server,) = children_of(supervisor)
    words = Path(f"/proc/{server}/environ").read_bytes().split(b"\0")
    (name,) = [word[len(b"TMPDIR=") :] for word in words if word.startswith(b"TMPDIR=")]
    return Path(os.fsdecode(name))


def until_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + 60
    while left := [pid for pid in pids if Path(f"/proc/{pid}").exists()]:
        assert time.monotonic() < deadline, f"these still run: {left}"
        time.sleep(0.1)


def test_nothing_is_left_of_a_killed_server_and_of_a_killed_owner(
    folder: Path, vllm_model_dir: Path, tmp_path: Path
) -> None:
    """Fails if what is killed is left to vLLM: 160 MiB and 7 sockets and files for each server.

    `tests/machine/processes/test_scratch.py` ends trees in every other way.
    """
    before = segments()
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(vllm_model_dir), str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(folder)},
        cwd=Path(__file__).parents[3],
    ) as owner:
        assert owner.stdin is not None
        assert owner.stdout is not None

        def logs() -> str:
            return "\n".join(path.read_text()[-3000:] for path in tmp_path.glob("*.log"))

        line = owner.stdout.readline()
        assert line, f"the servers did not start:\n{logs()}"
        first, second = map(int, line.split())
        trees = [[pid, *descendants_of(pid)] for pid in (first, second)]
        scratches = [scratch_of(pid) for pid in (first, second)]
        assert sorted(folder.glob("tree-of-agentrl-*")) == sorted(scratches)
        assert all(len(list(scratch.iterdir())) > 5 for scratch in scratches)
        made = segments() - before
        assert len([name for name in made if name.startswith("psm_")]) >= 2, made

        (server,) = children_of(first)
        os.kill(server, signal.SIGKILL)
        owner.stdin.write(b"stop\n")
        owner.stdin.flush()
        assert owner.stdout.readline() == b"stopped\n", logs()
        until_gone(trees[0])
        assert not scratches[0].exists()
        kept = made & segments()
        assert 0 < len(kept) < len(made), "segments of one server alone are removed"

        owner.kill()
        until_gone(trees[1])
    assert made & segments() == set(), logs()
    # What torch has compiled is kept for the next server.
    assert [path for path in folder.iterdir() if path.name != torch_cache().name] == [], logs()
