"""The first process of a sandbox outlives whatever a request makes it raise."""

from __future__ import annotations

import pytest
from agentrl_sandboxes import BACKENDS
from agentrl_sandboxes.guest import wire
from agentrl_sandboxes.host.supervised import SupervisedSandbox

from agentrl.sandbox import SandboxLimits

UNKNOWN = 99
REQUESTS = {
    "exec": wire.EXEC,
    "start": wire.START,
    "input": wire.INPUT,
    "interrupt": wire.INTERRUPT,
    "read": wire.READ,
    "write": wire.WRITE,
    "upload": wire.UNPACK,
    "snapshot": wire.PACK,
    "download": wire.FETCH,
    "no such request": UNKNOWN,
}


async def test_request_that_raises_is_answered_as_failed(backend_name: str) -> None:
    # Fails if only OSError is an answer: the supervisor ends, and the sandbox with it.
    backend = BACKENDS[backend_name]()
    try:
        sandbox = await backend.create(SandboxLimits())
        assert isinstance(sandbox, SupervisedSandbox)
        for kind in REQUESTS.values():
            with pytest.raises(OSError, match="KeyError"):
                await sandbox.started.channel.request(kind, {}, timeout_s=30.0)
        result = await sandbox.exec(("echo", "alive"))
        assert result.stdout == "alive\n"
        await sandbox.write_file("f", b"x")
        assert await sandbox.read_file("f") == b"x"
    finally:
        await backend.close()
