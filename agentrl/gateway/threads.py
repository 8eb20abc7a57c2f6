"""Agents without coroutines: a thread each, and clients whose requests the event loop answers.

A thread of its own for each rollout, and none of the event loop's pool: an agent holds its thread
while it waits for the model, and enough of them would keep the pool from what samples.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, TypeVar

from agentrl.errors import EnvError

if TYPE_CHECKING:
    import httpx2

T = TypeVar("T")


async def in_thread(call: Callable[[], T]) -> T:
    """Run a call in a thread of its own, and return what it returns.

    A thread cannot be stopped: one that is waited for no longer ends at its next request, which is
    refused since its session is closed.

    Raises:
        Exception: what the call raised.
    """
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:  # recording boundary: an agent may raise anything
            known = isinstance(error, Exception)
            outcome.set_exception(error if known else EnvError(f"the agent raised {error!r}"))
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(ended.set)

    thread = threading.Thread(target=copy_context().run, args=(run,), name="agent", daemon=True)
    thread.start()
    await ended.wait()
    return outcome.result()


def loop_transport(inner: httpx2.AsyncBaseTransport) -> Any:
    """A transport for clients in other threads; the running event loop sends their requests."""
    import httpx2

    loop = asyncio.get_running_loop()

    async def answered(request: httpx2.Request) -> httpx2.Response:
        whole = httpx2.Request(
            request.method, request.url, headers=request.headers, content=request.read()
        )
        answer = await inner.handle_async_request(whole)
        return httpx2.Response(
            answer.status_code, headers=answer.headers, content=await answer.aread()
        )

    class LoopTransport(httpx2.BaseTransport):
        def handle_request(self, request: httpx2.Request) -> httpx2.Response:
            return asyncio.run_coroutine_threadsafe(answered(request), loop).result()

    return LoopTransport()
