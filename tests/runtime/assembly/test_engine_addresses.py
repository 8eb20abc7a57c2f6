"""A worker follows the engines of its driver: what one of them does changes nothing for others."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentrl.cli.simulate.fleet.fake_fleet import fake_fleet
from agentrl.cli.simulate.fleet.fake_servers import FakeTurn
from agentrl.config import parse_config
from agentrl.config.plan import plan_run
from agentrl.errors import EngineError, EngineRefused
from agentrl.runtime.assembly.engine_addresses import EngineAddress, follow
from agentrl.runtime.assembly.rollout_host import RolloutHost
from agentrl.serving import TokenClient
from agentrl.testing import ByteTokenizer, ScriptedEngine
from agentrl.types import ImageSpan, SamplingParams

SAMPLING = SamplingParams(max_tokens=8, seed=1, stop_token_ids=(9,))


@pytest.fixture(scope="module")
def urls() -> Iterator[list[str]]:
    with fake_fleet(
        2, FakeTurn(seconds=0.0, ids=[1, 9], max_context_tokens=64), conversations=8
    ) as fleet:
        yield list(fleet.urls)


def entry(name: str, address: str, **more: str) -> EngineAddress:
    return EngineAddress(name=name, address=address, max_context_tokens=64, **more)  # pyright: ignore[reportArgumentType]


def engine(name: str, delay_s: float = 0.0, *, fails: bool = False) -> ScriptedEngine:
    error = EngineError("connection reset") if fails else None
    return ScriptedEngine(
        ["hi"],
        ByteTokenizer(),
        name=name,
        delay_s=delay_s,
        version=-1,
        fail=lambda number, session: error,
    )


async def test_a_server_that_cannot_be_reached_changes_nothing_for_the_others(
    urls: list[str], unused_tcp_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if an engine that left stays, if one that answers is not used, or if it is connected
    again with every try of the others, which takes its turns away."""
    monkeypatch.delenv("AGENTRL_LEAN_SECRET", raising=False)
    client = TokenClient([engine("old")])
    here = entry("here", urls[0])
    away = entry("away", f"http://127.0.0.1:{unused_tcp_port}")
    locked = entry("locked", urls[1].replace("http://", "lean://"))
    followed = await follow(client, [entry("old", "http://a:1")], [away, here, locked])
    assert client.names() == ["here"]
    assert followed.engines == (here,)
    assert [text.split(":")[0] for text in followed.failed] == ["away", "locked"]
    assert (await client.generate([1], SAMPLING, "s")).ids
    first = client.engine("here")
    followed = await follow(client, followed.engines, [away, here, locked])
    assert client.engine("here") is first
    back = entry("away", urls[1])
    followed = await follow(client, followed.engines, [back, here])
    assert followed.failed == ()
    assert client.names() == ["here", "away"]
    assert client.engine("here") is first
    await client.close()


async def test_a_host_says_what_it_does_not_reach_and_tries_it_again(
    tmp_path: Path, urls: list[str], unused_tcp_port: int
) -> None:
    config = parse_config(
        {
            "env": {"target": "x:Y"},
            "dataset": {"source": "x.jsonl"},
            "serving": {"engine": "external", "urls": urls},
        }
    )
    host = RolloutHost(plan_run(config, tmp_path).rollouts, wait_s=0.0, index=3, sharers=1)
    host._client = client = TokenClient([engine("old")])
    here, away = entry("here", urls[0]), entry("away", f"http://127.0.0.1:{unused_tcp_port}")
    for _ in range(2):
        with pytest.raises(EngineError, match=r"worker 3 does not reach 1 of 2 .*: away: "):
            await host.serve_from([here, away])
        assert client.names() == ["here"]
    await host.serve_from([here])
    await client.close()


class OnePicture:
    """The images of a run: one of one feature."""

    placeholder_id = 5
    markers = (0, 0)

    def png(self, digest: str) -> bytes:
        return b"a picture"


async def test_images_reach_servers_that_a_host_follows(urls: list[str]) -> None:
    """Fails if a server that joins, or that was started again, is asked as one that reads text."""
    client = TokenClient([engine("old")])
    await follow(client, [], [entry("here", urls[0])], pictures=OnePicture())
    image = ImageSpan(digest="d" * 32, start=1, tokens=1, grid=(1, 1, 1))
    # The answer to a prompt that was sent with its image; the server does not repeat the ids.
    with pytest.raises(EngineRefused, match="so nothing shows that it has expanded them"):
        await client.generate([1, 5, 2], SAMPLING, "s", [image])
    await client.close()


async def test_a_host_that_does_not_open_keeps_no_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if a worker that opens in an outage of engines leaks what it has connected."""
    config = parse_config(
        {
            "env": {"target": "x:Y"},
            "dataset": {"source": "x.jsonl"},
            "sandbox": {"backend": "process"},
        }
    )
    twins = [engine("a"), engine("a")]

    async def connect_all(entries: object, *, pictures: object) -> list[ScriptedEngine]:
        return twins

    monkeypatch.setattr("agentrl.runtime.assembly.rollout_host.connect_all", connect_all)
    host = RolloutHost(plan_run(config, tmp_path).rollouts, wait_s=0.0, index=0, sharers=1)
    with pytest.raises(ValueError, match="already"):
        await host.open([])
    await host.close()
    for twin in twins:
        with pytest.raises(EngineError, match="closed"):
            await twin.generate([1], SAMPLING, "s")


@pytest.mark.parametrize("planned", [True, False])
async def test_a_server_that_leaves_as_planned_costs_no_turn(planned: bool) -> None:
    """Fails if a turn that was lost once fails because another server left the run; one whose
    second engine failed in the driver's eyes is lost for good."""
    client = TokenClient([engine("a", 0.05), engine("b", 60.0), engine("c")], probe_s=60.0)
    turn = asyncio.create_task(client.generate([1], SAMPLING, "s"))
    await asyncio.sleep(0.01)
    client.quarantine("a", "it is stuck")
    while not client.balancer.in_flight("b"):
        await asyncio.sleep(0.001)
    known = [entry(name, f"http://{name}:1") for name in ("b", "c")]
    await follow(client, known, known[1:], left={"b"} if planned else ())
    if planned:
        assert (await turn).ids
    else:
        with pytest.raises(EngineError, match="b was taken away"):
            await turn
    await client.close()
