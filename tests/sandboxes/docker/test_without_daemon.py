"""Parts of the Docker backend that need no daemon."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import struct
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest
from agentrl_sandboxes.docker.address import Address, find_address
from agentrl_sandboxes.docker.attach import AttachProtocol
from agentrl_sandboxes.docker.client import Client
from agentrl_sandboxes.docker.failures import unreachable
from agentrl_sandboxes.docker.hardening import Container, container_request
from agentrl_sandboxes.guest.program import LATER_LEADERS
from agentrl_sandboxes.host.leases import LEASE, OWNER, is_over, labels, own_name

from agentrl.errors import ConfigError, SandboxError, SandboxUnavailable
from agentrl.sandbox import SandboxLimits

HERE = Address(url="unix:///run/docker.sock", origin="test")


def frame(stream: int, data: bytes) -> bytes:
    return struct.pack(">BxxxL", stream, len(data)) + data


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 9, 1000])
async def test_frames_of_the_daemon_may_be_cut_anywhere(size: int) -> None:
    # Fails if a header or a frame that is split over two reads is dropped or taken twice.
    reader = asyncio.StreamReader()
    protocol = AttachProtocol(reader, asyncio.get_running_loop())
    wire = b"HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\n\r\n"
    wire += frame(1, b"one") + frame(2, b"trouble") + frame(1, b"") + frame(1, b"x" * 700)
    for at in range(0, len(wire), size):
        protocol.data_received(wire[at : at + size])
    reader.feed_eof()
    await protocol.accepted
    assert await reader.read() == b"one" + b"x" * 700
    assert bytes(protocol.errors) == b"trouble"


async def test_a_refused_attach_says_what_the_daemon_said() -> None:
    protocol = AttachProtocol(asyncio.StreamReader(), asyncio.get_running_loop())
    protocol.data_received(b'HTTP/1.1 404 Not Found\r\n\r\n{"message":"No such container: x"}')
    with pytest.raises(SandboxError, match=r"404 Not Found.*No such container"):
        await protocol.accepted


def test_address_is_that_of_the_docker_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    meta = tmp_path / ".docker/contexts/meta" / sha256(b"far").hexdigest() / "meta.json"
    meta.parent.mkdir(parents=True)
    meta.write_text(json.dumps({"Endpoints": {"docker": {"Host": "tcp://[::1]:2375"}}}))
    settings = tmp_path / ".docker/config.json"
    settings.write_text(json.dumps({"currentContext": "far"}))
    far = find_address()
    assert (far.host_port, far.socket_path, far.origin) == (("::1", 2375), "", "context 'far'")
    monkeypatch.setenv("DOCKER_HOST", "unix:///tmp/x.sock")
    assert find_address().socket_path == "/tmp/x.sock"
    monkeypatch.setenv("DOCKER_HOST", "ssh://somewhere")
    with pytest.raises(ConfigError, match=r"DOCKER_HOST is 'ssh://somewhere', expected unix"):
        find_address()
    monkeypatch.delenv("DOCKER_HOST")
    monkeypatch.setenv("DOCKER_CONTEXT", "near")
    with pytest.raises(ConfigError, match="no context 'near'"):
        find_address()
    monkeypatch.delenv("DOCKER_CONTEXT")
    settings.write_text("{")
    with pytest.raises(ConfigError, match=r"config\.json is not JSON"):
        find_address()


def test_messages_say_how_to_reach_a_daemon() -> None:
    denied = unreachable("docker", HERE, PermissionError(errno.EACCES, "denied"), known=False)
    assert isinstance(denied, SandboxUnavailable)
    assert "usermod -aG docker" in str(denied)
    nobody = unreachable("docker", HERE, FileNotFoundError(errno.ENOENT, "No such"), known=False)
    assert isinstance(nobody, SandboxUnavailable)
    assert "/run/docker.sock" in str(nobody)
    assert "systemctl start docker" in str(nobody)
    # Once it has answered, its absence may pass, and must not count as a wrong config.
    gone = unreachable("docker", HERE, ConnectionRefusedError(errno.ECONNREFUSED, "x"), known=True)
    assert not isinstance(gone, SandboxUnavailable)


async def test_no_daemon_is_found_at_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    client = Client()
    with pytest.raises(SandboxUnavailable, match=r"unix:///nowhere/docker\.sock \(DOCKER_HOST\)"):
        await client.image("agentrl-sandbox")
    await client.aclose()


def test_a_container_is_over_when_its_owner_is_dead_or_its_time_is_up() -> None:
    # Fails if a reused process id counts as the owner, or if an owner whom we cannot see, on
    # another machine or in another process namespace, counts as dead.
    now = 1_000_000_000.0
    mine = labels(SandboxLimits())
    assert not is_over(mine, now=0.0)
    dead = subprocess.run(
        [sys.executable, "-c", "from agentrl_sandboxes.host.leases import *; print(own_name())"],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    ).stdout.strip()
    fresh = {LEASE: f"{now + 10:.0f}"}
    assert is_over({OWNER: dead, **fresh}, now=now)
    reused = own_name().rpartition(":")[0] + ":1"
    assert is_over({OWNER: reused, **fresh}, now=now)
    elsewhere = "another-boot:" + dead.partition(":")[2]
    assert not is_over({OWNER: elsewhere, **fresh}, now=now)
    assert is_over({OWNER: elsewhere, **fresh}, now=now + 20)
    assert not is_over({OWNER: "garbage", LEASE: "0"}, now=now)
    assert not is_over({}, now=now)


def test_the_request_names_every_wall() -> None:
    limits = SandboxLimits(memory_bytes=2**28, disk_bytes=2**24, cpus=0.5, processes=9)
    wanted = Container(image="i", command=("x",), uid=77, limits=limits, labels={})
    request = container_request(wanted)
    host = request["HostConfig"]
    assert (request["User"], request["StdinOnce"], host["AutoRemove"]) == ("77:77", True, True)
    assert (host["NetworkMode"], host["CapDrop"], host["ReadonlyRootfs"]) == ("none", ["ALL"], True)
    assert host["SecurityOpt"] == ["no-new-privileges"]
    assert host["Memory"] == host["MemorySwap"] > limits.memory_bytes + 3 * limits.disk_bytes
    assert (host["NanoCpus"], host["IpcMode"], host["LogConfig"]["Type"]) == (
        500_000_000,
        "private",
        "none",
    )
    assert limits.processes + LATER_LEADERS < host["PidsLimit"] < limits.processes + 256
    for options in host["Tmpfs"].values():
        assert {"nosuid", "nodev", f"size={2**24}", "uid=77"} <= set(options.split(","))
