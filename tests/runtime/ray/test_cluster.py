"""A run on a cluster that somebody else has started."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentrl.config import RunConfig, load_config
from agentrl.config.fleet import RayRuntime, ServingSection
from agentrl.disk.run_directory import RunDir
from agentrl.errors import ConfigError
from agentrl.runtime.ray.cluster import check_cluster
from agentrl.runtime.records import OpenStages
from tests.runtime.ray.ray_runs import children, drive, gone
from tests.runtime.tiny_project import write_project

pytestmark = [pytest.mark.ray, pytest.mark.slow]


def sections(config: RunConfig) -> tuple[RayRuntime, ServingSection]:
    return config.ray, config.serving


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`ray start --head` with three CPUs; its address."""
    port, client, agent = free_ports(3)
    ray = Path(sys.executable).with_name("ray")
    command = [
        *(str(ray), "start", "--head", "--block", "--num-cpus=3", "--include-dashboard=false"),
        *(f"--port={port}", f"--ray-client-server-port={client}", "--disable-usage-stats"),
        *(f"--dashboard-agent-listen-port={agent}", "--object-store-memory=200000000"),
        f"--temp-dir={tmp_path_factory.mktemp('r')}",
    ]
    log = tmp_path_factory.mktemp("head") / "head.txt"
    # Whoever joins by an address asks for a token as the head does, and Ray keeps the mode of a
    # process from its first cluster on. A cluster of our own has a token, so the head has it, too.
    os.environ["RAY_AUTH_MODE"] = "token"
    subprocess.run([ray, "get-auth-token", "--generate"], check=True, capture_output=True)
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True)
    try:
        for _ in range(600):
            if b"Ray runtime started" in log.read_bytes():
                break
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.1)
                pytest.fail(log.read_text())
        yield f"127.0.0.1:{port}"
    finally:
        below = children(process.pid)
        process.terminate()
        process.wait(120)
        for pid in below:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert gone(below)


async def test_a_run_joins_a_cluster_and_leaves_it_as_it_was(head: str, tmp_path: Path) -> None:
    """Fails if a run starts a cluster of its own, or if its actors stay when it has ended."""
    runtime = {"kind": "ray", "rollout_workers": 2, "address": head}
    path = write_project(tmp_path, train__steps=2, runtime=runtime)
    assert "3 CPU on the cluster" in await check_cluster(*sections(load_config(path)))
    large = load_config(path, ("runtime.rollout_workers=7", "runtime.gpus=1"))
    with pytest.raises(ConfigError, match="needs 8 CPU, found 3; needs 1 GPU, found 0"):
        await check_cluster(*sections(large))
    pids: list[int] = []

    async def watch(opened: OpenStages, run_dir: RunDir) -> None:
        pids.extend(int(place.split()[3]) for place in opened.actor_lines)

    result = await drive(path, watch=watch)
    assert result.steps == 2
    assert len(pids) == 3
    assert gone(pids)
    assert "3 CPU on the cluster" in await check_cluster(*sections(load_config(path)))


async def test_what_cannot_be_placed_is_said_and_not_waited_for(head: str, tmp_path: Path) -> None:
    """Fails if a placement that never comes is waited for, or named without what is there."""
    path = write_project(tmp_path, runtime={"kind": "ray", "rollout_workers": 7, "address": head})
    with pytest.raises(ConfigError, match=r"8 CPU in 8 bundles .* the cluster has 3 CPU"):
        await drive(path, "serving.start_timeout_s=2")
