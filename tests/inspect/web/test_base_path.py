"""The server below a path of a proxy, which may take that path off or leave it on."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agentrl.errors import ConfigError
from agentrl.inspect.web.app import make_app
from agentrl.inspect.web.base_path import checked_base, checked_names
from agentrl.inspect.web.library import Library

BASE, NAME, TOKEN = "/team/runs", "runs.example.org", "s3cret"


def proxy(inspector: Starlette, *, strip: bool) -> Starlette:
    """A reverse proxy with other services beside the inspector's page."""

    async def forward(request: Request) -> Response:
        path = request.url.path
        if strip:
            path = path.removeprefix(BASE) or "/"
        async with httpx.AsyncClient(transport=httpx.ASGITransport(inspector)) as client:
            answer = await client.get(
                f"http://127.0.0.1:9000{path}",
                params=request.query_params,
                headers={"host": NAME, "cookie": request.headers.get("cookie", "")},
            )
        named = ("content-type", "location", "set-cookie", "content-security-policy")
        headers = {name: answer.headers[name] for name in named if name in answer.headers}
        return Response(answer.content, answer.status_code, headers)

    async def another(_: Request) -> Response:
        return Response("another service", 418)

    return Starlette(routes=[Route(BASE + "{rest:path}", forward), Route("/{rest:path}", another)])


@pytest.mark.parametrize("strip", [True, False], ids=["taken off", "left on"])
async def test_the_page_and_all_it_asks_for_lie_below_the_path(
    recorded_run: Path, strip: bool
) -> None:
    """Fails if one address of the page leads to another service of the proxy."""
    library = Library([recorded_run])
    app = proxy(make_app(library, token=TOKEN, base=BASE, names=(NAME,)), strip=strip)
    site = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=f"https://{NAME}")
    try:
        assert (await site.get(f"{BASE}/api/runs")).status_code == 403
        first = await site.get(f"{BASE}/?token={TOKEN}")
        assert (first.status_code, first.headers["location"]) == (303, f"{BASE}/")
        # Another inspector below another path of the same proxy has a cookie of its own.
        assert f"path={BASE};" in first.headers["set-cookie"].lower()
        page = await site.get(first.headers["location"])
        assert f'<meta name="base-path" content="{BASE}">' in page.text
        asked = re.findall(r'(?:href|src)="(/[^"]+)"', page.text)
        assert len(asked) > 30
        for address in asked:
            assert (await site.get(address)).status_code == 200, address
        assert (await site.get(f"{BASE}/api/runs")).json()[0]["id"] == "recorded"
        assert (await site.get(BASE)).text == page.text
    finally:
        await site.aclose()
        library.close()


async def test_a_name_that_is_not_allowed_is_refused_also_below_a_path(recorded_run: Path) -> None:
    library = Library([recorded_run])
    app = proxy(make_app(library, base=BASE), strip=True)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as site:
        answer = await site.get(f"{BASE}/api/runs")
    library.close()
    assert answer.status_code == 403
    assert "does not go by the name" in answer.json()["error"]


@pytest.mark.parametrize("base", ["runs", "/a b", "/a/../b", "//x", '/"><script>', "http://x/a"])
def test_what_is_no_path_is_refused(base: str) -> None:
    with pytest.raises(ConfigError, match=r"--base-path: got .*expected a path as in /runs"):
        checked_base(base)


def test_what_is_no_name_is_refused() -> None:
    assert checked_base("/") == ""
    assert checked_base("/jupyter/user/a.b~c/") == "/jupyter/user/a.b~c"
    assert checked_names(("Runs.example.org", "localhost")) == ("Runs.example.org", "localhost")
    for name in ("https://x.org", "x.org:80", "x.org/runs", "", "*"):
        with pytest.raises(ConfigError, match=r"--allow-host: got .*expected the name of a host"):
            checked_names((name,))
