"""One real vLLM server on a tiny random model, for every test that asks for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from agentrl.serving.vllm import VllmEngine
from agentrl.serving.vllm.launcher import VllmServer
from tests.serving.tiny_vllm import require_vllm, tiny_command, write_model


@pytest.fixture(scope="session")
def vllm_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Llama and its byte tokenizer, in Hugging Face format."""
    require_vllm()
    return write_model(tmp_path_factory.mktemp("tiny-model"))


@pytest.fixture(scope="session")
def vllm_server(
    vllm_model_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[VllmServer]:
    """The server, shared: a test that pauses it resumes it, and none ends it."""
    log = tmp_path_factory.mktemp("vllm") / "server.log"
    server = VllmServer(tiny_command(vllm_model_dir), name="vllm-0", log=log, start_limit_s=240)
    asyncio.run(server.start())
    yield server
    asyncio.run(server.stop())


@pytest.fixture
async def vllm_engine(vllm_server: VllmServer) -> AsyncIterator[VllmEngine]:
    """A connected engine over the shared server."""
    engine = VllmEngine(vllm_server.url, name="vllm-0", probe_limit_s=30)
    await engine.connect()
    yield engine
    await engine.close()
