"""Trainer and servers never hold the device at once, whoever dies when."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

import pytest
from torch import Tensor

from agentrl.engine import Engine, WeightTicket
from agentrl.errors import TrainError
from agentrl.runtime.assembly.local_stages import LocalEngines
from agentrl.runtime.colocated.turns import Sleepers, TurnTaking
from agentrl.serving import TokenClient
from agentrl.serving.keeper import Keeper
from agentrl.serving.vllm import VllmEngine
from agentrl.sync import WeightSync
from agentrl.types import SamplingParams
from tests.serving.vllm.fake_device import DeviceBook, DeviceFull, SleepingServer

SAMPLING = SamplingParams(max_tokens=1)


class Trainer:
    """State that fills most of the device."""

    def __init__(self, book: DeviceBook, size: int) -> None:
        self.book, self.size = book, size
        self.book.take("trainer", "weights", 1)
        self.book.take("trainer", "state", size)

    @property
    def away_bytes(self) -> int:
        return 0 if ("trainer", "state") in self.book.held else self.size

    def put_aside(self) -> None:
        self.book.give("trainer", "state")

    def bring_back(self) -> None:
        try:
            self.book.take("trainer", "state", self.size)
        except DeviceFull as error:
            raise TrainError(str(error)) from error


class Sender:
    """Staged weights that are a number."""

    backend = "shm"
    streams = False

    def connect(self, receivers: int) -> list[Mapping[str, Any]]:
        return [{}] * receivers

    def send(self, weights: Iterable[tuple[str, Tensor]], version: int) -> WeightTicket:
        return WeightTicket(backend="shm", version=version)

    def announce(self, version: int) -> WeightTicket:
        raise NotImplementedError

    def close(self) -> None:
        pass


class Kept:
    """A server of the run, as `agentrl.runtime.assembly.engines` keeps one."""

    def __init__(self, server: SleepingServer, turns: TurnTaking) -> None:
        self.server, self.turns, self.name = server, turns, server.name

    async def alive(self) -> bool:
        return self.server.running

    async def start_again(self) -> Engine:
        await self.server.kill()
        async with self.turns.starting():
            await self.server.start()
            return await self.connect()

    async def connect(self) -> VllmEngine:
        engine = VllmEngine(self.server.url, name=self.name, start_version=-1, probe_limit_s=5)
        engine.share(self.turns.shared_device(f"/logs/{self.name}.log"))
        try:
            await engine.connect()
        except BaseException:
            await engine.close()
            raise
        return engine


class Run:
    """The parts of a colocated run, less rollouts and training."""

    def __init__(self, *, total: int = 100, trainer: int = 80, level: Any = 2) -> None:
        self.book = DeviceBook(total)
        self.notes: list[str] = []
        self.turns = TurnTaking(device=self.book.shared(), level=level, note=self.notes.append)
        self.server = SleepingServer("vllm-0", self.book, weights=20, cache=70)
        self.trainer_size = trainer
        self.version = 0

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[Run]:
        await self.server.start()
        kept = Kept(self.server, self.turns)
        self.client = TokenClient([await kept.connect()], probe_s=0.001, wait_s=60)
        self.turns.serve(Sleepers(client=self.client, ends={"vllm-0": self.server.kill}))
        await self.turns.to_trainer()
        self.turns.attach(Trainer(self.book, self.trainer_size))
        self.sync = WeightSync(self.client, Sender())
        await self.sync.connect()
        self.stage = LocalEngines(
            self.client,
            lambda version: self.sync.push(lambda: [], version),
            shared=False,
            wait_s=60.0,
            turns=self.turns,
        )
        self.keeper = Keeper(
            self.client,
            [kept],
            note=self.notes.append,
            look_s=0.001,
            back_off_s=0.001,
            restarts_per_hour=10**6,
        )
        keeping = asyncio.create_task(self.keeper.run())
        try:
            yield self
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
            await self.client.close()
            await self.server.kill()

    async def cycle(self) -> None:
        """Sync, sample, train."""
        await self.stage.sync(self.version)
        generation = await self.client.generate([5], SAMPLING, "s")
        assert generation.ids == (self.version,)
        await self.stage.pause()
        assert self.book.held.get(("trainer", "state")) == self.trainer_size
        assert not any(owner == "vllm-0" for owner, _ in self.book.held)
        self.version += 1


async def test_two_hundred_cycles_with_kills_at_random_moments() -> None:
    """Fails if trainer and server are ever on the device at once, if a killed server is started in
    the turn of the trainer, or comes back with old weights; and if a cycle hangs."""
    chance = random.Random(5)
    run, calls_left = Run(), 0
    moments: list[str] = []

    async def perhaps(path: str) -> None:
        nonlocal calls_left
        calls_left -= 1
        if calls_left == 0:
            moments.append(path.partition("?")[0])
            await run.server.kill()

    async with asyncio.timeout(240), run.open():
        run.server.before = perhaps
        for _ in range(200):
            # Once a cycle at most: one that is lost again while it comes back is an outage.
            calls_left = chance.randrange(60)
            if chance.random() < 0.1:
                moments.append("while the trainer works")
                calls_left = 0
                await run.server.kill()
                await asyncio.sleep(0.002)
            await run.cycle()
        assert run.book.refused == []
        assert run.keeper.restarts["vllm-0"] >= 20
    assert {"/sleep", "/wake_up", "/update_weights", "while the trainer works"} <= set(moments)


async def test_a_server_that_does_not_sleep_is_ended_and_comes_back() -> None:
    """Fails if the trainer is brought back beside it, or if the run goes on without it."""
    async with asyncio.timeout(120), Run().open() as run:
        await run.cycle()
        run.server.answers["/sleep?level=2&mode=keep"] = (500, "boom")
        await run.cycle()
        assert run.book.refused == []
        assert any("vllm-0 is ended" in note and "boom" in note for note in run.notes)
        run.server.answers.clear()
        await run.cycle()


async def test_a_server_that_fails_to_wake_is_started_again() -> None:
    """Fails if a server whose memory is half there is asked to wake for ever."""
    async with asyncio.timeout(120), Run().open() as run:
        await run.cycle()

        async def break_once(path: str) -> None:
            if path == "/wake_up?tags=kv_cache" and path not in run.server.answers:
                run.server.answers[path] = (500, "CUDA out of memory")
            elif path == "/v1/models":
                run.server.answers.clear()  # of the process that was started instead

        run.server.before = break_once
        await run.cycle()
        assert run.keeper.restarts["vllm-0"] == 1
        assert run.book.refused == []


async def test_no_server_is_started_in_the_turn_of_the_trainer() -> None:
    """Fails if the keeper starts a dead server while its memory is the trainer's."""
    async with asyncio.timeout(120), Run().open() as run:
        await run.cycle()
        await run.server.kill()
        for _ in range(20):
            await asyncio.sleep(0.002)
        assert not run.server.running
        await run.cycle()
        assert run.book.refused == []


