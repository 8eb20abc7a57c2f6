"""`LeanEngine` and `EngineServer`, over real sockets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from agentrl.engine import WeightTicket
from agentrl.errors import EngineError, EngineRefused, SyncError
from agentrl.serving.lean import EngineServer, LeanEngine
from agentrl.testing import ByteTokenizer, ScriptedEngine
from agentrl.types import FinishReason, Generation, SamplingParams

LIMIT_S = 120.0
SAMPLING = SamplingParams(temperature=0.7, top_p=0.9, max_tokens=99, stop_token_ids=(7,), seed=5)


@asynccontextmanager
async def pair(
    engine: ScriptedEngine, *, max_session_tokens: int = 10**6, **options: float
) -> AsyncIterator[LeanEngine]:
    """A client of a server of `engine`."""
    async with EngineServer(engine, max_session_tokens=max_session_tokens) as server:
        client = LeanEngine(server.address, name="lean", secret=server.secret, **options)
        try:
            yield client
        finally:
            await client.close()


async def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not true():
        assert time.monotonic() < deadline, "it did not happen"
        await asyncio.sleep(0.005)


def scripted(*replies: str, **options: object) -> ScriptedEngine:
    return ScriptedEngine(replies or ("hello",), ByteTokenizer(), **options)  # type: ignore[arg-type]


# -- turns ------------------------------------------------------------------------------------


async def test_a_turn_is_the_engines_own() -> None:
    """Fails if sampling, ids or log-probs change on their way."""
    engine = scripted("one", "two")
    async with pair(engine) as client:
        prompt = [1, 2, 3]
        for _ in range(3):
            generation = await client.generate(prompt, SAMPLING, "s")
            request = engine.requests[-1]
            assert request.prompt_ids == tuple(prompt)
            assert request.sampling == SAMPLING
            assert request.session_id == "s"
            assert request.generation == generation
            prompt += [*generation.ids, 9, 8]


async def test_a_later_turn_sends_only_its_new_tokens() -> None:
    """Fails if the whole prompt, or what was sampled, travels again."""
    engine = scripted("x" * 500)
    async with pair(engine) as client:
        prompt = list(range(1000))
        answer = await client.generate(prompt, SamplingParams(max_tokens=999), "s")
        first = client.stats.sent_bytes
        assert first > 4 * 1000
        prompt += [*answer.ids, 1, 2, 3]
        await client.generate(prompt, SamplingParams(max_tokens=999), "s")
        assert engine.requests[-1].prompt_ids == tuple(prompt)
        assert client.stats.sent_bytes - first < 100
        assert (client.stats.turns, client.stats.full_prompts) == (2, 1)


async def test_a_rewritten_history_is_generated_from() -> None:
    """Fails if the server's own ids win over the caller's."""
    engine = scripted()
    async with pair(engine) as client:
        await client.generate([1, 2, 3, 4], SAMPLING, "s")
        for prompt in ([1, 2, 9, 4, 104], [1], [5, 6]):
            await client.generate(prompt, SAMPLING, "s")
            assert engine.requests[-1].prompt_ids == tuple(prompt)
        assert client.stats.full_prompts == 4
        assert client.stats.asked_again == 0


async def test_a_server_that_forgot_asks_for_all() -> None:
    """Fails if a prompt without its front is sampled, or if the wish for it reaches the caller."""
    engine = scripted()
    async with pair(engine, max_session_tokens=40) as client:
        prompts = {name: [index] * 20 for index, name in enumerate("abc")}
        for prompt, name in [(prompts[name], name) for name in "abcabc"]:
            answer = await client.generate(prompt, SAMPLING, name)
            assert engine.requests[-1].prompt_ids == tuple(prompt)
            prompt += answer.ids
        assert client.stats.asked_again == 3


async def test_two_turns_of_one_session_at_once() -> None:
    """Fails if the second one relies on an answer of the first that is not there yet."""
    engine = scripted(delay_s=0.05)
    async with pair(engine) as client:
        await client.generate([1, 2], SAMPLING, "s")
        front = [1, 2, *ByteTokenizer().encode("hello", add_special_tokens=False), 7]
        prompts = [[*front, 3], [*front, 4, 5]]
        await asyncio.gather(*(client.generate(prompt, SAMPLING, "s") for prompt in prompts))
        await client.generate([*front, 6], SAMPLING, "s")
        seen = [request.prompt_ids for request in engine.requests[1:]]
        assert seen == [tuple(prompt) for prompt in (*prompts, [*front, 6])]


async def test_many_sessions_at_once_share_their_writes() -> None:
    """Fails if answers reach the wrong session, or each frame costs a system call."""
    engine = ScriptedEngine(
        lambda ids, session: f"{session} after {len(ids)}", ByteTokenizer(), delay_s=0.02
    )

    async def converse(client: LeanEngine, number: int) -> None:
        prompt, session = [number], f"session {number}"
        for _ in range(3):
            generation = await client.generate(prompt, SAMPLING, session)
            text = bytes(generation.ids[:-1]).decode()
            assert text == f"{session} after {len(prompt)}"
            prompt += [*generation.ids, 1]
        await client.end_session(session)

    async with pair(engine) as client:
        await asyncio.gather(*(converse(client, number) for number in range(200)))
        assert client.stats.turns == 600
        assert client.stats.full_prompts == 200
        assert client.stats.writes < 300
        await until(lambda: len(engine.ended) == 200)


async def test_a_cancelled_turn_is_cancelled_at_the_engine() -> None:
    """Fails if the server goes on sampling for nobody, or the next turn relies on that answer."""
    engine = scripted()
    async with pair(engine) as client:
        await engine.pause()
        turn = asyncio.create_task(client.generate([1, 2], SAMPLING, "s"))
        await until(lambda: engine.in_flight == 1)
        turn.cancel()
        with pytest.raises(asyncio.CancelledError):
            await turn
        await until(lambda: engine.in_flight == 0)
        await engine.resume()
        await client.generate([1, 2, 3], SAMPLING, "s")
        assert engine.requests[-1].prompt_ids == (1, 2, 3)
        assert client.stats.asked_again == 0


async def test_a_turn_that_takes_too_long_ends() -> None:
    """Fails if a turn is awaited for ever."""
    engine = scripted(delay_s=600)
    async with pair(engine, turn_timeout_s=0.2, dead_after_s=0.4) as client:
        with pytest.raises(EngineError, match=r"turn_timeout_s=0\.2"):
            await asyncio.wait_for(client.generate([1], SAMPLING, "s"), LIMIT_S)
        await until(lambda: engine.in_flight == 0)


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (EngineRefused("full"), EngineRefused),
        (EngineError("broken"), EngineError),
        (SyncError("torn"), SyncError),
        (KeyError("odd"), EngineError),
        (asyncio.CancelledError(), EngineError),
    ],
)
async def test_the_engines_errors_arrive(
    raised: BaseException, expected: type[EngineError]
) -> None:
    """Fails if a refusal arrives as a failure or the other way round, or an engine that lets a
    cancellation of its own escape is never heard of again."""

    def fail(number: int, session: str) -> Exception | None:
        if number == 0:
            raise raised
        return None

    async with pair(scripted(fail=fail)) as client:
        with pytest.raises(EngineError) as caught:
            await asyncio.wait_for(client.generate([1], SAMPLING, "s"), LIMIT_S)
        assert type(caught.value) is expected
        await client.generate([1], SAMPLING, "s")


async def test_ids_that_are_no_int32_are_refused() -> None:
    async with pair(scripted()) as client:
        with pytest.raises(EngineRefused, match="32 bits"):
            await client.generate([2**40], SAMPLING, "s")
        await client.generate([1], SAMPLING, "s")


class ChangedWeights(ScriptedEngine):
    """Gets new weights in mid-turn."""

    async def generate(self, *args: object) -> Generation:
        return Generation(
            ids=(1, 2, 3),
            log_probs=(-0.1, -1e-300, -1 / 3),
            finish_reason=FinishReason.ABORT,
            policy_versions=(4, 4, 5),
            cached_tokens=17,
        )


async def test_every_field_of_a_generation_arrives() -> None:
    engine = ChangedWeights(("",), ByteTokenizer(), version=5)
    async with pair(engine) as client:
        assert await client.generate([1], SAMPLING, "s") == await engine.generate()
        assert client.version == 5


# -- control ----------------------------------------------------------------------------------


async def test_weights_are_changed_from_afar() -> None:
    """Fails if a field of the ticket is lost, or the version is not heard of."""
    engine = scripted()
    ticket = WeightTicket(backend="shm", version=3, info={"name": "x", "sizes": [1]}, checksum="c")
    async with pair(engine) as client:
        await client.pause()
        turn = asyncio.create_task(client.generate([1], SAMPLING, "s"))
        await client.load_weights(ticket)
        assert client.version == 3
        assert engine.loaded == [ticket]
        assert not turn.done()
        await client.resume()
        assert (await turn).policy_versions == (3,) * 6
        with pytest.raises(EngineError, match="pause before load_weights"):
            await client.load_weights(ticket)
        await client.prepare_weights("shm", {"a": 1})


async def test_health_is_the_engines() -> None:
    engine = scripted(delay_s=600, version=2)
    async with pair(engine) as client:
        turn = asyncio.create_task(client.generate([1], SAMPLING, "s"))
        await until(lambda: engine.in_flight == 1)
        health = await client.health()
        assert (health.ready, health.version, health.in_flight) == (True, 2, 1)
        turn.cancel()
        await client.close(engine=True)
        assert not (await engine.health()).ready
        assert not (await client.health()).ready


class SlowToLoad(ScriptedEngine):
    """Its weights take a while."""

    async def load_weights(self, ticket: WeightTicket) -> None:
        await asyncio.sleep(0.2)
        await super().load_weights(ticket)


async def test_a_load_of_weights_outlives_its_connection() -> None:
    """Fails if weights are left half loaded because a client went away."""
    engine = SlowToLoad(("hi",), ByteTokenizer())
    async with pair(engine) as client:
        await client.pause()
        load = asyncio.create_task(client.load_weights(WeightTicket(backend="x", version=1)))
        await asyncio.sleep(0.05)
        await client.close()
        with pytest.raises(EngineError, match="may have been served"):
            await load
        await until(lambda: engine.version == 1)


async def test_the_version_is_not_invented() -> None:
    async with pair(scripted(version=4)) as client:
        with pytest.raises(EngineError, match="connect"):
            _ = client.version
        await client.connect()
        assert client.version == 4


# -- the end of connections -------------------------------------------------------------------


async def test_a_lost_connection_ends_its_turns_and_sessions() -> None:
    """Fails if the engine samples on for a client that is gone, or keeps its sessions' caches."""
    engine = scripted()
    async with EngineServer(engine) as server:
        client = LeanEngine(server.address, name="lean", secret=server.secret)
        await client.generate([1], SAMPLING, "done")
        await engine.pause()
        turn = asyncio.create_task(client.generate([1], SAMPLING, "open"))
        await until(lambda: engine.in_flight == 1)
        await client.close()
        with pytest.raises(EngineError, match="may have been served"):
            await turn
        await until(lambda: engine.in_flight == 0 and sorted(engine.ended) == ["done", "open"])


