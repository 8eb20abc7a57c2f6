"""Requests for servers that meet a broken server, a broken disk, or the end of the run."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from agentrl.config import parse_config
from agentrl.disk.run_directory import RunDir
from agentrl.disk.server_requests import RequestAnswer, ServerAction, ask_run
from agentrl.engine import Engine
from agentrl.errors import EngineError
from agentrl.runtime.assembly.engine_care import beside
from agentrl.runtime.assembly.live_servers import LOOK_S, LiveServers
from agentrl.serving import TokenClient
from agentrl.serving.vllm import VllmEngine
from agentrl.testing import ByteTokenizer, ScriptedEngine
from agentrl.types import SamplingParams


class Server(ScriptedEngine):
    """An engine that may not close."""

    broken = False
    closed = False

    async def close(self) -> None:
        self.closed = True
        await super().close()
        if self.broken:
            raise EngineError("it does not close")


def server(name: str, delay_s: float = 0.0) -> Server:
    return Server(["hi"], ByteTokenizer(), name=name, delay_s=delay_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """A run of engines without a process, whose addresses are `http://NAME:1`."""

    path: Path
    client: TokenClient
    notes: list[str]

    async def ask(self, action: ServerAction, server: str) -> RequestAnswer:
        return await asyncio.to_thread(ask_run, self.path, action, server, limit_s=120)


def locked(tmp_path: Path) -> RunDir:
    config = parse_config(
        {
            "run": {"dir": str(tmp_path), "name": "live"},
            "env": {"target": "x:Y"},
            "dataset": {"source": "x.jsonl"},
            "serving": {"engine": "external", "urls": ["http://a:1"]},
        }
    )
    return RunDir.create(config, base=tmp_path)


@contextlib.asynccontextmanager
async def live(directory: RunDir, *engines: Engine) -> AsyncIterator[Live]:
    client, notes = TokenClient(engines, probe_s=60.0), list[str]()

    async def connect(url: str, name: str) -> Engine:
        return server(name)

    async def fits(url: str) -> None:
        pass

    servers = LiveServers(
        directory.path,
        client,
        connect,
        fits,
        urls={engine.name: f"http://{engine.name}:1" for engine in engines},
        backend="disk",
        note=notes.append,
    )
    try:
        async with beside({"nobody answers any more": servers.run()}):
            yield Live(path=directory.path, client=client, notes=notes)
    finally:
        await client.close()
        directory.close()


async def test_a_request_from_before_the_engines_are_open_is_answered(tmp_path: Path) -> None:
    """Fails if what is asked while a run loads its model is thrown away as of an earlier process,
    or if what was asked of that one is carried out."""
    old = tmp_path / "live" / "requests"
    locked(tmp_path).close()
    old.mkdir()
    (old / "1.ask").write_text('{"action": "remove-server", "server": "a"}')
    (old / "2.answer").write_text("{}")
    directory, _, _ = RunDir.resume(tmp_path / "live")
    assert list(old.iterdir()) == []
    path = directory.path
    asking = asyncio.create_task(
        asyncio.to_thread(ask_run, path, ServerAction.REMOVE, "b", limit_s=120)
    )
    while not list((path / "requests").glob("*.ask")):
        await asyncio.sleep(0.01)
    async with live(directory, server("a"), server("b")):
        assert await asking == RequestAnswer(done=True, text="b at http://b:1 has left")


def test_an_answer_of_a_run_that_then_ends_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if a person is told that nothing changed because the run ended between two looks."""
    directory, looks = locked(tmp_path), 0

    def ends(run: Path) -> bool:
        nonlocal looks
        looks += 1
        for asked in (run / "requests").glob("*.ask"):
            asked.with_suffix(".answer").write_text('{"done": true, "text": "it left"}')
        return looks == 1

    monkeypatch.setattr("agentrl.disk.server_requests._is_alive", ends)
    answer = ask_run(directory.path, ServerAction.REMOVE, "a", limit_s=120)
    assert answer == RequestAnswer(done=True, text="it left")
    assert looks == 2
    directory.close()


