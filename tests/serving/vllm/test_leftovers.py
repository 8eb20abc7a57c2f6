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

from agentrl.processes.scratch import torch_cache
from agentrl.processes.tree import children_of, descendants_of

pytestmark = [pytest.mark.fleet, pytest.mark.slow]

OWNER = """
import asyncio, sys
from pathlib import Path
from agentrl.serving.vllm.launcher import VllmServer
from tests.serving.tiny_vllm import tiny_command

async def main():
    command = tiny_command(Path(sys.argv[1]))
    server = VllmServer(command, name="a", log=Path(sys.argv[2]), start_limit_s=240)
    await server.start()
    print(server.pid, flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    await server.stop()

asyncio.run(main())
"""
"""Starts a server, prints the supervisor's process id, and stops it when it reads a line."""


@pytest.fixture
def folder() -> Iterator[Path]:
    """TMPDIR of the owner, with a path short enough for those of sockets."""
    path = Path(tempfile.mkdtemp(prefix="t-", dir="/tmp"))
    yield path
    shutil.rmtree(path)


def segments() -> set[str]:
    return {path.name for path in Path("/dev/shm").iterdir()}


@pytest.mark.parametrize("victim", ["nobody", "server", "supervisor", "owner"])
def test_nothing_is_left_of_a_server(
    victim: str, folder: Path, vllm_model_dir: Path, tmp_path: Path
) -> None:
    """Fails if what is killed is left to vLLM: 160 MiB and 7 sockets and files for each server."""
    before = segments()
    log = tmp_path / "server.log"
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(vllm_model_dir), str(log)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(folder)},
        cwd=Path(__file__).parents[3],
    ) as owner:
        assert owner.stdin is not None
        assert owner.stdout is not None
        line = owner.stdout.readline()
        assert line, f"the server did not start:\n{log.read_text()[-4000:]}"
        supervisor = int(line)
        tree = [supervisor, *descendants_of(supervisor)]
        made = segments() - before
        (scratch,) = folder.glob("tree-of-agentrl-*")
        assert any(name.startswith("psm_") for name in made), made
        assert len(list(scratch.iterdir())) > 5
        (server,) = children_of(supervisor)
        if victim == "owner":
            owner.kill()
        else:
            chosen = {"server": [server], "supervisor": [supervisor]}
            for pid in chosen.get(victim, ()):
                os.kill(pid, signal.SIGKILL)
            owner.stdin.write(b"stop\n")
            owner.stdin.flush()
            assert owner.wait(120) == 0
    deadline = time.monotonic() + 60
    while left := [pid for pid in tree if Path(f"/proc/{pid}").exists()]:
        assert time.monotonic() < deadline, f"these still run: {left}"
        time.sleep(0.1)
    end = log.read_text()[-2000:]
    assert made & segments() == set(), end
    # What torch has compiled is kept for the next server.
    assert [path for path in folder.iterdir() if path != torch_cache_in(folder)] == [], end


def torch_cache_in(folder: Path) -> Path:
    return folder / torch_cache().name
