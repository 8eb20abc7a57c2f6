"""Names under which a server is asked; a web page of another site comes under another one.

Any page may have its visitor's browser ask `127.0.0.1`. Two things give it away: a name in `Host`
that is not this server's (DNS rebinding), and the marks that browsers put on what a page asks for.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Collection


class HostNames:
    """The names under which a server is asked."""

    def __init__(self, host: str, names: Collection[str] = ()) -> None:
        """Know the names.

        Args:
            host: the address that is listened at.
            names: other names by which visitors come, as of a proxy.
        """
        self._local = is_loopback(host)
        self._names = {"localhost", host.lower(), *(name.lower() for name in names)}
        if not self._local:
            self._names |= {socket.gethostname().lower(), socket.getfqdn().lower()}

    def knows(self, host: str) -> bool:
        """True for a `Host` header that names this server, with or without a port."""
        name = host.rpartition(":")[0] if _has_port(host) else host
        name = name.strip("[]").lower()
        if name in self._names:
            return True
        # Only names can be rebound to another address, so a bare address is safe.
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return address.is_loopback or not self._local


def is_loopback(host: str) -> bool:
    """Return true if only this machine can reach what listens at `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _has_port(host: str) -> bool:
    return ":" in host and (not host.startswith("[") or "]:" in host)
