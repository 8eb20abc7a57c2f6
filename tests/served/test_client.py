"""The client for served models against real servers, good and bad ones."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from agentrl.errors import ConfigError, ServedModelError
from agentrl.served import ServedModel, ServedSettings
from agentrl.served.attempts import LARGEST_ANSWER
from agentrl.served.budget import loop_state
from agentrl.served.wire import request_body
from agentrl.types.usage import counting_served
from tests.served.scripted_server import raw_server, scripted_server

HELLO = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello?"}]


def model(url: str, **more: Any) -> ServedModel:
    return ServedModel(ServedSettings(**{"url": url, "model": "m", "timeout_s": 120.0, **more}))


def as_number(text: str) -> int:
    if not text.isdigit():
        raise ValueError("it is not a number")
    return int(text)


async def test_a_chat_completion_and_its_price() -> None:
    async with scripted_server("Hi.") as server:
        with counting_served() as spent:
            asked = model(server.url, price_in=10.0, price_out=1000.0, extra={"seed": None, "n": 1})
            assert await asked.complete(HELLO) == "Hi."
    assert server.asked == [
        {"model": "m", "messages": HELLO, "temperature": 0.0, "max_tokens": 1024, "n": 1}
    ]
    assert "Authorization" not in server.headers[0]
    assert spent == {
        "served/requests": 1, "served/prompt_tokens": 100, "served/completion_tokens": 3,
        "served/cost": (100 * 10 + 3 * 1000) / 1e6,
    }  # fmt: skip


async def test_a_thought_in_the_text_is_no_answer() -> None:
    """Fails if a judge's or a user's thought is read as its answer."""
    async with scripted_server("<think>7?</think>\n3", always="hm\n</think>\n\n4") as server:
        asked = model(server.url)
        assert [await asked.complete(HELLO), await asked.complete(HELLO)] == ["3", "4"]


async def test_anthropic_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY", "k-123\n")
    async with scripted_server("Hi.") as server:
        with counting_served() as spent:
            asked = model(server.url, api="anthropic", api_key_env="A_KEY")
            assert await asked.complete(HELLO) == "Hi."
    assert server.asked[0]["system"] == "Be kind."
    assert [said["role"] for said in server.asked[0]["messages"]] == ["user"]
    assert server.headers[0]["x-api-key"] == "k-123"
    assert "anthropic-version" in server.headers[0]
    # What the prompt cache of the server held was read, too.
    assert spent["served/prompt_tokens"] == 100


async def test_a_structured_answer_of_each_api() -> None:
    schema = {"type": "object"}
    call = {"type": "tool_use", "name": "answer", "input": {"a": 1}}
    async with scripted_server('{"a": 1}', {"content": [call]}) as server:
        assert await model(server.url).ask(HELLO, json.loads, schema=schema) == {"a": 1}
        theirs = model(server.url, api="anthropic")
        assert await theirs.ask(HELLO, json.loads, schema=schema) == {"a": 1}
    assert server.asked[0]["response_format"]["json_schema"]["schema"] == schema
    assert server.asked[1]["tools"][0]["input_schema"] == schema
    assert server.asked[1]["tool_choice"] == {"type": "tool", "name": "answer"}


async def test_a_server_without_schemas_is_asked_without() -> None:
    async with scripted_server(400, always='{"a": 1}') as server:
        asked = model(server.url)
        for _ in range(2):
            assert await asked.ask(HELLO, json.loads, schema={"type": "object"}) == {"a": 1}
    assert ["response_format" in body for body in server.asked] == [True, False, False]


async def test_a_server_without_tools_is_asked_by_another_field() -> None:
    """A vLLM server without a parser of tool calls refuses the tool, and has `output_config`."""
    async with scripted_server(400, always='{"a": 1}') as server:
        asked = model(server.url, api="anthropic")
        for _ in range(2):
            assert await asked.ask(HELLO, json.loads, schema={"type": "object"}) == {"a": 1}
    assert ["tools" in body for body in server.asked] == [True, False, False]
    form = {"type": "json_schema", "schema": {"type": "object"}}
    assert [body.get("output_config") for body in server.asked[1:]] == [{"format": form}] * 2


def test_settings_of_the_field_of_a_schema_stand_beside_it() -> None:
    settings = ServedSettings(
        url="http://a/v1", model="m", api="anthropic", extra={"output_config": {"effort": "low"}}
    )
    schema = {"type": "object"}
    body = request_body(settings, [], schema, "output_config")
    form = {"type": "json_schema", "schema": schema}
    assert body["output_config"] == {"effort": "low", "format": form}
    assert request_body(settings, [], None)["output_config"] == {"effort": "low"}


async def test_an_answer_that_is_not_accepted_is_asked_for_once_more() -> None:
    async with scripted_server("four", "4", "five", "six") as server:
        assert await model(server.url).ask(HELLO, as_number) == 4
        with pytest.raises(ServedModelError, match="nor was the next one: it is not a number"):
            await model(server.url).ask(HELLO, as_number)
    assert len(server.asked) == 4
    assert "it is not a number" in server.users[1]
    # Its own words are not repeated to it: they may be those of whom it judges.
    assert "four" not in json.dumps(server.asked[1])


@pytest.mark.parametrize("status", [429, 500, 503, 529, 408])
async def test_passing_trouble_is_tried_again(status: int) -> None:
    async with scripted_server(status, status, "Hi.") as server:
        with counting_served() as spent:
            assert await model(server.url).complete(HELLO) == "Hi."
    assert (spent["served/requests"], spent["served/failed"]) == (3, 2)


@pytest.mark.parametrize("status", [400, 401, 403, 404])
async def test_lasting_trouble_is_not(status: int) -> None:
    async with scripted_server(always=status) as server:
        with pytest.raises(ServedModelError, match=f"status {status}: busy"):
            await model(server.url).complete(HELLO)
    assert len(server.asked) == 1


async def test_no_other_host_receives_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY", "k-123")
    async with scripted_server() as other:
        elsewhere = {"Location": f"{other.url}/messages"}
        moved = web.Response(status=307, headers=elsewhere, text="moved")
        async with scripted_server(moved) as server:
            with pytest.raises(ServedModelError, match="status 307: moved"):
                await model(server.url, api="anthropic", api_key_env="A_KEY").complete(HELLO)
    assert (len(server.asked), len(other.asked)) == (1, 0)


async def test_retry_after_is_honoured_by_all_requests_to_the_server() -> None:
    busy = web.Response(status=429, headers={"Retry-After": "1"}, text="slow down")
    async with scripted_server(busy) as server:
        began = time.monotonic()
        asked = model(server.url)
        first = asyncio.ensure_future(asked.complete(HELLO))
        while not loop_state().gate(asked.url).quiet_until:
            await asyncio.sleep(0.01)
        assert await asked.complete(HELLO) == "fine"
        assert time.monotonic() - began >= 0.95
        await first
    assert len(server.asked) == 3


async def test_a_wait_longer_than_the_limit_is_not_begun() -> None:
    busy = web.Response(status=429, headers={"Retry-After": "3600"}, text="tomorrow")
    async with scripted_server(busy) as server:
        began = time.monotonic()
        with pytest.raises(ServedModelError, match="asks to wait 3600 s"):
            await model(server.url).complete(HELLO)
        assert time.monotonic() - began < 60


async def test_all_attempts_together_have_a_limit() -> None:
    async with scripted_server(always=503) as server:
        began = time.monotonic()
        with pytest.raises(ServedModelError, match=r"status 503: busy; no answer in 0\.6 s"):
            await model(server.url, timeout_s=0.6, tries=50).complete(HELLO)
        assert time.monotonic() - began < 60


async def test_a_hanging_attempt_is_given_up_for_another() -> None:
    async with scripted_server() as server:
        server.delay_s = 0.5
        with pytest.raises(ServedModelError, match=r"no answer in 0\.2 s"):
            await model(server.url, attempt_s=0.2, tries=2).complete(HELLO)
        assert len(server.asked) == 2


@pytest.mark.parametrize(
    "garbage",
    [
        b"", b"not JSON", b"[" * 100_000, b"null", b"[]", b'{"choices": []}', b'{"choices": 3}',
        b'{"choices": [{"message": {"content": null}}]}', b"\xff\xfe\x00", b'{"usage": 3}',
        b'{"choices": [{"message": {"content": " "}}], "usage": {"prompt_tokens": "many"}}',
    ],
)  # fmt: skip
async def test_garbage_is_a_failure_and_no_answer(garbage: bytes) -> None:
    async with scripted_server(always=lambda body: web.Response(body=garbage)) as server:
        with pytest.raises(ServedModelError, match="could not be asked"):
            await model(server.url, tries=2).complete(HELLO)
    assert len(server.asked) == 2


async def test_a_large_answer_is_not_read_to_its_end() -> None:
    sent = 0

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 67108864\r\n\r\n")
        for _ in range(1024):
            writer.write(b'"' * 65_536)
            sent += 65_536
            await writer.drain()

    async with raw_server(talk) as url:
        with pytest.raises(ServedModelError, match=f"larger than {LARGEST_ANSWER} bytes"):
            await model(url).complete(HELLO)
    # What both ends of a socket hold differs from machine to machine, and is some megabytes.
    assert sent < 8 * LARGEST_ANSWER


async def test_a_small_answer_that_unpacks_to_a_large_one() -> None:
    def bomb(body: dict[str, Any]) -> web.Response:
        response = web.Response(body=b" " * (LARGEST_ANSWER + 1))
        response.enable_compression(web.ContentCoding.gzip)
        return response

    async with scripted_server(always=bomb) as server:
        with pytest.raises(ServedModelError, match=r"larger than|ContentEncodingError"):
            await model(server.url, tries=1).complete(HELLO)


async def _hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    return None


async def _half_an_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b'HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{"choices": [')
    await writer.drain()


async def _half_closed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write_eof()
    await reader.read()


async def _reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{")
    await writer.drain()
    writer.transport.abort()


async def _not_http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"SSH-2.0-OpenSSH_9.6\r\n" * 1000)
    await writer.drain()


@pytest.mark.parametrize("talk", [_hang_up, _half_an_answer, _half_closed, _reset, _not_http])
async def test_broken_connections(talk: Any) -> None:
    async with raw_server(talk) as url:
        with pytest.raises(ServedModelError, match=r"(Error|Disconnected|Exception)"):
            await model(url, tries=2).complete(HELLO)


async def test_a_server_that_hangs_in_the_middle() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{"choices": [')
        await writer.drain()
        await asyncio.sleep(600)

    async with raw_server(talk) as url:
        with pytest.raises(ServedModelError, match=r"no answer in 0\.3 s"):
            await model(url, timeout_s=0.3).complete(HELLO)


SERVER = """
import asyncio, sys
from tests.served.scripted_server import scripted_server
async def main():
    async with scripted_server() as server:
        server.delay_s = float(sys.argv[1])
        print(server.url, flush=True)
        while not server.asked:
            await asyncio.sleep(0.01)
        print("asked", flush=True)
        await asyncio.sleep(600)
