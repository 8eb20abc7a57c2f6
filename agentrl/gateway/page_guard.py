"""Web pages at the door of the gateway: none may ask a turn, take a rollout or post a reward."""

from __future__ import annotations

from collections.abc import Mapping

from agentrl.gateway.app import Gateway, Receive, Scope, Send, headers_of, send_json
from agentrl.machine.web_origin import HostNames


class PageGuard:
    """Admits requests of programs to a gateway, and refuses what a page makes a browser send."""

    def __init__(self, gateway: Gateway, names: HostNames) -> None:
        """Guard a gateway that is asked under some names."""
        self._gateway, self._names = gateway, names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "http" and (why := self._refusal(scope["method"], headers_of(scope))):
            await send_json(send, 403, {"error": {"message": why, "type": "no_access"}})
            return
        await self._gateway(scope, receive, send)

    def _refusal(self, method: str, headers: Mapping[str, str]) -> str:
        """Why a request is not that of a program; empty where it may be."""
        host = headers.get("host", "")
        if not self._names.knows(host):
            return (
                f"this gateway does not go by the name in Host, {host[:100]!r}; use the address "
                "that was printed, or allow the name: agentrl gateway serve --allow-host NAME, "
                "env.args.allow_hosts in a run file"
            )
        if "origin" in headers or headers.get("sec-fetch-site", "none") != "none":
            return "a web page may not ask this gateway; programs send no Origin"
        # A form of a page can send any text, but not this type without asking first.
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        has_body = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
        if method == "POST" and has_body and kind != "application/json":
            return (
                f"content-type is {kind[:100] or 'missing'!r}, expected application/json; with "
                "curl: -H 'content-type: application/json'"
            )
        return ""
