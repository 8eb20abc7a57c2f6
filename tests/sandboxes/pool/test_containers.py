"""Containers behind a pool: forked, wiped and lent again, and none left."""

from __future__ import annotations

import asyncio
import subprocess

import pytest
from agentrl_sandboxes import DockerBackend, PooledBackend
from agentrl_sandboxes.host.leases import OWNER, own_name

from agentrl.errors import SandboxError
from agentrl.sandbox import Sandbox, SandboxLimits, SandboxSpec

pytestmark = pytest.mark.docker

LIMITS = SandboxLimits(memory_bytes=96 * 2**20, disk_bytes=16 * 2**20)


def containers() -> list[str]:
    """Ids of the containers of this process, the newest first."""
    command = ["docker", "ps", "-q", "--filter", f"label={OWNER}={own_name()}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


async def test_containers_are_forked_wiped_and_lent_again() -> None:
    """Fails if a wipe leaves anything in a writable place, or if a killed container comes back."""
    calls: list[str] = []

    async def prepare(sandbox: Sandbox) -> None:
        calls.append("once")
        await sandbox.write_file("repo/a.py", b"print(1)")

    spec = SandboxSpec(key="task", prepare=prepare)
    mess = "cd repo; for d in . /tmp /dev/shm; do echo x > $d/left; done; sleep 99 & cat a.py"
    look = "find . /tmp /dev/shm -type f; cat /proc/[0-9]*/comm | grep -c sleep"

    async def rollout(index: int) -> tuple[str, bool]:
        sandbox = await pool.take(spec, LIMITS, timeout_s=30)
        found = (await sandbox.exec(("sh", "-c", look))).stdout
        assert (await sandbox.exec(("sh", "-c", mess))).stdout == "print(1)"
        await sandbox.close()
        return found, sandbox.origin.reused

    pool = PooledBackend(DockerBackend(), max_open=2, max_uses=4)
    try:
        ends = await asyncio.gather(*map(rollout, range(6)))
        assert [found for found, _ in ends] == ["./repo/a.py\n0\n"] * 6
        assert sum(reused for _, reused in ends) >= 3
        assert calls == ["once"]
        broken = await pool.take(spec, LIMITS)
        for container in containers():
            subprocess.run(["docker", "kill", container], check=True, capture_output=True)
        with pytest.raises(SandboxError):
            await broken.exec(("true",))
        await broken.close()
        # Idle ones died as well, and none of them is handed out.
        after = await asyncio.gather(*map(rollout, range(2)))
        assert [found for found, _ in after] == ["./repo/a.py\n0\n"] * 2
    finally:
        await pool.close()
    for _ in range(2400):
        if not containers():
            return
        await asyncio.sleep(0.05)
    raise AssertionError("containers are left")
