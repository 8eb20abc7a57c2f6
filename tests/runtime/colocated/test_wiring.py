"""Servers that a run starts take turns with its trainer: `open_engines` makes the parts meet."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from agentrl.config.fleet import SyncSection, VllmServing
from agentrl.config.schema import ModelSection
from agentrl.engine import WeightTicket
from agentrl.errors import WakeFailed
from agentrl.runtime.assembly import engine_care, engines
from agentrl.runtime.colocated.turns import TurnTaking
from agentrl.serving.keeper import Keeper
from agentrl.train.model.load import parked
from tests.serving.vllm.fake_device import DeviceBook, SleepingServer
from tests.train.tiny_llama import tiny_model


class Launched:
    """A `VllmServer` around a server of the fake device."""

    def __init__(self, server: SleepingServer, log: Path) -> None:
        self.server, self.name, self.log = server, server.name, log
        self.start, self.stop = server.start, server.kill

    @property
    def url(self) -> str:
        return self.server.url

    @property
    def running(self) -> bool:
        return self.server.running


async def test_a_started_server_sleeps_is_gated_and_names_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if engines are connected without the device, if the keeper starts a server in the turn
    of the trainer, if one on a GPU of its own sleeps, or if the model is on the device while
    servers start."""
    book = DeviceBook(100)
    server = SleepingServer("vllm-0", book, weights=20, cache=70)
    other = SleepingServer("vllm-1", DeviceBook(100), weights=20, cache=70)
    asked: dict[str, Any] = {}

    def commands(*args: Any, **options: Any) -> Sequence[Any]:
        asked.update(options)
        return ["command"]

    async def launch(*args: Any, log_dir: Path, **options: Any) -> list[Any]:
        await server.start()
        await other.start()
        return [Launched(one, log_dir / f"{one.name}.log") for one in (server, other)]

    async def stop(servers: Sequence[Any]) -> None:
        await asyncio.gather(*(one.stop() for one in servers))

    monkeypatch.setattr(engines, "server_commands", commands)
    monkeypatch.setattr(engines, "launch_servers", launch)
    monkeypatch.setattr(engines, "stop_servers", stop)
    monkeypatch.setattr(engine_care, "Keeper", partial(Keeper, look_s=0.001))
    notes: list[str] = []
    turns = TurnTaking(device=book.shared(), level=2, note=notes.append)
    model = tiny_model(torch.bfloat16)
    places = [param.data_ptr() for param in model.parameters()]
    turns.attach(parked(model))
    assert places != [param.data_ptr() for param in model.parameters()]
    async with (
        asyncio.timeout(60),
        engines.open_engines(
            VllmServing(engine="vllm"),
            SyncSection(),
            ModelSection(path="m"),
            max_context_tokens=64,
            wait_s=60.0,
            model=None,
            source="m",
            logs=tmp_path,
            version=-1,
            note=notes.append,
            turns=turns,
        ) as opened,
    ):
        assert asked["sleeps"] is True
        await turns.to_trainer()
        assert (book.free, opened.client.paused) == (100, True)
        assert (other.running, other.paused, other.asleep) == (True, True, set())
        assert notes == []
        await server.kill()
        await asyncio.sleep(0.05)
        assert not server.running
        await turns.to_engines()
        opened.client.recover = None
        while not (server.running and opened.client.engine("vllm-0").version == -1):
            await asyncio.sleep(0.001)
        await turns.to_trainer()
        book.take("someone", "else", 50)
        await turns.to_engines()
        engine = opened.client.engine("vllm-0")
        with pytest.raises(WakeFailed, match=str(tmp_path / "vllm-0.log")):
            await engine.load_weights(WeightTicket(backend="shm", version=0))
    assert not server.running
