"""How a run reaches its engines: which device, which address, and nothing left open."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from agentrl.config import RunConfig, parse_config
from agentrl.config.plan import plan_run
from agentrl.disk.run_directory import RunDir
from agentrl.engine import Engine
from agentrl.errors import ConfigError, EngineRefused, SyncError
from agentrl.runtime.assembly import engines, weight_route
from agentrl.runtime.launch import in_flight
from agentrl.runtime.open_stages import syncing
from agentrl.serving import LoadBalancer, TokenClient
from agentrl.serving.vllm import command
from agentrl.testing import ByteTokenizer, ScriptedEngine


def config_of(**sections: Any) -> RunConfig:
    """A run on vLLM servers."""
    data = {"env": {"target": "x:Y"}, "dataset": {"source": "x.jsonl"}}
    serving = {"engine": "vllm", **sections.pop("serving", {})}
    return parse_config({**data, "serving": serving, **sections})


@pytest.fixture
def four_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine as vLLM and torch would show it."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(weight_route, "pick_device", lambda _: torch.device("cuda"))
    for module in (command, engines, weight_route):
        monkeypatch.setattr(module, "vllm_device", lambda: "cuda")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)


@pytest.mark.parametrize(("backend", "name"), [("ipc", "agentrl"), ("nccl", "nccl")])
def test_the_plugin_receives_all_but_nccl(four_gpus: None, backend: str, name: str) -> None:
    """Fails if a server is started with a receiver that does not understand our sender."""
    config = config_of(sync={"backend": backend})
    (started,) = engines.server_commands(
        config.serving, config.sync, config.model, max_context_tokens=64, source="m", secret="s"
    )
    option = started.argv[started.argv.index("--weight-transfer-config") + 1]
    assert json.loads(option) == {"backend": name}


@pytest.mark.parametrize(
    ("sections", "apart", "backend"),
    [
        ({"serving": {"args": {"tensor_parallel_size": 2}}}, True, "collective"),
        # NCCL does not connect two processes on one device.
        ({"serving": {"replicas": 4}}, False, "shm"),
        ({"serving": {"replicas": 4}, "sync": {"backend": "ipc"}}, True, "ipc"),
        ({"serving": {"engine": "external", "urls": ["http://10.1.2.3:8000"]}}, True, "collective"),
        ({"serving": {"engine": "external", "urls": ["http://127.0.0.1:8000"]}}, False, "shm"),
        ({"serving": {"engine": "embedded"}}, False, "inprocess"),
    ],
)
def test_weights_go_from_device_to_device_where_they_can(
    four_gpus: None, sections: dict[str, Any], apart: bool, backend: str
) -> None:
    config = config_of(**sections)
    serving, sync = config.serving, config.sync
    assert weight_route.device_to_device(serving, sync, device="auto") is apart
    assert weight_route.section_backend(serving, sync, device="auto") == backend


@pytest.mark.parametrize(
    ("ray", "serving", "apart"),
    [
        ({"gpus": 1}, {"engine": "vllm"}, True),
        ({"gpus": {"trainer": 1}}, {"engine": "vllm"}, False),
        (
            {"gpus": 1, "placement": "colocated"},
            {"engine": "vllm"},
            False,
        ),
        ({"gpus": {"trainer": 1}}, {"engine": "external", "urls": ["http://10.1.2.3:8000"]}, True),
        ({}, {"engine": "external", "urls": ["http://10.1.2.3:8000"]}, False),
    ],
)
def test_on_ray_it_is_a_matter_of_its_books(
    four_gpus: None, ray: dict[str, Any], serving: dict[str, Any], apart: bool
) -> None:
    """Fails if servers that run already are taken for such without GPUs."""
    config = config_of(runtime={"kind": "ray", **ray}, serving=serving)
    assert weight_route.rank_to_engine(config.ray, config.serving, config.sync) is apart


async def test_the_sender_knows_where_it_is_and_how_wide_servers_are(tmp_path: Path) -> None:
    """Fails if servers on other machines are told to meet the trainer on their own."""
    config = config_of(
        run={"dir": str(tmp_path)},
        serving={
            "engine": "external",
            "urls": ["http://192.0.2.7:8000"],
            "args": {"tensor_parallel_size": 2},
        },
    )
    try:
        own = weight_route.own_address(config.serving.urls)
    except ConfigError:
        pytest.skip("this machine has no network")
    engine = Listening("server-0")
    policy: Any = SimpleNamespace(engines=SimpleNamespace(client=TokenClient([engine])))
    trainer: Any = SimpleNamespace(weights=lambda: iter([("w", torch.zeros(3))]))
    directory = RunDir.create(config, base=tmp_path)
    with pytest.raises(SyncError, match="heard"):
        async with syncing(
            config.sync,
            config.serving,
            policy,
            trainer,
            device="cpu",
            lora=config.train.lora,
            directory=directory.weights,
        ):
            pass
    directory.close()
    assert own not in ("127.0.0.1", "")
    assert own in json.dumps(engine.heard)
    assert engine.heard["workers"] == 2


class Listening(ScriptedEngine):
    """Hears how it is to meet the sender, and does not come."""

    def __init__(self, name: str) -> None:
        super().__init__(("x",), ByteTokenizer())
        self.name = name
        self.heard: dict[str, Any] = {}
        self.closed = False

    async def prepare_weights(self, backend: str, info: Any) -> None:
        self.heard = dict(info)
        raise EngineRefused("heard")

    async def close(self) -> None:
        self.closed = True


async def test_half_a_fleet_is_not_left_open() -> None:
    """Fails if engines stay connected when one of those after them cannot be."""
    first = Listening("a")

    async def come() -> Engine:
        return first

    async def fail() -> Engine:
        raise EngineRefused("nobody there")

    with pytest.raises(EngineRefused):
        await engines.connected(make() for make in (come, fail))
    assert first.closed


async def test_a_worker_on_ray_heeds_the_keys_of_serving() -> None:
    """Fails if a rollout worker pins sessions, or waits for servers, by defaults of its own."""
    serving = {"engine": "vllm", "start_timeout_s": 900.0}
    held = [ScriptedEngine(("x",), ByteTokenizer(), name=name) for name in ("a", "b")]
    config = config_of(serving=serving, runtime="ray")
    wait_s = engines.engine_wait_s(config.serving, on_ray=True)
    client = engines.make_client(held, wait_s=wait_s, offset=1)
    wanted = LoadBalancer(offset=1)
    for name in ("a", "b"):
        wanted.add(name)
    assert settings(client.balancer) == settings(wanted)
    assert wait_s == 900.0
    await client.close()


def settings(balancer: LoadBalancer) -> dict[str, Any]:
    """What a balancer was made with."""
    return {name: value for name, value in vars(balancer).items() if not hasattr(value, "__len__")}


def test_every_rank_with_an_engine_is_kept_busy() -> None:
    """Fails if ranks beyond the first have no rollouts to sample."""
    serving = {"engine": "embedded", "max_batch_size": 8}
    for runtime, most in ({"kind": "local"}, 16), ({"kind": "ray", "trainer_ranks": 3}, 48):
        plan = plan_run(config_of(serving=serving, runtime=runtime), Path.cwd())
        assert in_flight(plan.engines, plan.schedule.schedule) == most


@pytest.mark.parametrize(
    "url",
    [
        "lean://127.0.0.1:7000",
        "127.0.0.1:8000",
        "http://127.0.0.1:99999",
        "http://[::1",
        "",
        "http://a b:1",
    ],
)
def test_what_is_no_address_of_a_server(url: str) -> None:
    """Fails if a run that cannot bring weights to an address finds out once it has begun."""
    with pytest.raises(ConfigError, match=r"serving\.urls.*http://host:port"):
        config_of(serving={"engine": "external", "urls": [url]})
    with pytest.raises(ConfigError, match="named twice"):
        config_of(serving={"engine": "external", "urls": ["http://a:1", "http://a:1/"]})


@pytest.mark.parametrize(
    ("trainer", "replicas", "found"),
    [
        ("auto", 3, [(1,), (2,), (3,)]),
        ("cuda", 2, [(1,), (2,)]),
        ("cuda:1", 3, [(0,), (2,), (3,)]),
        ("cpu", 3, [(0,), (1,), (2,)]),
        ("cuda:1", 4, [(0,), (1,), (2,), (3,)]),
    ],
)
def test_servers_get_the_gpus_that_the_trainer_is_not_on(trainer, replicas, found):
    """Fails if a trainer on another GPU than the first shares it while one is free."""
    section = config_of(serving={"replicas": replicas}).serving
    assert engines.engine_devices(section, have=4, trainer=trainer) == found


def test_more_servers_than_gpus_are_refused():
    section = config_of(serving={"replicas": 3, "args": {"tensor_parallel_size": 2}}).serving
    with pytest.raises(ConfigError, match="machine has 4"):
        engines.engine_devices(section, have=4, trainer="cpu")
