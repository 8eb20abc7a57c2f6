"""Clients of agents that run in threads: the event loop sends their requests."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import httpx2


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
