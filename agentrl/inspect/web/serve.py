"""Opens the inspector's server at an address, prints which, and ends it cleanly."""

from __future__ import annotations

import os
import secrets
import socket
import sys
import threading
import webbrowser
from collections.abc import Callable

from agentrl.errors import ConfigError
from agentrl.inspect.read.reader import require
from agentrl.inspect.web.library import Library
from agentrl.machine.web_origin import is_loopback

_LAST_ANSWERS_S = 2
"""How long answers that are on their way may take after Ctrl-C."""


def serve(
    library: Library,
    *,
    host: str,
    port: int,
    browser: bool,
    labels: bool = False,
    say: Callable[[str], None],
    opened: Callable[[str], None] = lambda address: None,
    base: str = "",
    names: tuple[str, ...] = (),
) -> None:
    """Serve until the process gets a signal to end.

    Args:
        library: of the runs.
        host: address to listen at; one that other machines can reach asks visitors for a token.
        port: 0 takes a free one.
        labels: let visitors write labels into the runs.
        browser: open the page, where there is a browser to open.
        say: is given a line with the address.
        opened: is given the address alone.
        base: path below which a proxy has the page; empty for none.
        names: by which visitors come through a proxy. Then a token is asked for, since they come
            from other machines.

    Raises:
        ConfigError: the address cannot be listened at, `base` or `names` are none, or a library is
            missing.
    """
    uvicorn = require("uvicorn")
    require("starlette.applications")
    # They import starlette, an extra.
    from agentrl.inspect.web.app import make_app
    from agentrl.inspect.web.base_path import checked_base, checked_names

    base, names = checked_base(base), checked_names(names)
    token = None if is_loopback(host) and not names else secrets.token_urlsafe(24)
    listener = _listen(host, port)
    app = make_app(library, host=host, token=token, labels=labels, base=base, names=names)
    address = page_address(host, listener.getsockname()[1], token, base)
    opened(address)
    runs = len(library.readers())
    say(f"{runs} run{'s' * (runs != 1)} at {address}  (Ctrl-C ends it)")
    for name in names:
        say(f"through a proxy: {name}{base}/?token={token}")
    if token is not None:
        say("whoever has this address can read these runs; it is not encrypted")
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            lifespan="off",
            ws="none",
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=_LAST_ANSWERS_S,
        )
    )
    library.diagnose_ahead()
    if browser and _has_browser():
        threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
    try:
        server.run(sockets=[listener])
    finally:
        library.close()
        listener.close()


def page_address(host: str, port: int, token: str | None, base: str = "") -> str:
    """The address that a visitor types.

    Example:
        >>> page_address("127.0.0.1", 8000, None)
        'http://127.0.0.1:8000/'
    """
    name = socket.gethostname() if host in ("0.0.0.0", "::", "") else host
    if ":" in name:
        name = f"[{name.strip('[]')}]"
    return f"http://{name}:{port}{base}/" + (f"?token={token}" if token else "")


def _listen(host: str, port: int) -> socket.socket:
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
        family, _, _, _, address = found[0]
        return socket.create_server(address[:2], family=family, reuse_port=False)
    except OSError as error:
        raise ConfigError(
            f"cannot listen at {host} port {port}: {error.strerror or error}; give another --port "
            "(0 takes a free one), or an address of this machine as --host"
        ) from error


def _has_browser() -> bool:
    """Whether opening a page would show it: not on a server without a screen."""
    if sys.platform.startswith("linux"):
        return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
    return True
