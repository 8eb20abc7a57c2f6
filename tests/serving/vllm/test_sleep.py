"""A server that shares its device frees it, takes it back in order, and says so where it cannot."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from agentrl.engine import WeightTicket
from agentrl.errors import EngineError, WakeFailed
from agentrl.serving.vllm import VllmEngine
from agentrl.types import SamplingParams
from tests.serving.vllm.fake_device import DeviceBook, SleepingServer

GIB = 2**30
SAMPLING = SamplingParams(max_tokens=1)


@pytest.fixture
async def book() -> DeviceBook:
    return DeviceBook(24 * GIB)


@pytest.fixture
async def server(book: DeviceBook) -> AsyncIterator[SleepingServer]:
    made = SleepingServer("vllm-0", book, weights=4 * GIB, cache=8 * GIB)
    await made.start()
    yield made
    await made.kill()


@pytest.fixture
async def engine(server: SleepingServer, book: DeviceBook) -> AsyncIterator[VllmEngine]:
    made = VllmEngine(server.url, name="vllm-0", start_version=-1)
    made.share(book.shared("/run/logs/vllm-0.log"))
    await made.connect()
    yield made
    await made.close()


def ticket(version: int) -> WeightTicket:
    return WeightTicket(backend="shm", version=version)


async def load(engine: VllmEngine, version: int) -> None:
    await engine.pause()
    await engine.stage_weights(ticket(version))
    await engine.load_weights(ticket(version))
    await engine.resume()


async def sleep_and_load(engine: VllmEngine) -> None:
    await engine.sleep(2)
    await load(engine, 1)


async def test_weights_wake_before_they_are_loaded_and_the_cache_last(
    server: SleepingServer, engine: VllmEngine, book: DeviceBook
) -> None:
    """Fails if all wakes at once, if the cache wakes before the weights are whole (vLLM goes on by
    itself then), or if the weights of a level 2 sleep still have a number."""
    await load(engine, 0)
    for version in (1, 2):
        await engine.sleep(2)
        assert book.free == book.total
        assert (server.version, engine.version) == ("torn", -1)
        server.calls.clear()
        await load(engine, version)
        order = [path for path in server.calls if "wake" in path or "weight_update" in path]
        assert order == [
            "/wake_up?tags=weights",
            "/start_weight_update",
            "/finish_weight_update",
            "/wake_up?tags=kv_cache",
        ]
        assert server.calls.index("/wake_up?tags=kv_cache") > server.calls.index(
            "/reset_prefix_cache?reset_running_requests=true"
        )
        generation = await engine.generate([5], SAMPLING, "s")
        assert generation.ids == generation.policy_versions == (version,)


async def test_level_1_resumes_with_the_weights_it_had(
    server: SleepingServer, engine: VllmEngine, book: DeviceBook
) -> None:
    """Fails if a level 1 sleep is called torn, or if a resume leaves memory off the device."""
    await load(engine, 3)
    await engine.sleep(1)
    await engine.sleep(1)
    assert server.calls.count("/sleep?level=1&mode=keep") == 1
    assert (await engine.health()).version == 3
    await engine.resume()
    assert book.free == 12 * GIB
    assert (await engine.generate([5], SAMPLING, "s")).ids == (3,)


async def test_level_2_does_not_resume_without_new_weights(engine: VllmEngine) -> None:
    """Fails if garbage is sampled from after a trainer gave up its step."""
    await load(engine, 3)
    await engine.sleep(2)
    with pytest.raises(EngineError, match="stays paused until an update succeeds"):
        await engine.resume()


async def test_too_little_memory_is_named_before_the_server_is_asked(
    server: SleepingServer, engine: VllmEngine, book: DeviceBook
) -> None:
    """Fails if vLLM is asked for what cannot be, or without bytes, advice, or the log."""
    await load(engine, 0)
    await engine.sleep(2)
    book.take("trainer", "optimizer", 15 * GIB)
    await engine.pause()
    with pytest.raises(WakeFailed) as caught:
        await engine.load_weights(ticket(1))
    text = str(caught.value)
    for part in (
        f"server vllm-0 at {server.url}",
        "POST /wake_up?tags=weights asks for 12.00 GiB",
        "9.00 GiB of 24.00 GiB are free on fake:0",
        "lower serving.kv_cache_gb by 3.00",
        "runtime.offload",
        "/run/logs/vllm-0.log",
    ):
        assert part in text
    assert not any("wake_up" in path for path in server.calls)
    book.give("trainer")
    await load(engine, 1)
    assert (await engine.generate([5], SAMPLING, "s")).ids == (1,)


async def test_memory_that_is_gone_between_weights_and_cache_is_named(
    engine: VllmEngine, book: DeviceBook
) -> None:
    """Fails if the second wake does not know how much is left to wake."""
    await load(engine, 0)
    await engine.sleep(2)
    await engine.pause()
    await engine.load_weights(ticket(1))
    book.take("someone", "else", 13 * GIB)
    with pytest.raises(WakeFailed, match=r"tags=kv_cache asks for 8\.00 GiB.* 7\.00 GiB of"):
        await engine.resume()


@pytest.mark.parametrize(
    ("path", "answer", "said"),
    [
        ("/sleep?level=2&mode=keep", (500, "boom"), r"did not go to sleep: .*mode=keep: .*boom"),
        ("/sleep?level=2&mode=keep", (200, "{}"), "is awake after POST /sleep|freed nothing"),
        ("/wake_up?tags=weights", (500, "CUDA out of memory"), "did not wake up: .*out of memory"),
        ("/wake_up?tags=kv_cache", (200, "{}"), "tags=kv_cache: still sleeps"),
    ],
)
async def test_a_call_that_fails_names_server_call_and_log(
    server: SleepingServer, engine: VllmEngine, path: str, answer: tuple[int, str], said: str
) -> None:
    """Fails if an answer is taken for a success that is none."""
    await load(engine, 0)
    server.answers[path] = answer
    with pytest.raises(WakeFailed, match=f"server vllm-0 at http.*({said}).*vllm-0.log"):
        await sleep_and_load(engine)


async def test_nothing_wakes_in_the_turn_of_the_trainer(book: DeviceBook) -> None:
    """Fails if an engine that catches up takes the device from the trainer."""
    turn = True
    server = SleepingServer("a", book, weights=GIB, cache=GIB)
    await server.start()
    engine = VllmEngine(server.url, name="a", start_version=0)
    engine.share(replace(book.shared(), engines_turn=lambda: turn))
    await engine.connect()
    await engine.sleep(1)
    turn = False
    with pytest.raises(EngineError, match=r"a at .* sleeps: the trainer has fake:0"):
        await engine.resume()
    with pytest.raises(EngineError, match="the trainer has fake:0"):
        await engine.load_weights(ticket(1))
    assert book.free == book.total
    await engine.close()
    await server.kill()


@pytest.mark.parametrize("path", ["/sleep?level=2&mode=keep", "/wake_up?tags=weights"])
async def test_a_late_answer_is_named_after_the_limit(
    server: SleepingServer, engine: VllmEngine, book: DeviceBook, path: str
) -> None:
    """Fails if a server that hangs holds the run for as long as an update may take."""

    async def hang(asked: str) -> None:
        if asked == path:
            await asyncio.sleep(600)

    await load(engine, 0)
    engine.share(replace(book.shared("/run/logs/vllm-0.log"), limit_s=0.2))
    server.before = hang
    with pytest.raises(WakeFailed, match=r"no answer within 0\.2 s.*log: /run/logs/vllm-0\.log"):
        await sleep_and_load(engine)


async def test_an_engine_that_shares_nothing_does_not_sleep(server: SleepingServer) -> None:
    """Fails if a server of someone else is put to sleep."""
    engine = VllmEngine(server.url, name="b", start_version=0)
    with pytest.raises(EngineError, match="shares no device"):
        await engine.sleep(2)
    await engine.close()


async def test_a_server_that_dies_asleep_is_named(
    server: SleepingServer, engine: VllmEngine
) -> None:
    """Fails if it hangs until a limit of minutes."""
    await load(engine, 0)
    await engine.sleep(2)
    await server.kill()
    async with asyncio.timeout(60):
        with pytest.raises(EngineError, match=r"no connection|connection broke"):
            await load(engine, 1)
