"""The address of the Docker daemon: the environment, the CLI's context, or a known socket.

The order is that of the docker command, so that both talk to the same daemon.
"""

from __future__ import annotations

import hashlib
import json
import os
import ssl
from dataclasses import dataclass
from pathlib import Path

from agentrl.errors import ConfigError

DEFAULT_SOCKET = "/var/run/docker.sock"
TCP = ("tcp://", "http://", "https://")


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """The address of one daemon."""

    url: str
    """`unix:///path` or `tcp://host:port`."""
    origin: str
    """Source of the address, for messages."""
    certificates: str = ""
    """Directory with ca.pem, cert.pem and key.pem; empty without TLS."""

    @property
    def socket_path(self) -> str:
        """Path of the socket on this machine; empty for a daemon elsewhere."""
        return self.url.removeprefix("unix://") if self.url.startswith("unix://") else ""

    @property
    def host_port(self) -> tuple[str, int]:
        """Host and port of a daemon elsewhere."""
        host, _, port = self.url.partition("://")[2].rstrip("/").rpartition(":")
        return host.strip("[]"), int(port)

    def tls(self) -> ssl.SSLContext | None:
        """The context of a TLS connection, or None without TLS.

        Raises:
            ConfigError: a certificate cannot be read.
        """
        if not self.certificates:
            return None
        place = Path(self.certificates)
        try:
            context = ssl.create_default_context(cafile=str(place / "ca.pem"))
            context.load_cert_chain(str(place / "cert.pem"), str(place / "key.pem"))
        except OSError as error:
            raise ConfigError(
                f"docker: {self.origin} wants TLS with ca.pem, cert.pem and key.pem of "
                f"{self.certificates!r}, and they cannot be read: {error}"
            ) from error
        return context

    def __str__(self) -> str:
        return f"{self.url} ({self.origin})"


def find_address() -> Address:
    """The daemon that the docker command would talk to.

    Raises:
        ConfigError: a context that cannot be read, or an address that is neither a socket nor TCP.
    """
    host = os.environ.get("DOCKER_HOST", "")
    if host:
        verify = os.environ.get("DOCKER_TLS_VERIFY", "") not in ("", "0")
        folder = os.environ.get("DOCKER_CERT_PATH") or str(Path("~/.docker").expanduser())
        return _checked(host, "DOCKER_HOST", folder if verify else "")
    settings = _read(Path("~/.docker/config.json").expanduser())
    context = os.environ.get("DOCKER_CONTEXT") or str(settings.get("currentContext") or "default")
    if context != "default":
        return _of_context(context)
    candidates = [DEFAULT_SOCKET, "/run/docker.sock"]
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        candidates.append(f"{runtime}/docker.sock")
    candidates.append(str(Path("~/.docker/run/docker.sock").expanduser()))
    for path in candidates:
        if Path(path).is_socket():
            return Address(url=f"unix://{path}", origin="a socket of this machine")
    return Address(
        url=f"unix://{DEFAULT_SOCKET}", origin=f"no socket at any of {', '.join(candidates)}"
    )


def _of_context(name: str) -> Address:
    folder = Path("~/.docker/contexts").expanduser()
    key = hashlib.sha256(name.encode()).hexdigest()
    endpoint = _read(folder / "meta" / key / "meta.json").get("Endpoints", {}).get("docker", {})
    if "Host" not in endpoint:
        raise ConfigError(
            f"docker: there is no context {name!r} in {folder}; see `docker context ls`, or set "
            "DOCKER_HOST"
        )
    certificates = folder / "tls" / key / "docker"
    return _checked(
        endpoint["Host"], f"context {name!r}", str(certificates) if certificates.is_dir() else ""
    )


def _checked(url: str, origin: str, certificates: str) -> Address:
    if url.startswith("unix://"):
        return Address(url=url, origin=origin)
    if url.startswith(TCP) and url.rpartition(":")[2].rstrip("/").isdecimal():
        return Address(url=url, origin=origin, certificates=certificates)
    raise ConfigError(
        f"docker: {origin} is {url!r}, expected unix:///path or tcp://host:port; forward the "
        "socket of a daemon behind ssh to one here"
    )


def _read(path: Path) -> dict[str, dict[str, dict[str, str]]]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        return {}
    except ValueError as error:
        raise ConfigError(f"docker: {path} is not JSON: {error}") from error
    return found if isinstance(found, dict) else {}
