"""Servers join and leave while turns are in flight, and no turn notices."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from agentrl.cli.simulate.fleet.fake_fleet import fake_fleet
from agentrl.cli.simulate.fleet.fake_servers import FakeTurn
from agentrl.config import parse_config
from agentrl.config.plan import plan_run
from agentrl.disk.run_directory import RunDir
from agentrl.disk.server_requests import RequestAnswer, ServerAction, ask_run
from agentrl.errors import ConfigError, RunError
from agentrl.runtime.assembly.live_servers import live_servers
from agentrl.serving import TokenClient
from agentrl.serving.vllm import VllmEngine
from agentrl.sync import WeightSync
from agentrl.sync.disk.disk import DiskSender
from agentrl.types import SamplingParams

TIMES = 20
SAMPLING = SamplingParams(max_tokens=8, seed=1, stop_token_ids=(9,))


@pytest.fixture(scope="module")
def urls() -> Iterator[list[str]]:
    """Addresses of servers in another process, which answer as vLLM does and know no model."""
    turn = FakeTurn(seconds=0.02, ids=[1, 2, 9], max_context_tokens=64)
    with fake_fleet(3, turn, conversations=100) as fleet:
        yield list(fleet.urls)


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """A run that has engines and nothing else."""

    path: Path
    client: TokenClient
    sync: WeightSync

    async def ask(self, action: ServerAction, server: str) -> RequestAnswer:
        return await asyncio.to_thread(ask_run, self.path, action, server, limit_s=30)

    async def push(self, version: int) -> None:
        await self.sync.push(lambda: [("w", torch.zeros(4))], version)


async def fits(url: str) -> None:
    if url.endswith("//stranger:1"):
        raise ConfigError("another model")


@contextlib.asynccontextmanager
async def live(tmp_path: Path, urls: list[str], *, backend: str = "disk") -> AsyncIterator[Live]:
    config = parse_config(
        {
            "run": {"dir": str(tmp_path), "name": "live"},
            "env": {"target": "x:Y"},
            "dataset": {"source": "x.jsonl"},
            "serving": {"engine": "external", "urls": urls},
        }
    )
    directory = RunDir.create(config, base=tmp_path)
    engines = [VllmEngine(url, name=f"server-{i}") for i, url in enumerate(urls)]
    for engine in engines:
        await engine.connect()
        await engine.adopt_version(0)
    client = TokenClient(engines, probe_s=0.05)
    sync = WeightSync(client, DiskSender(tmp_path / "weights"))
    notes: list[str] = []
    try:
        async with live_servers(
            plan_run(config, tmp_path).engines,
            client,
            directory.path,
            fits,
            backend=backend,
            note=notes.append,
        ):
            one = Live(path=directory.path, client=client, sync=sync)
            await one.push(1)
            yield one
    finally:
        await sync.close()
        await client.close()
        directory.close()


async def test_servers_join_and_leave_twenty_times_under_turns_and_syncs(
    tmp_path: Path, urls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if a turn is lost with a server that leaves, or if one serves with older weights."""
    for module in ("runtime.assembly.live_servers", "disk.server_requests"):
        monkeypatch.setattr(f"agentrl.{module}.LOOK_S", 0.02)
    first, second, third = urls
    turns = 0
    async with live(tmp_path, [first, second]) as run:

        async def talk(index: int) -> None:
            nonlocal turns
            for number in range(1_000_000):
                before = run.client.balancer.routed().total
                oldest = min(run.client.engine(name).version for name in run.client.active())
                answer = await run.client.generate([1, 2], SAMPLING, f"s{index}-{number // 5}")
                assert run.client.balancer.routed().total > before
                assert set(answer.policy_versions) <= set(range(oldest, version + 1))
                turns += 1

        version = 1
        talking = [asyncio.create_task(talk(index)) for index in range(16)]
        served = 0
        for time in range(TIMES):
            answer = await run.ask(ServerAction.ADD, third + "/" * (time % 2))
            assert answer == RequestAnswer(done=True, text=f"server-2 at {third} joined and serves")
            seen = turns
            while turns < seen + 64:
                await asyncio.sleep(0.01)
                for task in talking:
                    assert not task.done(), task
            served += run.client.stats()["server-2"].served.turns
            version += 1
            await run.push(version)
            assert {run.client.engine(name).version for name in run.client.names()} == {version}
            answer = await run.ask(ServerAction.REMOVE, third if time % 2 else "server-2")
            assert answer == RequestAnswer(done=True, text=f"server-2 at {third} has left")
            assert run.client.names() == ["server-0", "server-1"]
        for task in talking:
            assert not task.done(), task
            task.cancel()
        await asyncio.gather(*talking, return_exceptions=True)
        assert served > TIMES
        assert run.client.turns_resampled == 0
        counts = run.client.counters()
        assert counts["serving/failures"] == counts["serving/refusals"] == 0
        assert list((run.path / "requests").iterdir()) == []
    with pytest.raises(RunError, match="no process runs in"):
        await run.ask(ServerAction.ADD, third)


async def test_what_cannot_be_is_refused_and_changes_nothing(
    tmp_path: Path, urls: list[str]
) -> None:
    """Fails if a wrong address, a stranger or the last server changes the fleet."""
    first, second, _ = urls
    async with live(tmp_path, [first], backend="shm") as run:
        cases = [
            (ServerAction.ADD, first, "server-0 is that server already"),
            (ServerAction.ADD, first.replace("127.0.0.1", "localhost"), "server-0 is that server"),
            (ServerAction.ADD, "localhost", "not the address of a vLLM server: http://host:port"),
            (ServerAction.ADD, "http://127.0.0.1:9", "no connection"),
            (ServerAction.ADD, "http://10.9.8.7:1", "'shm', which reaches this machine only"),
            (ServerAction.REMOVE, first, "server-0 is the last server that serves; add another"),
            (ServerAction.REMOVE, second, f"there are: server-0 at {first}"),
        ]
        for action, server, why in cases:
            answer = await run.ask(action, server)
            assert not answer.done
            assert why in answer.text, answer.text
        assert run.client.names() == ["server-0"]
        # A file that is no request, and one of whoever has given up, end nothing.
        (run.path / "requests" / "0.ask").write_text("{")
        (run.path / "requests" / "1.ask").write_text('{"action": "fly", "server": ""}')
        assert (await run.ask(ServerAction.ADD, second)).done
        assert run.client.active() == ["server-0", "server-1"]
        assert (await run.ask(ServerAction.REMOVE, first)).done
        assert run.client.active() == ["server-1"]
    (tmp_path / "other").mkdir()
    async with live(tmp_path / "other", [first]) as run:
        answer = await run.ask(ServerAction.ADD, "http://stranger:1")
        assert answer == RequestAnswer(
            done=False, text="add-server http://stranger:1: another model"
        )


async def test_runs_without_servers_or_without_a_process_say_so(tmp_path: Path) -> None:
    config = parse_config(
        {
            "run": {"dir": str(tmp_path), "name": "embedded"},
            "env": {"target": "x:Y"},
            "dataset": {"source": "x.jsonl"},
        }
    )
    directory = RunDir.create(config, base=tmp_path)
    with pytest.raises(RunError, match="trainer's own weights"):
        ask_run(directory.path, ServerAction.ADD, "http://h:1")
    directory.close()
    with pytest.raises(RunError, match="not a run directory"):
        ask_run(tmp_path / "none", ServerAction.ADD, "http://h:1")
