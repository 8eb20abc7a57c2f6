"""Which runs share one GPU between trainer and servers, how, and which are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from agentrl.config import parse_config
from agentrl.config.plan import Plan, plan_run
from agentrl.errors import ConfigError
from agentrl.runtime.assembly import engines, weight_route
from agentrl.runtime.checks import colocation, fleet
from agentrl.runtime.checks.colocation import Colocation, find_colocation, with_turns
from agentrl.serving.vllm import command


def plan_of(tmp_path: Path, **sections: Any) -> Plan:
    data = {"env": {"target": "x:Y"}, "dataset": {"source": "x.jsonl"}}
    serving = {"engine": "vllm", **sections.pop("serving", {})}
    return plan_run(parse_config({**data, "serving": serving, **sections}), tmp_path)


def found(plan: Plan) -> Colocation | None:
    return find_colocation(plan.engines, plan.trainer.train)


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Shows a machine as vLLM and torch would; one GPU unless it is called."""

    def show(count: int) -> None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        device = torch.device("cuda" if count else "cpu")
        for module in (weight_route, colocation):
            monkeypatch.setattr(module, "pick_device", lambda _: device)
        for module in (command, engines, weight_route, colocation, fleet):
            monkeypatch.setattr(module, "vllm_device", lambda: "cuda" if count else "cpu")
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)

    show(1)
    return show


def test_one_gpu_is_shared_in_turn_by_default(tmp_path: Path, gpus: Any) -> None:
    """Fails if a run on one GPU keeps both on it, or sends weights through main memory."""
    plan, how = with_turns(plan_of(tmp_path))
    assert how == Colocation(index=0, level=2, moves=("optimizer", "gradients"), backend="ipc")
    assert plan.engines.sync.backend == "ipc"
    sync, model = plan.engines.sync, plan.engines.model
    assert weight_route.section_backend(plan.engines.serving, sync, device=model.device) == "ipc"


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        ({"runtime": {"offload": ["weights", "optimizer"]}}, ("shm", 2)),
        ({"train": {"lora": {"rank": 8, "sync": "merged"}}}, ("shm", 2)),
        ({"train": {"lora": {"rank": 8}}}, ("ipc", 2)),
        ({"serving": {"args": {"tensor_parallel_size": 2}}}, ("shm", 2)),
        ({"sync": {"backend": "disk"}}, ("disk", 2)),
        # A patch goes on top of weights that the server still has.
        ({"sync": {"backend": "disk", "dense_every": 4}}, ("disk", 1)),
        ({"schedule": {"oversample": 1.5}}, ("ipc", 2)),
    ],
)
def test_level_and_route_follow_from_what_is_sent(
    tmp_path: Path, gpus: Any, sections: dict[str, Any], expected: tuple[str, int]
) -> None:
    """Fails if handles are made of tensors in main memory, or patches go on forgotten weights."""
    _, how = with_turns(plan_of(tmp_path, **sections))
    assert how is not None
    assert (how.backend, how.level) == expected


