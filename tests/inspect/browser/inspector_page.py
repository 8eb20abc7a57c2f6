"""Starts the inspector, drives its page, and finds places in the recorded run to look at."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote, urlsplit

from playwright.sync_api import Browser, Locator, Page, expect

PATIENCE_MS = 120_000
"""What comes may take its time on a loaded machine; only what never comes costs it."""
expect.set_options(timeout=PATIENCE_MS)


@contextmanager
def inspecting(*runs: Path, options: Sequence[str] = ()) -> Iterator[str]:
    """`agentrl inspect` on a free port, as a user starts it; gives its address."""
    start = [sys.executable, "-c", "from agentrl.cli import main; main()"]
    server = subprocess.Popen(
        [*start, "inspect", "--no-browser", *options, *map(str, runs)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        assert server.stdout is not None
        said = server.stdout.readline()
        address = re.search(r"http://\S+", said)
        assert address, said
        yield address[0]
        server.send_signal(signal.SIGINT)
        server.wait(timeout=120)
    finally:
        server.kill()
        server.communicate()


@contextmanager
def proxied(address: str, base: str, name: str) -> Iterator[str]:
    """A reverse proxy that has the server at `address` below `base`, and calls it `name`."""

    class Forward(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if not self.path.startswith(base):
                self.send_error(418, "another service")
                return
            upstream = HTTPConnection(urlsplit(address).netloc, timeout=120)
            given = {k: v for k, v in self.headers.items() if k.lower() != "host"}
            upstream.request("GET", self.path.removeprefix(base), headers=given | {"Host": name})
            answer = upstream.getresponse()
            body = answer.read()
            self.send_response(answer.status)
            for header, value in answer.getheaders():
                if header.lower() not in ("transfer-encoding", "connection", "content-length"):
                    self.send_header(header, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            upstream.close()

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Forward)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}{base}/"
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def watched(browser: Browser, **options: object) -> Iterator[Page]:
    """A page that did nothing wrong by the end."""
    context = browser.new_context(viewport={"width": 1440, "height": 900}, **options)  # type: ignore[arg-type]
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    trouble: list[str] = []
    asked: set[str] = set()
    page.on("console", lambda m: trouble.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.on("dialog", lambda dialog: (trouble.append(f"dialog {dialog.message}"), dialog.accept()))
    page.on("request", lambda request: asked.add(request.url.split("/")[2]))
    yield page
    hosts = {page.url.split("/")[2]}
    context.close()
    assert trouble == []
    assert asked == hosts


def at(served: str, view: str, **params: object) -> str:
    return f"{served}#/{view}?" + "&".join(
        f"{k}={quote(str(v), safe='')}" for k, v in params.items()
    )


def opened(page: Page, address: str) -> Page:
    """Goes to a view and waits until it is drawn."""
    page.goto(address)
    expect(page.locator("#main")).to_have_attribute("data-ready", "#" + address.partition("#")[2])
    return page


def run_id(page: Page, served: str, name: str) -> str:
    runs = page.request.get(f"{served}api/runs").json()
    return next(run["id"] for run in runs if run["name"] == name)


def first_group(page: Page, served: str, run: str, *, step: int = 1) -> dict[str, str]:
    answer = page.request.get(f"{served}api/step?run={quote(run)}&kind=train&step={step}").json()
    return answer["groups"][0]


def rollout_of(
    page: Page, served: str, run: str, wanted: Callable[[dict[str, object]], bool]
) -> str:
    """A trained rollout of step 1 or later whose sibling entry is as wanted, as an address."""
    for step in (1, 2, 3, 4):
        groups = page.request.get(
            f"{served}api/step?run={quote(run)}&kind=train&step={step}"
        ).json()
        for group in groups["groups"]:
            place = f"run={quote(run)}&kind=train&step={step}"
            found = page.request.get(
                f"{served}api/group?{place}&group={quote(group['group_id'])}"
            ).json()
            for sibling in found["siblings"]:
                if wanted(sibling):
                    return f"{place}&rollout={quote(sibling['rollout_id'], safe='')}"
    raise AssertionError("the recorded run has no such rollout")


def fact(page: Page, name: str) -> Locator:
    return page.locator("#token-facts dt", has_text=re.compile(f"^{name}$")).locator("+ dd")
