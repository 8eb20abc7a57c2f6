"""Errors of the Docker daemon, or of its absence, in our words and with what to do."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

from agentrl.errors import SandboxError, SandboxLost, SandboxUnavailable
from agentrl_sandboxes.docker.address import Address

UNREACHABLE = 900
"""The status that aiodocker gives to a daemon that does not answer at all."""
REFUSED = 400
"""A request that the daemon will never grant."""
MISSING = 404
CONFLICT = 409


@contextlib.contextmanager
def daemon_errors(what: str, address: Address, *, known: bool) -> Iterator[None]:
    """Turn what a call to the daemon raises into `SandboxError`.

    Args:
        what: the subject of the message.
        address: of the daemon.
        known: whether it has answered before; then its absence is trouble that may pass.

    Raises:
        SandboxUnavailable: it would fail again: no daemon, no permission, a request refused.
        SandboxLost: the daemon went away.
        SandboxError: it may work another time.
    """
    import aiohttp
    from aiodocker import DockerError

    try:
        yield
    except DockerError as error:
        if error.status == UNREACHABLE:
            cause = getattr(error.__context__, "os_error", None)
            raise unreachable(what, address, cause or error.__context__, known=known) from error
        text = f"{what}: the daemon says: {error.message.strip()}"
        if error.status == REFUSED:
            raise SandboxUnavailable(text) from error
        raise SandboxError(text) from error
    except TimeoutError as error:
        raise SandboxError(f"{what}: no answer from {address} in time") from error
    except (OSError, aiohttp.ClientError) as error:
        raise unreachable(what, address, error, known=known) from error


def unreachable(
    what: str, address: Address, cause: BaseException | None, *, known: bool
) -> SandboxError:
    """The error of a daemon that cannot be talked to, by the reason."""
    number = getattr(cause, "errno", None)
    reason = getattr(cause, "strerror", None) or str(cause or "no answer")
    if known:
        return SandboxLost(f"{what}: the Docker daemon at {address} went away: {reason}")
    if number in (errno.EACCES, errno.EPERM):
        return SandboxUnavailable(
            f"{what}: this user may not talk to the Docker daemon at {address}; join the group "
            "that owns the socket (`sudo usermod -aG docker $USER`, then log in again), or use a "
            "rootless daemon"
        )
    return SandboxUnavailable(
        f"{what}: no Docker daemon at {address}: {reason}. Start it (`sudo systemctl start "
        "docker`, or `dockerd` as root), or set DOCKER_HOST to where it listens"
    )
