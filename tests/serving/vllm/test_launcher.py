"""Servers come up side by side and leave nothing, however they or their parent end."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from agentrl.errors import ConfigError, EngineError
from agentrl.machine.processes.scratch import torch_cache
from agentrl.serving.vllm.command import ServerCommand
from agentrl.serving.vllm.launcher import VllmServer, launch_servers, stop_servers

pytestmark = pytest.mark.slow

FAKE = Path(__file__).with_name("fake_server.py")


def fake(mode: str) -> ServerCommand:
    return ServerCommand(argv=(sys.executable, str(FAKE), mode), env={"FAKE": "1"})


def tree(pid: int) -> list[int]:
    """The process and all below it."""
    found = [pid]
    for one in found:
        path = Path(f"/proc/{one}/task/{one}/children")
        if path.exists():
            found += [int(word) for word in path.read_text().split()]
    return found


def alive(pids: list[int]) -> list[int]:
    living = []
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if state != "Z":
            living.append(pid)
    return living


async def until_gone(pids: list[int], limit_s: float = 120.0) -> None:
    deadline = time.monotonic() + limit_s
    while left := alive(pids):
        assert time.monotonic() < deadline, f"still there: {left}"
        await asyncio.sleep(0.05)


async def until_tree(server: VllmServer, size: int) -> list[int]:
    deadline = time.monotonic() + 120
    while len(pids := tree(server.pid)) < size:
        assert time.monotonic() < deadline, pids
        await asyncio.sleep(0.02)
    return pids


async def test_servers_start_side_by_side_on_ports_of_their_own(tmp_path: Path) -> None:
    told: list[tuple[str, str]] = []
    servers = await launch_servers(
        [fake("serve")] * 3, log_dir=tmp_path, progress=lambda *words: told.append(words)
    )
    assert len({server.port for server in servers}) == 3
    assert all(server.running for server in servers)
    starts = [index for index, (_, text) in enumerate(told) if text.startswith("starting")]
    assert starts == [0, 1, 2], told
    assert ("vllm-1", f"ready at {servers[1].url}") in told
    assert (tmp_path / "vllm-2.log").read_text() == "mode serve\n"
    await stop_servers(servers)
    assert not any(server.running for server in servers)
    await stop_servers(servers)


async def test_stop_ends_processes_that_hide_and_do_not_listen(tmp_path: Path) -> None:
    """Fails if the supervisor signals its process group or its children only."""
    server = VllmServer(fake("nest"), name="a", log=tmp_path / "log", grace_s=0.3)
    await server.start()
    pids = await until_tree(server, 4)
    await server.stop()
    assert alive(pids) == []


@pytest.mark.parametrize("victim", [0, 1], ids=["supervisor", "server"])
async def test_a_killed_server_takes_its_tree_along(tmp_path: Path, victim: int) -> None:
    server = VllmServer(fake("nest" if victim else "serve"), name="a", log=tmp_path / "log")
    await server.start()
    pids = await until_tree(server, 4 if victim else 2)
    os.kill(pids[victim], signal.SIGKILL)
    await until_gone(pids)
    assert not server.running
    await server.stop()


async def test_a_killed_server_starts_again_where_it_was(tmp_path: Path) -> None:
    """Fails if a restart moves a server whose port is free, or insists on a port that is not."""
    server = VllmServer(fake("serve"), name="a", log=tmp_path / "log")
    await server.start()
    port = server.port
    for pid in tree(server.pid):
        os.kill(pid, signal.SIGKILL)
    await server.restart()
    assert server.port == port
    await server.stop()
    with socket.create_server(("127.0.0.1", port)):
        await server.start()
        assert server.port != port
    await server.stop()


async def test_kill_of_the_parent_leaves_no_process(tmp_path: Path) -> None:
    """Fails if the server's life hangs on anything that a SIGKILL of its parent does not end."""
    script = (
        "import asyncio, sys, time\n"
        "from pathlib import Path\n"
        "from agentrl.serving.vllm.command import ServerCommand\n"
        "from agentrl.serving.vllm.launcher import VllmServer\n"
        f"command = ServerCommand(argv=(sys.executable, {str(FAKE)!r}, 'nest'), env={{}})\n"
        f"server = VllmServer(command, name='a', log=Path({str(tmp_path)!r}) / 'l', grace_s=0.3)\n"
        "asyncio.run(server.start())\n"
        "print(server.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        root = int(await asyncio.to_thread(parent.stdout.readline))
        await asyncio.sleep(0.3)
        pids = tree(root)
        assert len(pids) == 4
        parent.kill()
    await until_gone(pids)


async def test_a_server_that_ends_shows_why(tmp_path: Path) -> None:
    server = VllmServer(fake("fail"), name="a", log=tmp_path / "log")
    with pytest.raises(EngineError, match=r"status 1 .*: ValueError: this model has no weights"):
        await server.start()
    assert not server.running


async def test_a_log_that_cannot_be_written_is_the_users(tmp_path: Path) -> None:
    """Fails if a folder in the place of the log file ends the command with a traceback."""
    server = VllmServer(fake("serve"), name="a", log=tmp_path)
    with pytest.raises(ConfigError, match=r"server a with its log at .*: Is a directory; name"):
        await server.start()
    assert not server.running


async def test_a_folder_of_compiled_code_that_cannot_be_made_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if the message is about the log, which is well."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    torch_cache().write_text("no folder")
    server = VllmServer(fake("serve"), name="a", log=tmp_path / "log")
    with pytest.raises(ConfigError, match=r"a with its compiled code in .*: File exists; expected"):
        await server.start()
    assert not server.running


async def test_an_unknown_option_is_the_users(tmp_path: Path) -> None:
    server = VllmServer(fake("option"), name="a", log=tmp_path / "log")
    with pytest.raises(ConfigError, match=r"serving\.args: unrecognized arguments: --frobnicate 3"):
        await server.start()


async def test_a_server_that_never_answers_is_ended(tmp_path: Path) -> None:
    server = VllmServer(fake("hang"), name="a", log=tmp_path / "log", start_limit_s=5)
    start = asyncio.ensure_future(server.start())
    await asyncio.sleep(2)
    pids = tree(server.pid)
    with pytest.raises(EngineError, match=r"(?s)start_timeout_s 5 s.*mode hang"):
        await start
    assert alive(pids) == []


async def test_cancelling_a_start_ends_what_has_started(tmp_path: Path) -> None:
    commands = [fake("serve"), fake("hang")]
    ready = asyncio.Event()

    def progress(name: str, text: str) -> None:
        if text.startswith("ready"):
            ready.set()

    before = tree(os.getpid())
    task = asyncio.ensure_future(launch_servers(commands, log_dir=tmp_path, progress=progress))
    await asyncio.wait_for(ready.wait(), 120)
    pids = [pid for pid in tree(os.getpid()) if pid not in before]
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert alive(pids) == []


async def test_one_failure_stops_the_others(tmp_path: Path) -> None:
    before = set(tree(os.getpid()))
    with pytest.raises(EngineError, match="vllm-1"):
        await launch_servers([fake("serve"), fake("fail")], log_dir=tmp_path)
    assert set(tree(os.getpid())) <= before


async def test_a_port_in_use_is_said(tmp_path: Path, unused_tcp_port: int) -> None:
    with socket.create_server(("127.0.0.1", unused_tcp_port)):
        server = VllmServer(fake("serve"), name="a", log=tmp_path / "log", port=unused_tcp_port)
        with pytest.raises(ConfigError, match=f"{unused_tcp_port}: Address already in use"):
            await server.start()


async def test_a_stranger_on_the_port_is_not_taken_for_the_server(tmp_path: Path) -> None:
    """Fails if any answer on the port counts as a start."""
    stranger = VllmServer(fake("serve"), name="s", log=tmp_path / "s")
    await stranger.start()
    server = VllmServer(fake("hang"), name="a", log=tmp_path / "a", start_limit_s=1.0)
    server._free = lambda port: stranger.port  # type: ignore[method-assign]
    with pytest.raises(EngineError, match="did not answer"):
        await server.start()
    await stranger.stop()
