"""What preflight tries out: calls of awkward tools, sandboxes that are none, memory, disk."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from agentrl.chat import build_chat
from agentrl.config import RunConfig, load_config
from agentrl.config.fleet import EmbeddedServing
from agentrl.config.plan import plan_run
from agentrl.models.source import load_tokenizer
from agentrl.preflight.checks import machine, trials
from agentrl.preflight.checks.facts import PreflightFacts
from agentrl.preflight.checks.memory_estimate import (
    ModelShape,
    ProcessMemory,
    activation_bytes,
    estimate,
    kv_cache_bytes,
)
from agentrl.tool import Tool
from agentrl.types.finding import Finding, Status
from tests.runtime.tiny_project import write_project


class Awkward(Tool):
    name = "edit"
    description = "Change a file."
    parameters: Mapping[str, Any] = {
        "type": "object",
        "properties": {
            "path": {"type": "string"},
            "line": {"type": "integer"},
            "mode": {"enum": ["fast", "slow"]},
            "tags": {"type": "array", "items": {"type": "string"}},
            "deep": {"type": "object", "properties": {"flag": {"type": "boolean"}}},
            "maybe": {"anyOf": [{"type": "number"}, {"type": "null"}]},
        },
    }

    async def call(self, arguments: Any, sandbox: Any) -> Any:
        raise NotImplementedError


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_project(tmp_path_factory.mktemp("trials"))


def with_tool(config: RunConfig, tool: Tool) -> PreflightFacts:
    tokenizer = load_tokenizer(config.model)
    chat = build_chat(tokenizer, config.chat)
    return PreflightFacts(tokenizer=tokenizer, chat=chat, tools={tool.name: tool})


@pytest.mark.parametrize("parser", ["hermes", "qwen3_coder", "llama3_json", "mistral"])
async def test_calls_of_any_schema_come_back(project: Path, parser: str) -> None:
    config = load_config(project, [f"chat.tool_parser={parser}"])
    found = await trials.tool_calls(config.chat, with_tool(config, Awkward()))
    assert found == f"{parser} reads back calls of edit"


class Unspeakable(Awkward):
    parameters: Mapping[str, Any] = {"properties": {"a>b": {"type": "string"}}}


async def test_a_tool_that_the_format_cannot_call_is_named(project: Path) -> None:
    """Tags cannot hold such a name. Fails if only the number of calls is compared."""
    config = load_config(project, ["chat.tool_parser=qwen3_coder"])
    found = await trials.tool_calls(config.chat, with_tool(config, Unspeakable()))
    assert isinstance(found, Finding)
    assert found.status is Status.FAIL
    assert "a call of edit written as" in found.detail
    assert "take another chat.tool_parser than qwen3_coder" in found.fix


async def test_a_sandbox_is_made_and_runs_a_program(project: Path) -> None:
    made = ["sandbox.backend=process", "rollout.env_timeout_s=120"]
    run = plan_run(load_config(project, made), project.parent)
    found = await trials.sandbox_run(run.rollouts, PreflightFacts())
    assert "process: one was made in" in str(found)


@pytest.mark.parametrize(("used", "status"), [(True, "fail"), (None, "fail"), (False, "warn")])
async def test_a_sandbox_that_cannot_be_made(project: Path, used: bool | None, status: str) -> None:
    """It is a warning only where the episodes that were played asked for none."""
    found = PreflightFacts(sandbox_used=used)
    run = plan_run(load_config(project, ["rollout.env_timeout_s=120"]), project.parent)
    check = await trials.sandbox_run(run.rollouts, found)
    assert isinstance(check, Finding)
    assert check.status == status
    assert "this backend makes no sandboxes" in check.detail


SHAPE = ModelShape(
    parameters=1000, adapters=10, layers=2, hidden=4, intermediate=8, kv_width=2, vocabulary=16
)


def processes(config: RunConfig, reward_models: int = 0) -> list[ProcessMemory]:
    run = plan_run(config, Path())
    serving = run.engines.serving
    return estimate(run.trainer, serving, SHAPE, on_gpu=False, reward_models=reward_models)


def parts(config: RunConfig) -> dict[str, int]:
    return {part.what: part.size for part in processes(config)[0].parts}


async def memory(config: RunConfig) -> Finding | str:
    run = plan_run(config, Path())
    return await machine.memory(run.trainer, run.engines.serving, run.rewards)


def test_what_is_kept_is_counted_exactly(project: Path) -> None:
    """Per parameter: float32 has gradient and two moments; bfloat16 a master and a sum besides."""
    found = parts(load_config(project))
    assert (found["weights"], found["gradients"], found["optimizer"]) == (4000, 4000, 8000)
    small = parts(load_config(project, ["model.dtype=bfloat16"]))
    assert (small["weights"], small["gradients"], small["optimizer"]) == (2000, 4000, 12000)
    lora = parts(load_config(project, ["train.lora.rank=3"]))
    assert (lora["weights"], lora["gradients"], lora["optimizer"]) == (4120, 120, 240)
    ppo = ["algorithm.preset=ppo", "algorithm.kl_coef=0.1"]
    full = parts(load_config(project, ppo))
    assert (full["reference"], full["critic"]) == (4000, 16000)


def test_caches_and_activations_follow_the_limits(project: Path) -> None:
    config = load_config(project)
    assert isinstance(config.serving, EmbeddedServing)
    cache = kv_cache_bytes(config.serving, config.model, SHAPE, context=128)
    assert cache == 16 * 2 * 4 * 2 * 2 * 128
    tokens = 512
    layer = tokens * (4 * (7 * 4 + 3 * 2 + 4 * 8) + 16 * 4)
    head = tokens * 16 * 4
    assert activation_bytes(config.train, config.model, SHAPE) == 2 * layer + head
    saved = load_config(project, ["model.gradient_checkpointing=true"])
    assert activation_bytes(saved.train, saved.model, SHAPE) == layer + 2 * tokens * 4 * 4 + head


def test_each_lane_but_the_first_has_gradients_and_activations(project: Path) -> None:
    config = load_config(project, ["train.backend.lanes=3"])
    once = activation_bytes(config.train, config.model, SHAPE)
    found = parts(config)
    assert (found["activations"], found["other lanes (2)"]) == (once, 2 * (4000 + once))
    ppo = parts(load_config(project, ["train.backend.lanes=3", "algorithm.preset=ppo"]))
    assert ppo["other lanes (2)"] == 2 * (8000 + once)
    adapters = parts(load_config(project, ["train.backend.lanes=2", "train.lora.rank=3"]))
    assert adapters["other lanes (1)"] == 120 + once
    assert "other lanes" not in str(parts(load_config(project, ["train.backend.lanes=1"])))


def test_ranks_and_servers_are_counted(project: Path) -> None:
    ray = [
        "runtime=ray",
        "runtime.trainer_ranks=4",
        "runtime.rollout_workers=3",
        "serving.engine=vllm",
    ]
    cut = load_config(project, [*ray, "train.backend=fsdp2", "serving.replicas=2"])
    found = {process.name: process for process in processes(cut)}
    assert {name: process.count for name, process in found.items()} == {
        "trainer": 4, "rollout worker": 3, "vLLM server": 2,
    }  # fmt: skip
    sizes = {part.what: part.size for part in found["trainer"].parts}
    assert (sizes["weights"], sizes["optimizer"], sizes["gradients"]) == (1000, 2000, 1000)


def test_reward_models_are_counted_where_rollouts_run(project: Path) -> None:
    """Fails if workers in processes of their own are taken to share one copy, or to hold none."""

    def held(*changes: str) -> dict[str, int]:
        found = processes(load_config(project, changes), reward_models=500)
        return {process.name: process.count for process in found
                if any(part.what == "reward models" for part in process.parts)}  # fmt: skip

    assert held() == {"trainer with engine": 1}
    ray = ["runtime=ray", "runtime.rollout_workers=3", "serving.engine=vllm"]
    assert held(*ray) == {"rollout worker": 3}


async def test_a_run_that_does_not_fit_fails_and_says_what_to_lower(project: Path) -> None:
    fits = await memory(load_config(project))
    assert isinstance(fits, str), fits
    assert "trainer with engine" in fits
    # The tiny model, but a cache of more than any machine that runs this has.
    large = ["serving.kv_cache_gb=1e6", "serving.max_batch_size=100000000"]
    check = await memory(load_config(project, large))
    assert isinstance(check, Finding)
    assert check.status is Status.FAIL, check
    assert "lower serving.kv_cache_gb" in check.fix


async def test_the_shape_of_a_model_is_read_without_its_weights(project: Path) -> None:
    """The tiny Llama: 2 layers of width 32, 258 tokens, tied head."""
    config = load_config(project)
    shape = machine.model_shape(config.model)
    attention = 32 * 32 + 32 * 16 + 32 * 16 + 32 * 32
    layer = attention + 3 * 32 * 64 + 2 * 32
    assert shape.parameters == 2 * layer + shape.vocabulary * 32 + 32
    assert (shape.layers, shape.hidden, shape.intermediate, shape.kv_width) == (2, 32, 64, 16)
    assert shape.adapters == 2 * (64 + 48 + 48 + 64 + 3 * 96)
    broken = config.model_copy(
        update={"model": config.model.model_copy(update={"path": str(project.parent)})}
    )
    check = await memory(broken)
    assert isinstance(check, Finding)
    assert check.status is Status.WARN


async def test_a_context_that_the_model_was_not_made_for(project: Path) -> None:
    """The tiny Llama has 512 positions; an engine would refuse only once it is loaded."""
    assert "128 of the 512" in str(await machine.context(load_config(project).model, 128))
    check = await machine.context(load_config(project).model, 513)
    assert isinstance(check, Finding)
    assert check.status is Status.FAIL
    assert "set rollout.max_context_tokens: 512" in check.fix


def test_a_container_has_no_more_than_its_limit() -> None:
    free = machine.available_bytes()
    assert free is not None
    assert 0 < free <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
