"""What one request costs its caller in each HTTP client: why turns go through aiohttp.

    .venv/bin/python benchmarks/serving/http_clients.py

A server in another process answers a turn (2,000 prompt ids in, 64 ids with log-probabilities out);
128 requests are in flight at once over kept connections. Measured is the processor time of the
caller, encoding included; the clients take turns, and the median and range of the rounds are given.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import sys
import time
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

from harness import options, spread

AT_ONCE = 128
TURN = {"prompt_ids": list(range(2000)), "max_tokens": 64}
ANSWER = json.dumps({"ids": list(range(64)), "log_probs": [-0.5] * 64}).encode()


def serve(pipe: Connection) -> None:
    """Answer every POST until the process is ended; sends its port first."""
    from aiohttp import web

    async def answer(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(body=ANSWER, content_type="application/json")

    async def run() -> None:
        app = web.Application()
        app.router.add_post("/turn", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        pipe.send(runner.addresses[0][1])
        await asyncio.Event().wait()

    asyncio.run(run())


async def with_aiohttp(url: str, requests: int) -> float:
    import aiohttp
    import orjson

    connector = aiohttp.TCPConnector(limit=AT_ONCE)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def turn() -> None:
            headers = {"content-type": "application/json"}
            async with session.post(url, data=orjson.dumps(TURN), headers=headers) as response:
                orjson.loads(await response.read())

        return await processor_ms(turn, requests)


async def with_httpx(url: str, requests: int, module: str = "httpx") -> float:
    import importlib

    httpx = importlib.import_module(module)
    async with httpx.AsyncClient(limits=httpx.Limits(max_connections=AT_ONCE)) as client:

        async def turn() -> None:
            (await client.post(url, json=TURN)).json()

        return await processor_ms(turn, requests)


async def processor_ms(turn: Callable[[], Awaitable[None]], requests: int) -> float:
    """Milliseconds of this process's processor time for a request, after a round that connects."""
    await asyncio.gather(*(turn() for _ in range(AT_ONCE)))
    began = time.process_time()
    for _ in range(requests // AT_ONCE):
        await asyncio.gather(*(turn() for _ in range(AT_ONCE)))
    return (time.process_time() - began) * 1000 / (requests // AT_ONCE * AT_ONCE)


def main() -> None:
    args = options(__doc__, requests=1024, rounds=5)
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs,), daemon=True)
    server.start()
    url = f"http://127.0.0.1:{ours.recv()}/turn"
    clients = {
        "aiohttp": with_aiohttp,
        "httpx": with_httpx,
        "httpx2": lambda url, requests: with_httpx(url, requests, "httpx2"),
    }
    took: dict[str, list[float]] = {name: [] for name in clients}
    for _ in range(args.rounds):
        for name, client in clients.items():
            took[name].append(asyncio.run(client(url, args.requests)))
    server.terminate()
    for name, values in took.items():
        print(f"{name:8} {spread(values)} ms a request")


if __name__ == "__main__":
    main()