async def test_a_server_that_closes_fails_what_is_in_flight() -> None:
    engine = scripted(delay_s=600)
    server = EngineServer(engine)
    await server.start()
    client = LeanEngine(server.address, name="lean", secret=server.secret)
    turn = asyncio.create_task(client.generate([1], SAMPLING, "s"))
    await until(lambda: engine.in_flight == 1)
    await server.close()
    await server.close()
    assert engine.in_flight == 0
    with pytest.raises(EngineError, match="may have been served") as caught:
        await turn
    assert not isinstance(caught.value, EngineRefused)
    assert not (await client.health()).ready
    await client.close()


async def test_a_server_that_came_back_is_given_all() -> None:
    """Fails if the client's book survives its connection."""
    engine = scripted()
    first = EngineServer(engine, secret="s")
    await first.start()
    client = LeanEngine(first.address, name="lean", secret="s")
    prompt = [1, 2, 3]
    prompt += (await client.generate(prompt, SAMPLING, "s")).ids
    await first.close()
    with pytest.raises(EngineRefused):
        await client.generate(prompt, SAMPLING, "s")
    async with EngineServer(engine, secret="s", port=first.port):
        assert (await client.health()).ready
        await client.generate(prompt, SAMPLING, "s")
        assert engine.requests[-1].prompt_ids == tuple(prompt)
        assert client.stats.asked_again == 0
        assert client.stats.connections == 2
        await client.close()


async def test_a_closed_client_refuses() -> None:
    async with pair(scripted()) as client:
        await client.connect()
        await client.close()
        await client.close()
        with pytest.raises(EngineRefused, match="closed"):
            await client.generate([1], SAMPLING, "s")


def test_an_engine_belongs_to_one_event_loop() -> None:
    """Fails if a second loop waits for ever on the sockets of the first."""
    client = LeanEngine("lean://127.0.0.1:1", name="lean", secret="s")

    async def ask() -> None:
        await asyncio.wait_for(client.generate([1], SAMPLING, "s"), LIMIT_S)

    with pytest.raises(EngineRefused):
        asyncio.run(ask())
    with pytest.raises(EngineError, match="another event loop"):
        asyncio.run(ask())


def test_an_address_of_another_form_is_refused() -> None:
    for address in ("http://a:1", "lean://a", "lean://:5", "lean://a:b", ""):
        with pytest.raises(ValueError, match="lean://host:port"):
            LeanEngine(address, name="lean", secret="s")
