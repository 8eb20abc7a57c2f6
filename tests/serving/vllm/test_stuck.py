"""Two real vLLM servers, the engine core of one stopped: found, worked around, started again."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from agentrl.engine import Engine
from agentrl.serving import EngineState, TokenClient
from agentrl.serving.keeper import Keeper
from agentrl.serving.vllm import VllmEngine
from agentrl.serving.vllm.http import Http
from agentrl.serving.vllm.launcher import VllmServer, launch_servers, stop_servers
from agentrl.serving.watch import EngineWatch
from agentrl.types import SamplingParams
from tests.serving.tiny_vllm import tiny_command

pytestmark = [pytest.mark.fleet, pytest.mark.slow]

SAMPLING = SamplingParams(max_tokens=40, seed=1)


def core_of(server: VllmServer) -> int:
    """Process id of the engine core among the descendants of a server."""
    parents: dict[int, int] = {}
    names: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
                names[int(entry.name)] = (entry / "cmdline").read_text()
            except OSError:  # it has ended meanwhile
                continue
            parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    found = []
    for pid, name in names.items():
        above = pid
        while above in parents and above != server.pid:
            above = parents[above]
        if above == server.pid and "EngineCore" in name:
            found.append(pid)
    assert len(found) == 1, (found, names)
    return found[0]


class Own:
    """A server that the keeper starts again."""

    def __init__(self, server: VllmServer) -> None:
        self.server, self.name = server, server.name

    async def alive(self) -> bool:
        return self.server.running

    async def start_again(self) -> Engine:
        await self.server.restart()
        return await connected(self.server)


async def connected(server: VllmServer) -> VllmEngine:
    engine = VllmEngine(server.url, name=server.name)
    await engine.connect()
    return engine


async def until(condition: Callable[[], bool], limit_s: float, said: Callable[[], str]) -> None:
    try:
        async with asyncio.timeout(limit_s):
            while not condition():
                await asyncio.sleep(0.1)
    except TimeoutError:
        pytest.fail(said())


async def test_a_stopped_engine_core_is_found_goes_on_and_is_started_again(
    vllm_model_dir: Path, tmp_path: Path
) -> None:
    """Fails if `/health` is believed, which a server with a stopped core answers all the time."""
    command = tiny_command(vllm_model_dir)
    servers = await launch_servers([command, command], log_dir=tmp_path, start_limit_s=300)
    notes: list[str] = []

    def said() -> str:
        return "\n".join([*notes, str(client.stats()), *(server.tail(30) for server in servers)])

    try:
        engines = [await connected(server) for server in servers]
        client = TokenClient(engines, pause_limit_s=8.0)
        watch = asyncio.create_task(
            EngineWatch(client, stuck_after_s=10.0, outage_limit_s=60.0, note=notes.append).run()
        )
        keeping: asyncio.Task[None] | None = None
        first = servers[0].name
        try:
            for prompt in ([5] * 2000, [6] * 2000):  # a long prompt of a healthy server
                assert (await client.generate(prompt, SAMPLING, f"long {prompt[0]}")).ids
            assert notes == []

            core = core_of(servers[0])
            os.kill(core, signal.SIGSTOP)
            turns = [client.generate([9, i], SAMPLING, f"s{i}") for i in range(8)]
            answers = await asyncio.wait_for(asyncio.gather(*turns), 200)
            assert all(len(answer.ids) == 40 for answer in answers), said()
            assert client.active() == [servers[1].name], said()
            assert client.turns_resampled == 4, said()
            assert len(notes) == 1, said()
            front = Http(servers[0].url)
            await front.expect("GET", "/health", limit_s=10)  # the server says that it is well
            await front.close()
            await asyncio.sleep(5)
            assert client.balancer.state(first) is EngineState.QUARANTINED, said()
            os.kill(core, signal.SIGCONT)
            await until(lambda: first in client.active(), 60, said)

            os.kill(core, signal.SIGSTOP)
            keeper = Keeper(client, [Own(server) for server in servers], note=notes.append)
            keeping = asyncio.create_task(keeper.run())
            await client.pause_all()
            assert client.active() == [servers[1].name], said()
            await client.resume_all()
            await until(lambda: first in client.active(), 300, said)
            assert keeper.restarts == {first: 1, servers[1].name: 0}
            assert not Path(f"/proc/{core}").exists(), "the stopped core was left behind"
            assert (await client.generate([1], SAMPLING, "last")).ids
        finally:
            for task in (watch, keeping):
                if task is not None:
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)
            await client.close()
    finally:
        await stop_servers(servers)