async def test_a_broken_server_can_leave_in_an_outage_and_the_only_one_cannot(
    tmp_path: Path,
) -> None:
    a, b = server("a"), server("b")
    async with live(locked(tmp_path), a, b) as run:
        for name in ("a", "b"):
            run.client.quarantine(name, "it is broken")
        a.broken = True
        answer = await run.ask(ServerAction.REMOVE, "a")
        assert answer == RequestAnswer(
            done=True,
            text="a at http://a:1 has left; its connection could not be closed: it does not close",
        )
        assert run.client.names() == ["b"]
        answer = await run.ask(ServerAction.REMOVE, "b")
        assert not answer.done
        assert "b is the only server; add another one first" in answer.text


async def test_a_server_that_leaves_while_the_run_ends_is_closed(tmp_path: Path) -> None:
    a = server("a", delay_s=60.0)
    async with live(locked(tmp_path), a, server("b")) as run:
        turn = asyncio.create_task(run.client.generate([1], SamplingParams(), "s"))
        await asyncio.sleep(0)
        asking = asyncio.create_task(run.ask(ServerAction.REMOVE, "a"))
        while "a" in run.client.names():
            await asyncio.sleep(0.01)
        assert not a.closed
    # Fails if the client forgot it and nobody else closes it.
    assert a.closed
    turn.cancel()
    await asyncio.gather(turn, asking, return_exceptions=True)


async def test_a_disk_that_fails_for_a_while_costs_no_answer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Fails if an error of the disk ends the answers, or if anything is done twice."""
    async with live(locked(tmp_path), server("a")) as run:
        requests = run.path / "requests"
        unreadable = requests / "0.ask"
        unreadable.mkdir(parents=True)
        while "cannot be answered now" not in caplog.text:
            await asyncio.sleep(0.01)
        unreadable.rmdir()
        await asyncio.sleep(2 * LOOK_S)
        answer = requests / "1.answer"
        answer.mkdir()  # nothing can be written in its place
        (requests / "1.ask").write_text('{"action": "add-server", "server": "http://c:1"}')
        while caplog.text.count("cannot be answered now") < 2:
            await asyncio.sleep(0.01)
        await asyncio.sleep(2 * LOOK_S)
        answer.rmdir()
        while not answer.exists():
            await asyncio.sleep(0.01)
        assert run.notes == ["server-0 at http://c:1 joined and serves"]
        assert caplog.text.count("cannot be answered now") == 2


async def test_the_same_server_joins_once_however_it_is_written(tmp_path: Path) -> None:
    """Fails if only text is compared, or only the servers of the config."""
    own = VllmEngine("http://127.0.0.1:8", name="vllm-0")
    directory = locked(tmp_path)
    async with live(directory, server("a")) as run:
        run.client.add_engine(own)
        for url in ("http://127.0.0.1:8/", "http://localhost:8"):
            answer = await run.ask(ServerAction.ADD, url)
            assert "vllm-0 is that server already" in answer.text, answer
        assert (await run.ask(ServerAction.ADD, "http://127.0.0.1:9")).done
        answer = await run.ask(ServerAction.REMOVE, "http://localhost:9")
        assert answer.text == "server-0 at http://127.0.0.1:9 has left"


async def test_a_run_that_ends_with_other_servers_than_its_config_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Fails if a rollback takes servers away that joined, and nobody is told."""
    async with live(locked(tmp_path), server("a"), server("b")) as run:
        await run.ask(ServerAction.ADD, "http://c:1")
        await run.ask(ServerAction.REMOVE, "b")
    assert "server-0 at http://c:1 joined, b at http://b:1 left; if it goes on" in caplog.text
    caplog.clear()
    (tmp_path / "second").mkdir()
    async with live(locked(tmp_path / "second"), server("a")):
        await asyncio.sleep(0.01)
    assert caplog.text == ""


async def test_a_task_beside_the_run_that_fails_is_told_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Fails if a run goes on for days without protection and says so when it ends."""

    async def fail() -> None:
        raise OSError("stale file handle")

    async with beside({"nobody watches any more": fail()}):
        await asyncio.sleep(0.01)
        (record,) = caplog.records
        assert record.levelno == logging.ERROR
        assert "nobody watches any more" in record.message
        assert "stale file handle" in record.message
    assert len(caplog.records) == 1
