"""Serves the inspector below a path, behind a proxy of other services.

https://example.org/runs/  ->  proxy  ->  agentrl inspect --base-path /runs
"""

from __future__ import annotations

import re

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from agentrl.errors import ConfigError
from agentrl.inspect.export.page import STATIC

_PATH = re.compile(r"(/[A-Za-z0-9._~-]+)*")
_NAME = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*", re.IGNORECASE)
_UNSET = '<meta name="base-path" content="">'


class BasePath:
    """Takes the base path off a request, where the proxy has left it on."""

    def __init__(self, app: ASGIApp, *, base: str) -> None:
        """Stand in front of `app`; `base` is as of `checked_base`."""
        self._app, self._base = app, base

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if self._base and scope["type"] == "http":
            path = scope["path"]
            if path == self._base or path.startswith(self._base + "/"):
                scope = {**scope, "path": path.removeprefix(self._base) or "/"}
        await self._app(scope, receive, send)


def below(base: str, page: str) -> str:
    """The page with its addresses below `base`, and with `base` where its scripts look for it."""
    if not base:
        return page
    page = page.replace(_UNSET, _UNSET.replace('""', f'"{base}"'))
    return page.replace('="/static/', f'="{base}/static/')


def page_response(base: str, _: Request) -> Response:
    """The page, whatever the path: which view it shows is in its address."""
    page = STATIC / "index.html"
    if not page.is_file():
        return Response("the inspector's page is missing from this installation", 500)
    text = below(base, page.read_text(encoding="utf-8"))
    return HTMLResponse(text, headers={"cache-control": "no-cache"})


def checked_base(base: str) -> str:
    """The path of `--base-path`, without a slash at its end; empty for none.

    Raises:
        ConfigError: it is no path.

    Example:
        >>> checked_base("/team/runs/")
        '/team/runs'
    """
    path = base.rstrip("/")
    parts = path.split("/")
    if not _PATH.fullmatch(path) or ".." in parts or "." in parts:
        raise ConfigError(
            f"--base-path: got {base!r}, expected a path as in /runs: it begins with a slash and "
            "holds letters, digits and . _ ~ - between slashes; give what the proxy has before "
            "the page"
        )
    return path


def checked_names(names: tuple[str, ...]) -> tuple[str, ...]:
    """The names of `--allow-host`.

    Raises:
        ConfigError: one of them is more than the name of a host.
    """
    for name in names:
        if not _NAME.fullmatch(name):
            raise ConfigError(
                f"--allow-host: got {name!r}, expected the name of a host as in runs.example.org, "
                "without https://, port or path"
            )
    return names
