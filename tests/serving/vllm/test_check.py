"""What is said of a server that cannot serve a run, and of one that can."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from agentrl.errors import ConfigError, EngineError
from agentrl.serving.vllm import VllmEngine
from agentrl.serving.vllm.check import Expected, check_server, require
from agentrl.serving.vllm.launcher import VllmServer
from agentrl.types import SamplingParams
from agentrl.types.finding import Finding
from tests.serving.tiny_vllm import CONTEXT, VOCABULARY, log_probs, transfer_backend, write_model
from tests.serving.vllm.test_launcher import tree, until_gone


def expected(folder: Path, **changes: object) -> Expected:
    from transformers import AutoTokenizer

    text = "Say it: caf\u00e9 <|im_end|>"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    settings = {
        "vocab_size": VOCABULARY,
        "max_context_tokens": CONTEXT,
        "tokenizer_size": len(tokenizer),
        "texts": {text: tokenizer.encode(text, add_special_tokens=False)},
        "score": lambda prompt, ids, t: log_probs(folder, prompt, ids, temperature=t),
        "weight_transfer": transfer_backend(),
    }
    return Expected(**{**settings, **changes})  # type: ignore[arg-type]


def whats(findings: list[Finding]) -> list[str]:
    return [finding.name for finding in findings]


async def test_a_server_that_fits_has_no_findings(
    vllm_server: VllmServer, vllm_model_dir: Path
) -> None:
    assert await check_server(vllm_server.url, expected(vllm_model_dir)) == []


async def test_all_that_does_not_fit_is_found_at_once(
    vllm_server: VllmServer, vllm_model_dir: Path, tmp_path: Path
) -> None:
    """Fails if one finding hides the others."""
    other = write_model(tmp_path, seed=5)
    wanted = expected(
        vllm_model_dir,
        max_context_tokens=CONTEXT + 1,
        model="pupil",
        texts={"abc": [1, 2, 3]},
        score=lambda prompt, ids, t: log_probs(other, prompt, ids, temperature=t),
        weight_transfer="strange",
    )
    findings = await check_server(vllm_server.url, wanted)
    assert whats(findings) == ["model name", "context", "tokenizer", "weights", "weight transfer"]
    with pytest.raises(ConfigError, match=r"context: found 8192 tokens, needed 8193 \(rollout"):
        require({vllm_server.url: findings})
    require({vllm_server.url: []})


@pytest.mark.parametrize("size", [VOCABULARY - 20, VOCABULARY + 20])
async def test_another_vocabulary_is_found(
    vllm_server: VllmServer, vllm_model_dir: Path, size: int
) -> None:
    wanted = expected(vllm_model_dir, vocab_size=size, score=None, tokenizer_size=0)
    assert whats(await check_server(vllm_server.url, wanted)) == ["vocabulary"]


async def test_a_paused_server_is_found(vllm_engine: VllmEngine, vllm_model_dir: Path) -> None:
    """Fails if the probes wait for a server that a killed run has left paused."""
    await vllm_engine.pause()
    try:
        findings = await check_server(vllm_engine.url, expected(vllm_model_dir))
    finally:
        await vllm_engine.resume()
    assert whats(findings) == ["state"]


async def test_nobody_at_the_address(unused_tcp_port: int) -> None:
    wanted = Expected(vocab_size=9, max_context_tokens=9)
    (finding,) = await check_server(f"http://127.0.0.1:{unused_tcp_port}", wanted)
    assert finding.detail.startswith("found nobody")
    (finding,) = await check_server("htp:/nonsense", wanted)
    assert finding.name == "address"


async def test_something_else_at_the_address() -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail ready\r\n")
        await writer.drain()
        writer.close()

    wanted = Expected(vocab_size=9, max_context_tokens=9)
    async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        (finding,) = await check_server(f"http://127.0.0.1:{port}", wanted)
        assert finding.detail.startswith("found no HTTP")


@pytest.fixture
async def plain_server() -> AsyncIterator[str]:
    """The answers of a vLLM server for chats, started without any of our options."""

    async def models(request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "policy", "max_model_len": 64}]})

    async def version(request: web.Request) -> web.Response:
        return web.json_response({"version": "0.32.0"})

    app = web.Application()
    app.add_routes([web.get("/v1/models", models), web.get("/version", version)])
    async with TestServer(app) as server:
        yield f"http://127.0.0.1:{server.port}"


async def test_missing_endpoints_name_their_flags(plain_server: str) -> None:
    wanted = Expected(vocab_size=9, max_context_tokens=64, weight_transfer="agentrl")
    findings = await check_server(plain_server, wanted)
    assert [finding.fix for finding in findings] == [
        "start it with VLLM_SERVER_DEV_MODE=1 in its environment",
        "start it with --enable-scale-out",
    ]


@pytest.mark.parametrize(
    ("overrides", "dtype", "wanted", "said"),
    [
        ({}, "torch.bfloat16", "model", None),
        ({}, "torch.float32", "float32", None),
        ({"head_dtype": "float32"}, "torch.bfloat16", "float32", None),
        ({}, "torch.bfloat16", "float32", "--head-dtype float32"),
        ({"head_dtype": "float32"}, "torch.bfloat16", "model", "--head-dtype model"),
        ({"rope_theta": "5"}, "torch.bfloat16", "model", None),
    ],
)
async def test_a_server_with_another_head(
    overrides: dict[str, str], dtype: str, wanted: str, said: str | None
) -> None:
    """Fails if sampler and trainer may round logits differently without a sound."""

    async def answer(request: web.Request) -> web.Response:
        model_config = {"hf_overrides": overrides, "dtype": dtype}
        return web.json_response(
            {
                "data": [{"id": "policy", "max_model_len": 64}],
                "is_paused": True,
                "vllm_config": {"model_config": model_config},
            }
        )

    app = web.Application()
    paths = ("/v1/models", "/version", "/is_paused", "/server_info", "/inference/v1/generate")
    app.add_routes([web.get(path, answer) for path in paths])
    wants = Expected(vocab_size=9, max_context_tokens=48, head_dtype=wanted, rotary_limit=48)
    async with TestServer(app) as server:
        findings = await check_server(f"http://127.0.0.1:{server.port}", wants)
    found = [finding for finding in findings if finding.name == "head"]
    assert bool(found) == (said is not None)
    assert all(said in (finding.fix or "") for finding in found if said)
    # Overrides that the trainer has not; and a context for which vLLM takes other frequencies.
    details = {finding.name: f"{finding.detail} {finding.fix}" for finding in findings}
    assert ("rope_theta" in details.get("config", "")) == ("rope_theta" in overrides)
    assert "64 tokens" in details["context"]
    assert "--max-model-len 48" in details["context"]


SERVE = (sys.executable, "-c", "from agentrl.cli import main; main()", "serve")
OPTIONS = ("--max-context", "8192", "--dtype", "float32", "kv_cache_gb=0.1", "max_batch_size=8")


@pytest.fixture(scope="module")
def served(
    vllm_model_dir: Path, tmp_path_factory: pytest.TempPathFactory, free_port: int
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`agentrl serve` with the wrong log-probs, which a test may kill."""
    log = tmp_path_factory.mktemp("serve") / "log"
    words = (str(vllm_model_dir), "--port", str(free_port), "--log", str(log), *OPTIONS)
    # Several processes, so that segments of shared memory carry what they say.
    several = ("distributed-executor-backend=mp",)
    command = (*SERVE, *words, "logprobs-mode=raw_logprobs", *several)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    said = ""
    while "urls:" not in said:
        line = process.stdout.readline()
        assert line, said
        said += line
    assert f'serving:\n  engine: external\n  urls: ["http://127.0.0.1:{free_port}"]\n' in said
    yield process, f"http://127.0.0.1:{free_port}"
    process.kill()
    process.stdout.close()
    process.wait()