async def test_a_server_that_is_being_started_is_waited_for() -> None:
    """Fails if the trainer takes the device beside a server that is half there."""
    async with asyncio.timeout(120), Run().open() as run:
        await run.cycle()
        await run.stage.sync(run.version)
        run.server.started.clear()
        await run.server.kill()
        while ("vllm-0", "weights") not in run.book.held:
            await asyncio.sleep(0.001)
        pausing = asyncio.create_task(run.stage.pause())
        await asyncio.sleep(0.02)
        assert not pausing.done()
        run.server.started.set()
        await pausing
        assert run.book.refused == []
        assert list(run.book.held) == [("trainer", "weights"), ("trainer", "state")]


async def test_a_trainer_that_does_not_fit_is_named() -> None:
    """Fails if it is trained somewhere else, or without a word of why not."""
    async with asyncio.timeout(120), Run().open() as run:
        await run.stage.sync(0)
        run.book.take("someone", "else", 5)
        trainer = Trainer.__new__(Trainer)
        trainer.book, trainer.size = run.book, 99
        run.turns.attach(trainer)
        with pytest.raises(TrainError, match="out of memory"):
            await run.stage.pause()


async def test_level_1_keeps_the_weights_through_a_step_given_up() -> None:
    """Fails if a turn of the trainer that trained nothing loses the weights of a level 1 sleep."""
    async with asyncio.timeout(120), Run(level=1).open() as run:
        await run.cycle()
        await run.turns.to_engines()
        await run.client.resume_all()
        assert (await run.client.generate([5], SAMPLING, "s")).ids == (0,)
