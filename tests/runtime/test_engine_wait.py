"""A change that no engine took: the fleet waits for one to come back instead of ending the run."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from agentrl.disk.checkpoint import list_checkpoints
from agentrl.engine import Engine, WeightTicket
from agentrl.errors import EngineError, NoEngine, Outage, SyncError, WeightsDoNotFit
from agentrl.machine.processes.stop import Interrupted, StopSwitch
from agentrl.metrics import MetricBag
from agentrl.runtime.assembly.engine_addresses import EngineAddress
from agentrl.runtime.assembly.local_stages import LocalEngines
from agentrl.runtime.engine_wait import Push
from agentrl.runtime.ray.engine_stage import RayEngines
from agentrl.serving import TokenClient
from agentrl.testing import ByteTokenizer, ScriptedEngine
from tests.runtime.driver_fakes import Fuse, StreamingWorker, drive, fake_config
from tests.runtime.drivers.test_driver import digest_of_store, lines


def engine(version: int = 0) -> ScriptedEngine:
    return ScriptedEngine(["hello"], ByteTokenizer(), name="only", version=version)


def ticket(version: int) -> WeightTicket:
    return WeightTicket(backend="inprocess", version=version)


async def test_a_sync_that_reached_nobody_is_tried_again_when_the_server_is_back() -> None:
    """Fails if the fleet stays paused after the failure: nobody may come back then."""
    first = engine(version=1)

    async def recover(restarted: Engine) -> None:
        await restarted.pause()
        if restarted.version < 1:
            await restarted.load_weights(ticket(1))
        await restarted.resume()

    client = TokenClient([first], probe_s=0.001, recover=recover)
    tries = 0

    async def push(version: int) -> MetricBag:
        nonlocal tries
        tries += 1
        if tries == 1:
            await client.pause_all()
            await first.close()
            asyncio.get_running_loop().call_later(0.01, client.replace, "only", engine(-1))
            raise SyncError("version 2 reached no engine")
        await client.pause_all()
        await client.load_weights(ticket(version))
        await client.resume_all()
        return MetricBag()

    engines = LocalEngines(client, push, shared=False, wait_s=5.0)
    await engines.sync(2)
    assert (tries, client.version, client.active()) == (2, 2, ["only"])
    await client.close()


async def test_waiting_has_an_end() -> None:
    """Fails if the run would wait for ever for a server that nobody starts."""
    client = TokenClient([engine()], probe_s=0.001, recover=None)
    client.recover = never
    with pytest.raises(NoEngine, match=r"no engine came back within 0\.05 s: gone"):
        await client.start_over("gone", limit_s=0.05)
    await client.close()


async def never(_: Engine) -> None:
    raise EngineError("still down")


class NoRankFailure:
    """Nobody dies."""

    async def guard(self, work: Any) -> Any:
        return await work


class NoWorkers:
    """A run without rollout workers."""

    usable = ()


def stage_of(kind: str, client: TokenClient, push: Push) -> LocalEngines | RayEngines:
    if kind == "local":
        return LocalEngines(client, push, shared=False, wait_s=30.0)
    return RayEngines(
        client,
        NoWorkers(),  # pyright: ignore[reportArgumentType]
        push,
        NoRankFailure(),  # pyright: ignore[reportArgumentType]
        addresses={"only": EngineAddress(name="only", address="http://a:1")},
        shared=False,
        wait_s=30.0,
    )


both = pytest.mark.parametrize("kind", ["local", "ray"])


@both
@pytest.mark.parametrize("caught_up", [False, True])
async def test_an_outage_of_all_engines_is_survived_wherever_they_are(
    kind: str, caught_up: bool
) -> None:
    """Fails if only one runtime waits, or if an engine that came back with the weights is given
    them again: it refuses what is not newer."""

    async def recover(restarted: Engine) -> None:
        if caught_up:
            await restarted.pause()
            await restarted.load_weights(ticket(2))
            await restarted.resume()

    client = TokenClient([engine(version=1)], probe_s=0.001, recover=recover)
    tries = 0

    async def push(version: int) -> MetricBag:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise SyncError("version 2 reached no engine")
        await client.pause_all()
        await client.load_weights(ticket(version))
        await client.resume_all()
        return MetricBag()

    await stage_of(kind, client, push).sync(2)
    assert (tries, client.version, client.active()) == (2 - caught_up, 2, ["only"])
    await client.close()


@both
async def test_a_signal_ends_the_wait_for_an_engine(kind: str) -> None:
    """Fails if Ctrl-C is heard only when the patience ends."""
    client = TokenClient([engine()], probe_s=0.001, recover=never)

    async def push(version: int) -> MetricBag:
        raise SyncError("it reached no engine")

    stage, stop = stage_of(kind, client, push), StopSwitch()
    stage.guard = stop.guard
    asyncio.get_running_loop().call_later(0.02, stop.request)
    async with asyncio.timeout(120):
        with pytest.raises(Interrupted):
            await stage.sync(1)
    await client.close()


@both
@pytest.mark.parametrize("cancelled", [True, False])
async def test_a_signal_ends_a_push_that_hangs(
    kind: str, cancelled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if a run whose sync is stuck ignores Ctrl-C, or if one that would end is cancelled."""
    monkeypatch.setattr("agentrl.runtime.engine_wait.STOP_LIMIT_S", 0.05 if cancelled else 60.0)
    client = TokenClient([engine()], probe_s=0.001, recover=never)
    events: list[str] = []

    async def push(version: int) -> MetricBag:
        try:
            await asyncio.sleep(3600 if cancelled else 0.2)
        except asyncio.CancelledError:
            await asyncio.sleep(0.01)
            events.append("cleaned up")
            raise
        return MetricBag()

    stage, stop = stage_of(kind, client, push), StopSwitch()
    stage.guard = stop.guard
    asyncio.get_running_loop().call_later(0.02, stop.request)
    async with asyncio.timeout(120):
        if cancelled:
            with pytest.raises(Interrupted):
                await stage.sync(1)
        else:
            await stage.sync(1)
    assert events == ["cleaned up"] * cancelled
    await client.close()