def test_patches_need_weights_that_main_memory_holds(
    tmp_path: Path, gpus: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if servers keep weights where there is no room, or get patches without any."""
    for name, data in (("config.json", b"{}"), ("model.safetensors", bytes(1000))):
        (tmp_path / name).write_bytes(data)
    model = {"path": str(tmp_path)}
    sections = {"model": model, "sync": {"backend": "disk", "dense_every": 4}}
    for lora, needed in ((None, 14000), ({"rank": 8}, 2000)):
        for free, level, dense in ((needed, 1, 4), (needed - 1, 2, 1), (None, 1, 4)):
            monkeypatch.setattr(colocation, "available_bytes", lambda free=free: free)
            plan, how = with_turns(plan_of(tmp_path, train={"lora": lora}, **sections))
            assert how is not None
            assert (how.level, plan.engines.sync.dense_every) == (level, dense)
            assert ("which sync.dense_every: 4 needs" in how.text) is (level == 2)


def test_gpus_of_their_own_are_not_shared_unless_asked(tmp_path: Path, gpus: Any) -> None:
    """Fails if a second GPU lies idle, or if `true` puts the server on it all the same."""
    gpus(2)
    assert found(plan_of(tmp_path)) is None
    plan = plan_of(tmp_path, runtime={"kind": "local", "colocated": True})
    assert found(plan) is not None
    serving: Any = plan.engines.serving
    assert engines.engine_devices(serving, have=2, trainer="cuda:1", shared=True) == [(1,)]
    assert engines.engine_devices(serving, have=2, trainer="cuda:1") == [(0,)]


def test_false_keeps_both_on_the_gpu(tmp_path: Path, gpus: Any) -> None:
    """Fails if a schedule that runs ahead has no way to go on as it did."""
    plan = plan_of(
        tmp_path,
        runtime={"kind": "local", "colocated": False},
        schedule={"staleness_threshold": 0.5},
    )
    assert with_turns(plan) == (plan, None)


@pytest.mark.parametrize(
    ("count", "sections", "said"),
    [
        (0, {"runtime": {"colocated": True}}, "is true, but the trainer is on cpu"),
        (
            1,
            {"runtime": {"colocated": True}, "serving": {"engine": "embedded"}},
            "is true, but the embedded engine samples from the trainer's own weights",
        ),
        (
            1,
            {
                "runtime": {"colocated": True},
                "serving": {"engine": "external", "urls": ["http://10.1.2.3:8000"]},
            },
            "is true, but servers that run already are not put to sleep",
        ),
        (
            0,
            {"runtime": {"offload": ["weights"]}},
            "runtime.offload would have no effect: the trainer is on cpu",
        ),
        (
            2,
            {"runtime": {"offload": ["weights"]}},
            "no effect: the servers need 1 of 2 GPUs",
        ),
        (
            1,
            {"runtime": {"colocated": False, "offload": []}},
            "no effect: runtime.colocated is false",
        ),
        (
            1,
            {"sync": {"backend": "ipc"}, "runtime": {"offload": ["weights"]}},
            "sync.backend is 'ipc', but runtime.offload moves weights",
        ),
        (1, {"schedule": {"staleness_threshold": 0.5}}, r"one GPU in turn \(runtime.colocated\)"),
        (1, {"schedule": {"trigger_parameter_sync_step": 2}}, "or runtime.colocated: false"),
    ],
)
def test_what_cannot_be_is_refused_with_the_way_out(
    tmp_path: Path, gpus: Any, count: int, sections: dict[str, Any], said: str
) -> None:
    """Fails if a key is ignored in silence, or if rollouts wait for a server that sleeps."""
    gpus(count)
    with pytest.raises(ConfigError, match=said):
        with_turns(plan_of(tmp_path, **sections))


def test_parts_of_the_trainer_are_named_once_and_known() -> None:
    """Fails if a misspelt part moves nothing."""
    for offload, said in ((["weights", "weights"], "each part once"), (["moments"], "optimizer")):
        with pytest.raises(ConfigError, match=said):
            parse_config(
                {
                    "env": {"target": "x:Y"},
                    "dataset": {"source": "x.jsonl"},
                    "runtime": {"offload": offload},
                }
            )


def test_a_server_that_shares_can_sleep(tmp_path: Path, gpus: Any) -> None:
    """Fails if vLLM is started without its sleep mode, or beside one that the user has off."""
    plan, _ = with_turns(plan_of(tmp_path))
    serving: Any = plan.engines.serving

    def start(section: Any) -> Any:
        return engines.server_commands(
            section,
            plan.engines.sync,
            plan.engines.model,
            max_context_tokens=64,
            source="m",
            secret="s",
            sleeps=True,
        )

    (started,) = start(serving)
    assert "--enable-sleep-mode" in started.argv
    assert started.env["CUDA_VISIBLE_DEVICES"] == "0"
    assert started.env["VLLM_SERVER_DEV_MODE"] == "1"
    awake = serving.model_copy(update={"args": {"enable-sleep-mode": False}})
    with pytest.raises(ConfigError, match=r"args.enable_sleep_mode is false.*colocated"):
        start(awake)


async def test_preflight_names_the_plan(tmp_path: Path, gpus: Any) -> None:
    """Fails if a user learns only on the GPU that servers sleep, or what moves."""
    plan = plan_of(tmp_path)
    text = await fleet.engines(plan.engines, train=plan.trainer.train)
    assert isinstance(text, str)
    assert "weights by ipc; colocated: servers sleep (level 2) while the trainer works" in text
    assert "optimizer, gradients is in main memory" in text
    assert "minibatches train" not in await fleet.schedule(plan.schedule, plan.engines)
    ahead = plan_of(tmp_path, schedule={"staleness_threshold": 0.5})
    with pytest.raises(ConfigError, match="in turn"):
        await fleet.schedule(ahead.schedule, ahead.engines)
