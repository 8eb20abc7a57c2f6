from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from agentrl_sandboxes import BACKENDS

from agentrl.sandbox import Sandbox, SandboxBackend, SandboxLimits, SandboxSpec
from tests.envs.local_sandbox import LocalSandboxes


@dataclass
class BackendSandboxes:
    """Sandboxes of a backend, for an environment."""

    backend: SandboxBackend
    limits: SandboxLimits = field(default_factory=SandboxLimits)

    async def new(self, spec: SandboxSpec | None = None) -> Sandbox:
        return await self.backend.create(self.limits)


@pytest.fixture
async def backend():
    """A real backend; the weakest one works on every machine."""
    made = BACKENDS["process"]()
    yield made
    await made.close()


@pytest.fixture
async def sandbox(backend):
    made = await backend.create(SandboxLimits())
    yield made
    await made.close()


@pytest.fixture
def real(backend):
    """Sandboxes of the real backend."""
    return BackendSandboxes(backend)


@pytest.fixture
async def fake():
    """Sandboxes that isolate nothing and are made at once."""
    made = LocalSandboxes()
    yield made
    await made.close()