@pytest.mark.parametrize("schedule", [{}, {"oversample": 2.0}, {"staleness_threshold": 1.0}])
async def test_a_step_whose_weights_reach_nobody_is_kept(
    tmp_path: Path, schedule: dict[str, float]
) -> None:
    """Fails if a run that is interrupted while it waits for engines saves the weights of a step
    under the number of the one before, which would train it twice."""
    stop, fuse = StopSwitch(), Fuse()

    async def outage() -> None:
        while "sync to 2" not in fuse.places:
            await asyncio.sleep(0.001)
        stop.request()

    config = fake_config(tmp_path, schedule=schedule, engine="vllm")
    asking = asyncio.create_task(outage())
    with pytest.raises(Interrupted):
        await drive(
            config, fuse=fuse, worker=StreamingWorker(fuse), stop=stop, broken_sync="sync to 2"
        )
    await asking
    (point,) = list_checkpoints(tmp_path / "fake" / "checkpoints")
    assert (point.state.step, point.state.version) == (2, 2)


@pytest.mark.parametrize("schedule", [{}, {"oversample": 2.0}, {"staleness_threshold": 1.0}])
async def test_an_outage_that_a_sync_meets_keeps_its_step(
    tmp_path: Path, schedule: dict[str, float]
) -> None:
    """Fails if servers that die while a step is trained cost it: its checkpoint, its line of
    metrics, or its number."""
    config = fake_config(tmp_path, schedule=schedule, engine="vllm")
    with pytest.raises(Outage, match=r"after step 2: no engine came back within 0\.05 s.*--resume"):
        await drive(config, worker=StreamingWorker(Fuse()), broken_sync="sync to 2", wait_s=0.05)
    (point,) = list_checkpoints(tmp_path / "fake" / "checkpoints")
    assert (point.state.step, point.state.version) == (2, 2)
    steps = [line["step"] for line in lines(config) if "timing_s/step" in line]
    assert steps == [1, 2]
    result, trainer = await drive(config, worker=StreamingWorker(Fuse()))
    assert (result.steps, trainer.digest) == (7, digest_of_store(config))


@both
async def test_an_engine_that_is_lost_again_in_the_second_push_is_an_outage(kind: str) -> None:
    async def recover(restarted: Engine) -> None:
        await restarted.resume()

    client = TokenClient([engine(version=1)], probe_s=0.001, recover=recover)

    async def push(version: int) -> MetricBag:
        raise SyncError(f"version {version} reached no engine")

    with pytest.raises(Outage, match="lost again"):
        await stage_of(kind, client, push).sync(2)
    await client.close()


async def test_weights_that_fit_no_server_are_not_tried_again() -> None:
    """Fails if a run waits for servers that hold another model to be back: they never take it."""
    client = TokenClient([engine()])
    tries = 0

    async def load(_: WeightTicket) -> None:
        raise WeightsDoNotFit("3 weights have no place in LlamaForCausalLM")

    async def push(version: int) -> MetricBag:
        nonlocal tries
        tries += 1
        client.engine("only").load_weights = load
        try:
            await client.pause_all()
            await client.load_weights(ticket(version))
        except EngineError as error:
            raise SyncError(f"version {version} reached no engine: {error}") from error
        return MetricBag()

    engines = LocalEngines(client, push, shared=False, wait_s=600.0)
    async with asyncio.timeout(120):
        with pytest.raises(SyncError, match="have no place in LlamaForCausalLM"):
            await engines.sync(1)
    assert tries == 1
    await client.close()
