from __future__ import annotations

import pytest
from agentrl_sandboxes import make_backend

from agentrl.sandbox import SandboxLimits
from tests.envs.local_sandbox import LocalSandbox


@pytest.fixture
async def backend():
    """A real backend; the weakest one works on every machine."""
    made = await make_backend("process")
    yield made
    await made.close()


@pytest.fixture
async def sandbox(backend):
    made = await backend.create(SandboxLimits())
    yield made
    await made.close()


@pytest.fixture
async def fake():
    made = LocalSandbox()
    yield made
    await made.close()
