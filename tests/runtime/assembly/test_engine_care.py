"""What looks after the engines of a run runs as long as the run, and no longer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentrl.config import parse_config
from agentrl.config.fleet import ServingSection
from agentrl.engine import Engine
from agentrl.errors import EngineError, Outage
from agentrl.runtime.assembly.engine_care import closing_engines, engine_care, pause_limit_s
from agentrl.runtime.assembly.engines import make_client
from agentrl.serving import watch as watching
from agentrl.serving.client import PAUSE_LIMIT_S, TokenClient
from agentrl.testing import ByteTokenizer, ScriptedEngine
from agentrl.types import SamplingParams


def section(**serving: Any) -> ServingSection:
    data = {"env": {"target": "x:Y"}, "dataset": {"source": "x.jsonl"}, "serving": serving}
    return parse_config(data).serving


def engine(name: str, delay_s: float = 0.0) -> ScriptedEngine:
    return ScriptedEngine(["hi"], ByteTokenizer(), name=name, delay_s=delay_s)


class Own:
    """A server that starts again at once."""

    name = "a"

    async def alive(self) -> bool:
        return True

    async def start_again(self) -> Engine:
        return engine("a")


async def test_a_stuck_server_of_the_run_is_taken_out_and_started_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Fails if the limit reaches nobody, or if watch or keeper does not run."""
    monkeypatch.setattr(watching, "STUCK_AFTER_S", 0.2)
    serving = section(engine="vllm")
    notes: list[str] = []
    client = make_client(
        [engine("a", delay_s=600)], wait_s=30, pause_limit_s=pause_limit_s(serving)
    )
    before = asyncio.all_tasks()
    async with engine_care(client, serving, note=notes.append, kept=[Own()]):
        turn = client.generate([1], SamplingParams(), "s")
        assert (await asyncio.wait_for(turn, 120)).ids
    assert [note.split(":")[0] for note in notes if note.startswith("a is")] == [
        "a is stuck, its turns go to other engines",
        "a is started again",
    ]
    await client.close()
    assert asyncio.all_tasks() <= before


async def test_foreign_servers_are_watched_and_the_embedded_engine_is_not() -> None:
    urls = section(engine="external", urls=["http://h:1"])
    assert pause_limit_s(urls) == watching.STUCK_AFTER_S
    assert pause_limit_s(section(engine="embedded")) == PAUSE_LIMIT_S
    client = make_client([engine("a")], wait_s=0)
    for serving, tasks in ((urls, 1), (section(engine="embedded"), 0)):
        before = asyncio.all_tasks()
        async with engine_care(client, serving, note=print):
            assert len(asyncio.all_tasks() - before) == tasks
    await client.close()


async def test_an_engine_that_does_not_close_hides_no_error() -> None:
    """Fails if a run whose engine broke ends with the failure of its close as the reason."""

    class Unclosable(ScriptedEngine):
        async def close(self) -> None:
            raise RuntimeError("it is broken")

    def client() -> TokenClient:
        return make_client([Unclosable(["hi"], ByteTokenizer())], wait_s=0)

    with pytest.raises(Outage, match="no engine"):
        async with closing_engines(client()):
            raise Outage("no engine")
    with pytest.raises(EngineError, match="close failed"):
        async with closing_engines(client()):
            pass
