"""Servers that ran before the run did: what they hold is never taken for the run's own weights."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from agentrl.config import RunConfig, load_config
from agentrl.config.fleet import ExternalServing
from agentrl.config.plan import plan_run
from agentrl.engine import WeightTicket
from agentrl.errors import ConfigError, RunError
from agentrl.metrics import MetricBag
from agentrl.runtime.assembly.engine_addresses import EngineAddress, connect, connect_all
from agentrl.runtime.assembly.engines import UNKNOWN_VERSION, OpenEngines, open_engines
from agentrl.runtime.assembly.local_stages import LocalEngines
from agentrl.runtime.checks.fleet import require_engines
from agentrl.runtime.drivers.weight_sync import EngineWeights
from agentrl.runtime.progress import Progress
from agentrl.runtime.sampling.sample import evaluate
from agentrl.sync import WeightSync
from tests.runtime.assembly.fake_vllm import fake_vllm
from tests.runtime.driver_fakes import fake_config
from tests.runtime.tiny_project import write_model, write_project


class Nothing:
    """A sender of staged weights, without any."""

    backend = "shm"
    streams = False

    def connect(self, receivers: int) -> list[dict[str, object]]:
        return [{}] * receivers

    def announce(self, version: int) -> WeightTicket:
        raise AssertionError("nothing is streamed")

    def send(self, weights: object, version: int) -> WeightTicket:
        return WeightTicket(backend="shm", version=version, info={}, checksum="")

    def close(self) -> None:
        pass


def with_urls(tmp_path: Path, *urls: str) -> RunConfig:
    config = fake_config(tmp_path, engine="vllm")
    serving = ExternalServing(urls=urls)
    return config.model_copy(update={"serving": serving})


def opening(config: RunConfig, version: int) -> AbstractAsyncContextManager[OpenEngines]:
    """The engines of a config whose servers run already."""
    return open_engines(
        config.serving,
        config.sync,
        config.model,
        max_context_tokens=config.rollout.max_context_tokens,
        wait_s=0.0,
        model=None,
        source="",
        logs=Path(config.run.dir),
        version=version,
        note=print,
    )


async def sync(engines: object, learner: int) -> None:
    """The sync of a driver whose learner is at a version."""
    stages = SimpleNamespace(learner=SimpleNamespace(version=learner), engines=engines)
    await EngineWeights(stages, Progress()).sync(MetricBag())  # type: ignore[arg-type]


@pytest.mark.parametrize("left", [["26"], ["26", "3"], ["default", "26"], ["26", "26"]])
async def test_what_an_earlier_run_left_is_replaced(tmp_path: Path, left: list[str]) -> None:
    """Fails if a run takes the larger number of an earlier run for newer weights of its own, or if
    servers with different leftovers cannot begin together."""
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(fake_vllm(version)) for version in left]
        engines = await stack.enter_async_context(
            opening(with_urls(tmp_path, *(server.url for server in servers)), UNKNOWN_VERSION)
        )
        weights = WeightSync(engines.client, Nothing())  # type: ignore[arg-type]
        stage = LocalEngines(engines.client, lambda v: weights.push(tuple, v), shared=False)
        await sync(stage, 0)
        assert [server.version for server in servers] == ["0"] * len(left)
        assert all("/update_weights" in server.asked for server in servers)


async def test_who_only_scores_changes_nothing_on_a_server(tmp_path: Path) -> None:
    """Fails if an evaluation renames the weights of a server that a run may be using."""
    async with fake_vllm("26") as server:
        config = with_urls(tmp_path, server.url)
        async with opening(config, 0):
            assert server.version == "26"


async def test_on_ray_the_driver_adopts_and_the_workers_believe_the_server() -> None:
    """Fails if workers see the number of an earlier run, or if a worker that is started later makes
    the server forget what the run has brought."""
    async with fake_vllm("26") as server:
        entry = EngineAddress(name="server-0", address=server.url, max_context_tokens=64)
        (driver,) = await connect_all([entry], adopt=True)
        worker = await connect(entry)
        assert (driver.version, worker.version) == (UNKNOWN_VERSION, UNKNOWN_VERSION)
        await driver.pause()
        await driver.load_weights(WeightTicket(backend="shm", version=4, info={}, checksum=""))
        late = await connect(entry)
        assert late.version == 4
        for engine in (driver, worker, late):
            await engine.close()


async def test_engines_ahead_of_the_trainer_end_the_run() -> None:
    """Fails if a run goes on while its engines sample from weights that are not its own."""
    engines = SimpleNamespace(version=26)
    with pytest.raises(RunError, match=r"serve version 26 .* trainer is at 0.*another run"):
        await sync(engines, 0)
    await sync(engines, 26)


async def test_only_the_weights_of_the_model_are_scored(tmp_path: Path) -> None:
    """Fails if an evaluation scores whatever a server holds: another model, or what a run that has
    ended has brought there, however near to the model that is."""
    config = load_config(write_project(tmp_path, serving__engine="vllm"))
    own, other = tmp_path / "model", surer(write_model(tmp_path / "other", seed=5))
    for model, version, words in [
        (other, "default", "log-probs .* from those of model.path"),
        (own, "26", r"training run \(version 26\)"),
        (own, "-1", r"training run \(version -1\)"),
    ]:
        async with fake_vllm(version, model) as server:
            with pytest.raises(ConfigError, match=words):
                await evaluate(
                    at(config, server.url),
                    base=tmp_path,
                    model_path=None,
                    out=tmp_path / "out",
                    progress=Progress(),
                )
    async with fake_vllm("default", own) as server:
        await require_engines(plan_run(at(config, server.url), tmp_path).engines, model_path=None)
    async with fake_vllm("default", other) as server:
        await require_engines(
            plan_run(at(config, server.url), tmp_path).engines, model_path=str(other)
        )


def surer(folder: Path) -> Path:
    """Make a random model's log-probabilities differ from those of any other."""
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(50)
    model.save_pretrained(folder)
    return folder


def at(config: RunConfig, url: str) -> RunConfig:
    """The same on a server that runs already."""
    serving = ExternalServing(urls=(url,))
    return config.model_copy(update={"serving": serving})
