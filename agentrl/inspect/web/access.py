"""Access to the inspector's server: from this machine alone, unless set otherwise.

A page of another site must neither read a run nor make this server work: names that are not this
server's are refused (DNS rebinding), so are requests that a browser says come from elsewhere, and
nothing is allowed across origins. The pages themselves may load nothing from anywhere else.
"""

from __future__ import annotations

import hmac
from collections.abc import Collection
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, urlencode

import orjson
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentrl.machine.web_origin import HostNames

_COOKIE = "agentrl-inspect"
_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "font-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}


class AccessGuard:
    """Admits a request to `app`, or answers it with a refusal."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        host: str,
        token: str | None,
        base: str = "",
        names: Collection[str] = (),
    ) -> None:
        """Guard `app`.

        Args:
            app: what is guarded.
            host: the address that is listened at.
            token: every visitor has to show it once; None for loopback, where none is needed.
            base: path below which a proxy has the page; empty for none.
            names: other names by which visitors come, as of a proxy.
        """
        self._app = app
        self._base = base
        self._names = HostNames(host, names)
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # no web sockets here; the server refuses them
        response = self._refusal(scope)

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
            await send(message)

        await (response or self._app)(scope, receive, send_guarded)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        if not self._names.knows(headers.get("host", "")):
            return _refused(
                403,
                "this server does not go by the name in the address; use the address that "
                "agentrl inspect printed",
            )
        if headers.get("sec-fetch-site") in ("cross-site", "same-site") and (
            scope["path"].startswith("/api/") or headers.get("sec-fetch-mode") != "navigate"
        ):
            return _refused(403, "a page of another site may not ask this server")
        return self._without_token(scope, headers) if self._token else None

    def _without_token(self, scope: Scope, headers: Headers) -> Response | None:
        assert self._token is not None
        expected = self._token.encode()
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        for name, value in query:
            if name == "token" and hmac.compare_digest(value.encode(), expected):
                rest = urlencode([pair for pair in query if pair[0] != "token"])
                # The token leaves the address bar, so that it is not copied with a link.
                path = f"{self._base}/" + scope["path"].lstrip("/\\")
                response = RedirectResponse(path + (f"?{rest}" if rest else ""), status_code=303)
                response.set_cookie(
                    _COOKIE,
                    self._token,
                    path=self._base or "/",
                    httponly=True,
                    samesite="strict",
                    max_age=30 * 86400,
                )
                return response
        if hmac.compare_digest(_cookie(headers.get("cookie", "")).encode(), expected):
            return None
        return _refused(403, "open the address that agentrl inspect printed: it holds a token")


def _cookie(header: str) -> str:
    try:
        found = SimpleCookie(header).get(_COOKIE)
    except CookieError:
        return ""
    return found.value if found else ""


def _refused(status: int, why: str) -> Response:
    return Response(orjson.dumps({"error": why}), status, media_type="application/json")