asyncio.run(main())
"""


async def test_a_server_that_is_killed_in_mid_request() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER, "600"], stdout=subprocess.PIPE, text=True,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert process.stdout is not None
    url = await asyncio.to_thread(process.stdout.readline)
    asking = asyncio.ensure_future(model(url.strip(), tries=2, timeout_s=600).complete(HELLO))
    assert await asyncio.to_thread(process.stdout.readline) == "asked\n"
    process.kill()
    process.wait()
    process.stdout.close()
    with pytest.raises(ServedModelError, match=r"ServerDisconnectedError|ClientOSError"):
        await asyncio.wait_for(asking, 120)


async def test_the_key_is_in_no_message_and_no_record(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    secret = "sk-very-secret-0815"
    monkeypatch.setenv("A_KEY", secret)

    def leaky(body: dict[str, Any]) -> web.Response:
        return web.Response(status=401, text=f"no such key: Bearer {secret}")

    with caplog.at_level(logging.DEBUG):
        async with scripted_server("Hi.", always=leaky) as server:
            asked = model(server.url, api_key_env="A_KEY", cache=str(tmp_path))
            assert await asked.complete(HELLO) == "Hi."
            with pytest.raises(ServedModelError, match=r"\[key\].*api_key_env") as failed:
                await asked.complete([*HELLO, HELLO[1]])
    assert server.headers[0]["Authorization"] == f"Bearer {secret}"
    files = "".join(path.read_text() for path in tmp_path.rglob("*") if path.is_file())
    assert "Hi." in files
    for text in (str(failed.value), repr(asked), repr(vars(asked)), caplog.text, files):
        assert secret not in text


def test_a_key_that_is_not_there_is_a_config_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_KEY", raising=False)
    with pytest.raises(ConfigError, match="'NO_KEY' is not set; export it"):
        model("http://x/v1", api_key_env="NO_KEY")


async def test_no_more_requests_at_once_than_the_budget() -> None:
    async with scripted_server() as server:
        server.delay_s = 0.02
        one, other = model(server.url, max_in_flight=3), model(server.url, model="n")
        with counting_served() as spent:
            asking = [one.complete(HELLO) for _ in range(9)]
            assert set(await asyncio.gather(*asking)) == {"fine"}
        assert (server.most_at_once, spent["served/requests"]) == (3, 9)
        # One server has one count, whichever model is asked there.
        await asyncio.gather(*(m.complete(HELLO) for m in (other, one) * 6))
        assert 3 <= server.most_at_once <= 16
        assert loop_state().gate(one.url).in_flight == 0


async def test_a_cancelled_wait_gives_no_place_away() -> None:
    async with scripted_server() as server:
        server.delay_s = 0.1
        asked = model(server.url, max_in_flight=1)
        jobs = [asyncio.ensure_future(asked.complete(HELLO)) for _ in range(4)]
        await asyncio.sleep(0.05)
        for job in jobs[:3]:
            job.cancel()
        assert await asyncio.wait_for(jobs[3], 120) == "fine"
        assert loop_state().gate(asked.url).in_flight == 0
        await asyncio.gather(*jobs, return_exceptions=True)


async def test_an_answer_is_asked_for_once(tmp_path: Path) -> None:
    async with scripted_server("Hi.") as server:
        server.delay_s = 0.05
        asked = model(server.url, cache=str(tmp_path / "cache"))
        with counting_served() as spent:
            assert set(await asyncio.gather(*(asked.complete(HELLO) for _ in range(5)))) == {"Hi."}
            assert await asked.complete(HELLO) == "Hi."
        assert len(server.asked) == 1
        assert (spent["served/requests"], spent["served/cached"]) == (1, 5)
        for other in ({"temperature": 1.0}, {"model": "n"}, {"version": "step 7"}, {"seed": 1}):
            changed = model(server.url, cache=str(tmp_path / "cache"), **other)
            assert await changed.complete(HELLO) == "fine"
        assert await asked.complete(HELLO[1:]) == "fine"
    assert len(server.asked) == 6


async def test_what_was_not_accepted_is_not_kept(tmp_path: Path) -> None:
    async with scripted_server("four", "five", "6") as server:
        asked = model(server.url, cache=str(tmp_path))
        with pytest.raises(ServedModelError):
            await asked.ask(HELLO, as_number)
        assert await asked.ask(HELLO, as_number) == 6
        assert await asked.ask(HELLO, as_number) == 6
    assert len(server.asked) == 3


async def test_a_failure_is_everybody_s_who_waits_for_it(tmp_path: Path) -> None:
    async with scripted_server(always=404) as server:
        server.delay_s = 0.3
        asked = model(server.url, cache=str(tmp_path))
        got = await asyncio.gather(*(asked.complete(HELLO) for _ in range(5)),
                                   return_exceptions=True)  # fmt: skip
    assert [type(one) for one in got] == [ServedModelError] * 5
    assert len(server.asked) == 1
    assert not loop_state().flights


async def test_another_asks_if_the_first_is_cancelled(tmp_path: Path) -> None:
    async with scripted_server() as server:
        server.delay_s = 0.1
        asked = model(server.url, cache=str(tmp_path))
        first, second = (asyncio.ensure_future(asked.complete(HELLO)) for _ in range(2))
        await asyncio.sleep(0.05)
        first.cancel()
        assert await asyncio.wait_for(second, 120) == "fine"
        await asyncio.gather(first, return_exceptions=True)


async def test_a_broken_entry_is_asked_for_again(tmp_path: Path) -> None:
    async with scripted_server("Hi.", "Ho.", "Hu.") as server:
        asked = model(server.url, cache=str(tmp_path))
        await asked.complete(HELLO)
        (entry,) = tmp_path.rglob("*.json")
        entry.write_bytes(entry.read_bytes()[:20])
        assert await asked.complete(HELLO) == "Ho."
        entry.write_text(json.dumps({"digest": "another", "text": "not mine"}))
        assert await asked.complete(HELLO) == "Hu."


async def test_a_full_disk_costs_the_entry_and_not_the_answer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    async with scripted_server() as server:
        asked = model(server.url, cache=str(tmp_path / "cache"))
        assert [await asked.complete(HELLO) for _ in range(2)] == ["fine", "fine"]
    assert caplog.text.count("answers are not kept") == 1
    with pytest.raises(ConfigError, match="cannot be written to"):
        asked.require_cache()


CLIENT = """
import asyncio, sys
from agentrl.served import ServedModel, ServedSettings
async def main():
    model = ServedModel(ServedSettings(url=sys.argv[1], model="m", cache=sys.argv[2]))
    for _ in range(3):
        asked = [model.complete([{"role": "user", "content": str(i)}]) for i in range(40)]
        texts = await asyncio.gather(*asked)
        assert texts == [f"said {i}" for i in range(40)], texts
asyncio.run(main())
"""


async def test_two_processes_share_a_cache(tmp_path: Path) -> None:
    async with scripted_server(
        always=lambda body: f"said {body['messages'][-1]['content']}"
    ) as server:
        argv = (sys.executable, "-c", CLIENT, server.url, str(tmp_path))
        running = [await asyncio.create_subprocess_exec(*argv) for _ in range(2)]
        assert [await one.wait() for one in running] == [0, 0]
        asked = len(server.asked)
        third = await asyncio.create_subprocess_exec(*argv)
        assert await third.wait() == 0
    assert 40 <= asked <= 80
    assert len(server.asked) == asked
    assert len(list(tmp_path.rglob("*.json"))) == 40
    assert not [path for path in tmp_path.rglob("*.tmp")]


def test_one_model_serves_several_event_loops() -> None:
    async def serve() -> None:
        async with scripted_server() as server:
            asked = model(server.url, max_in_flight=1)
            jobs = (asyncio.to_thread(asyncio.run, asked.complete(HELLO)) for _ in range(3))
            assert await asyncio.gather(*jobs) == ["fine"] * 3

    asyncio.run(serve())