@pytest.fixture(scope="module")
def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.fleet
async def test_raw_log_probs_are_found(
    served: tuple[subprocess.Popen[str], str], vllm_model_dir: Path
) -> None:
    """Fails if log-probs that no temperature has divided pass for those of the sampler."""
    wanted = expected(vllm_model_dir, weight_transfer="nccl")
    findings = await check_server(served[1], wanted)
    assert whats(findings) == ["log-probs", "weight transfer"]
    assert findings[0].fix == "start it with --logprobs-mode processed_logprobs"


def shared_memory(pid: int) -> set[Path]:
    """Segments with a name that a process has mapped."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    words = [line.split(maxsplit=5)[-1] for line in lines]
    return {Path(word) for word in words if word.startswith("/dev/shm/") and "deleted" not in word}


@pytest.mark.fleet
async def test_a_run_killed_in_mid_generation_leaves_nothing(
    served: tuple[subprocess.Popen[str], str],
) -> None:
    """Fails if a turn that was cut off counts as refused, which would sample it again, or if a
    process or a shared-memory segment of a real server outlives the run that started it."""
    process, url = served
    engine = VllmEngine(url)
    sampling = SamplingParams(max_tokens=8000)
    turn = asyncio.ensure_future(engine.generate([1, 2, 3], sampling, "s"))
    while (await engine.health()).in_flight == 0 or not (await engine.health()).ready:
        await asyncio.sleep(0.02)
    pids = tree(process.pid)[1:]
    assert len(pids) >= 4, "supervisor, API server, engine core, worker"
    segments = {path for pid in pids for path in shared_memory(pid)}
    assert segments
    process.kill()
    with pytest.raises(EngineError) as caught:
        await turn
    assert type(caught.value) is EngineError
    await until_gone(pids)
    assert [path for path in segments if path.exists()] == []
    await engine.close()


@pytest.mark.fleet
async def test_ctrl_c_while_it_starts_ends_all_of_it(
    vllm_model_dir: Path, tmp_path: Path, unused_tcp_port: int
) -> None:
    words = (str(vllm_model_dir), "--port", str(unused_tcp_port), "--log", str(tmp_path / "log"))
    with subprocess.Popen((*SERVE, *words, *OPTIONS), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert "starting on port" in await asyncio.to_thread(process.stdout.readline)
        await asyncio.sleep(0.5)
        pids = tree(process.pid)
        assert len(pids) >= 3
        process.send_signal(signal.SIGINT)
        assert await asyncio.to_thread(process.wait, 60) == 130
    await until_gone(pids)
