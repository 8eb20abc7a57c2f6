"""A server that answers as vLLM does to `prompt_logprobs` and `/tokenize`, over a model of ours."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from aiohttp import web


@dataclass
class ScriptedTeacher:
    """What the server is asked and how it fails; `url` is set once it listens."""

    model: Any
    tokenizer: Any = None
    context: int = 4096
    fail: list[int] = field(default_factory=list)
    """Statuses of the next answers."""
    change: Any = None
    """Called with the entries of an answer, to break them."""
    asked: list[dict[str, Any]] = field(default_factory=list)
    url: str = ""

    async def complete(self, request: web.Request) -> web.Response:
        """`/v1/completions`."""
        body = await request.json()
        self.asked.append(body)
        if self.fail:
            return web.Response(status=self.fail.pop(0), text="busy")
        entries = prompt_logprobs(self.model, body["prompt"], body["prompt_logprobs"])
        if self.change is not None:
            self.change(entries)
        choice = {"index": 0, "text": "x", "logprobs": None, "prompt_logprobs": entries}
        used = {"prompt_tokens": len(body["prompt"]), "completion_tokens": 1}
        return web.json_response({"choices": [choice], "usage": used})

    async def tokenize(self, request: web.Request) -> web.Response:
        """`/tokenize`."""
        body = await request.json()
        ids = self.tokenizer.encode(body["prompt"], add_special_tokens=body["add_special_tokens"])
        return web.json_response({"tokens": ids, "count": len(ids), "max_model_len": self.context})


def prompt_logprobs(model: Any, ids: list[int], k: int) -> list[dict[str, Any] | None]:
    """In vLLM's form: the K likeliest tokens by rank, and the token itself."""
    with torch.no_grad():
        table = torch.log_softmax(model(torch.tensor([ids])).logits[0].float(), -1)
    entries: list[dict[str, Any] | None] = [None]
    for place, token in enumerate(ids[1:]):
        row = table[place]
        rank = int((row >= row[token]).sum())
        found = {str(token): _entry(row[token], rank)}
        found |= {
            str(int(other)): _entry(row[other], number + 1)
            for number, other in enumerate(row.topk(k).indices if k else [])
        }
        entries.append(found)
    return entries


def _entry(log_prob: torch.Tensor, rank: int) -> dict[str, Any]:
    return {"logprob": float(log_prob), "rank": rank, "decoded_token": "?"}


@contextmanager
def serving(teacher: ScriptedTeacher) -> Iterator[ScriptedTeacher]:
    """Serve from a thread until the block ends."""
    loop = asyncio.new_event_loop()
    app = web.Application(client_max_size=2**26)
    app.router.add_post("/v1/completions", teacher.complete)
    app.router.add_post("/tokenize", teacher.tokenize)
    runner = web.AppRunner(app, shutdown_timeout=0.1)

    async def start() -> str:
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        return f"http://127.0.0.1:{runner.addresses[0][1]}/v1"

    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        teacher.url = asyncio.run_coroutine_threadsafe(start(), loop).result(120)
        yield teacher
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(120)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(120)
        loop.close()
