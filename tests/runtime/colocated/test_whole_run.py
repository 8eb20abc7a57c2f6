"""A whole run whose trainer and server take turns on a device that is a book."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from agentrl.config import load_config
from agentrl.runtime.assembly import engine_care, engines, weight_route
from agentrl.runtime.checks import colocation, fleet
from agentrl.runtime.colocated.turns import TurnTaking
from agentrl.runtime.launch import train
from agentrl.runtime.progress import Progress
from agentrl.serving.keeper import Keeper
from agentrl.serving.vllm import command
from agentrl.serving.vllm.sleep import SharedDevice
from tests.runtime.colocated.test_wiring import Launched
from tests.runtime.tiny_project import write_project
from tests.serving.vllm.fake_device import DeviceBook, SleepingServer


class Told(Progress):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def note(self, text: str) -> None:
        self.lines.append(text)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[DeviceBook, SleepingServer]:
    """One GPU with a vLLM server on it, as torch and vLLM would show them."""
    book, chance = DeviceBook(100), random.Random(2)
    server = SleepingServer("vllm-0", book, weights=20, cache=70)
    server.turn = lambda: chance.choices(range(60, 120), k=4)
    server.log_prob = -5.5  # of a random model with 258 tokens
    cuda = torch.device("cuda", 0)
    for module in (weight_route, colocation):
        monkeypatch.setattr(module, "pick_device", lambda _: cuda)
    for module in (command, engines, weight_route, colocation, fleet):
        monkeypatch.setattr(module, "vllm_device", lambda: "cuda")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (book.free, book.total))

    async def launch(*args: Any, log_dir: Path, **options: Any) -> list[Any]:
        await server.start()
        return [Launched(server, log_dir / "vllm-0.log")]

    async def stop(servers: Sequence[Any]) -> None:
        await asyncio.gather(*(one.stop() for one in servers))

    monkeypatch.setattr(engines, "server_commands", lambda *args, **options: ["command"])
    monkeypatch.setattr(engines, "launch_servers", launch)
    monkeypatch.setattr(engines, "stop_servers", stop)
    monkeypatch.setattr(engine_care, "Keeper", partial(Keeper, look_s=0.001, back_off_s=0.001))
    return book, server


async def run(tmp_path: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """The lines of `metrics.jsonl` of a run of two steps, and what its user was told."""
    file = write_project(
        tmp_path, serving={"engine": "vllm", "kv_cache_gb": 0.1}, sync={"backend": "shm"},
        train__steps=2, eval__datasets={}, checkpoint__every_steps=2,
        runtime={"kind": "local", "colocated": True},
    )  # fmt: skip
    told = Told()
    async with asyncio.timeout(300):
        result = await train(load_config(file), base=tmp_path, progress=told)
    (metrics,) = tmp_path.rglob("metrics.jsonl")
    assert result is not None
    return [json.loads(line) for line in metrics.read_text().splitlines()], told.lines


async def test_a_run_takes_turns_and_writes_them_down(
    device: tuple[DeviceBook, SleepingServer], tmp_path: Path
) -> None:
    """Fails if the run of a user never sleeps, or if the numbers of a turn are written nowhere."""
    book, server = device
    lines, told = await run(tmp_path)
    assert any("colocated: servers sleep (level 2)" in text for text in told)
    assert book.refused == []
    slept = [call for call in server.calls if call.startswith("/sleep")]
    assert len(slept) >= 2
    turns = [line for line in lines if "sync/asleep_s" in line]
    assert len(turns) == 2, lines
    for line in turns:
        assert line["sync/asleep_s"] > 0
        assert line["sync/wake_s"] > 0
        assert line["sync/to_trainer_s"] > 0
    # Two moments of float32 weights, which are their own masters.
    weights = sum(p.stat().st_size for p in (tmp_path / "model").glob("*.safetensors"))
    assert turns[-1]["sync/put_aside_bytes"] == pytest.approx(2 * weights, rel=0.1)


@pytest.mark.parametrize("trouble", ["fails", "is late", "too little memory"])
async def test_a_wake_that_goes_wrong_is_named_and_the_run_goes_on(
    device: tuple[DeviceBook, SleepingServer],
    tmp_path: Path,
    trouble: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Fails if a run hangs, ends, or says nothing where its server does not wake up."""
    book, server = device
    monkeypatch.setattr(colocation, "SharedDevice", partial(SharedDevice, limit_s=0.5))
    caplog.set_level("WARNING", "aiohttp.access")  # names each path, too
    hung, wakes = asyncio.Event(), 0

    async def before(path: str) -> None:
        nonlocal wakes
        wakes += path == "/wake_up?tags=weights"
        second = path == "/wake_up?tags=weights" and wakes == 2
        if second and trouble == "fails":
            server.answers[path] = (500, "CUDA error: device-side assert")
        elif second and trouble == "is late":
            await hung.wait()
        elif path == "/v1/models":
            server.answers.clear()

    async def to_engines(turns: TurnTaking) -> None:
        await give(turns)
        if trouble == "too little memory" and wakes == 1:
            book.take("someone", "else", 50)

    server.before, give = before, TurnTaking.to_engines
    monkeypatch.setattr(TurnTaking, "to_engines", to_engines)
    stop = server.kill

    async def kill() -> None:
        await stop()
        book.give("someone")
        server.answers.clear()

    monkeypatch.setattr(server, "kill", kill)
    lines, told = await run(tmp_path)
    assert sum("train/loss" in line for line in lines) == 2
    said = [text for text in (*told, caplog.text) if "wake_up?tags=weights" in text]
    expected = {
        "fails": "device-side assert",
        "is late": "no answer within 0.5 s",
        "too little memory": "are free on cuda:0: lower serving.kv_cache_gb",
    }[trouble]
    assert any(expected in text for text in said), (told, caplog.text[-2000:])
