"""The need of agent programs for a sandbox with ports, looked at before a run begins."""

from __future__ import annotations

import asyncio

from agentrl.config import resolve
from agentrl.errors import SandboxUnavailable
from agentrl.sandbox import SandboxBackend, SandboxLimits

_BACKENDS = "agentrl_sandboxes:BACKENDS"


async def require_port(backend: SandboxBackend) -> None:
    """Open a port in a fresh sandbox, through which an agent program reaches its model.

    Raises:
        SandboxUnavailable: sandboxes of this backend have none; names the backends that do.
        SandboxError: the sandbox failed.
    """
    sandbox = await backend.create(SandboxLimits())
    try:
        await (await sandbox.listen(asyncio.Protocol)).close()
    except SandboxUnavailable as error:
        raise SandboxUnavailable(
            f"sandbox backend {backend.name}: an agent program reaches its model through "
            f"Sandbox.listen, which this one does not have ({error}); set sandbox.backend to one "
            f"that has it: {', '.join(resolve(_BACKENDS))}"
        ) from error
    finally:
        await sandbox.close()
