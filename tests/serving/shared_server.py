"""One real vLLM server on a tiny random model, for every test of a session that asks for it.

It is started as a run starts one: with the weight transfer of the plug-in and the lean listener.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from agentrl.serving.vllm import VllmEngine
    from agentrl.serving.vllm.launcher import VllmServer

# Imports of ours stand in the fixtures: every session of tests loads this file.


@pytest.fixture(scope="session")
def vllm_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Llama and its byte tokenizer, in Hugging Face format."""
    from tests.serving.tiny_vllm import require_vllm, write_model

    require_vllm()
    return write_model(tmp_path_factory.mktemp("tiny-model"))


@pytest.fixture(scope="session")
def other_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model with other weights."""
    from tests.serving.tiny_vllm import require_vllm, write_model

    require_vllm()
    return write_model(tmp_path_factory.mktemp("other-model"), seed=1)


@pytest.fixture(scope="session")
def vllm_server(
    vllm_model_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[VllmServer]:
    """The server, shared: a test that pauses it resumes it, and one that kills it restarts it."""
    from agentrl.serving.vllm.launcher import VllmServer
    from tests.serving.tiny_vllm import tiny_command

    log = tmp_path_factory.mktemp("vllm") / "server.log"
    server = VllmServer(tiny_command(vllm_model_dir), name="vllm-0", log=log, start_limit_s=240)
    asyncio.run(server.start())
    yield server
    asyncio.run(server.stop())


@pytest.fixture
async def vllm_engine(vllm_server: VllmServer) -> AsyncIterator[VllmEngine]:
    """A connected engine over the shared server."""
    from agentrl.serving.vllm import VllmEngine

    engine = VllmEngine(vllm_server.url, name="vllm-0", probe_limit_s=30)
    await engine.connect()
    yield engine
    await engine.close()


@pytest.fixture
async def updated_engine(
    vllm_engine: VllmEngine, vllm_model_dir: Path, tmp_path: Path
) -> AsyncIterator[VllmEngine]:
    """The shared engine for a test of new weights: it gets its own and its first version back."""
    from agentrl.sync.disk.disk import DiskSender
    from tests.serving.tiny_vllm import weights_of

    yield vllm_engine
    sender = DiskSender(tmp_path / "back")
    version = vllm_engine.version + 1000
    await vllm_engine.pause()
    await vllm_engine.load_weights(sender.send(weights_of(vllm_model_dir), version))
    await vllm_engine.adopt_version(0)
    await vllm_engine.resume()
    sender.close()
