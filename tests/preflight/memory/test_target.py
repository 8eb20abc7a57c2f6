"""Machines that are not here: how they are written, who goes where, and the verdict."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentrl.config import load_config
from agentrl.config.plan import plan_run
from agentrl.errors import ConfigError
from agentrl.preflight.memory.estimate import Part, ProcessMemory
from agentrl.preflight.memory.target import Device, Target, parse_target
from agentrl.preflight.memory.verdict import target_findings
from agentrl.types.finding import Finding
from tests.runtime.tiny_project import write_project

GIB = 2**30
EIGHT_B = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 4096,
    "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
}  # fmt: skip
RAY = ("runtime=ray", "runtime.gpus=1", "runtime.trainer_ranks=8", "train.backend=fsdp2")


@pytest.fixture(scope="module")
def run_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of an 8B model of which there is nothing but the config."""
    folder = tmp_path_factory.mktemp("target")
    (folder / "large").mkdir()
    (folder / "large" / "config.json").write_text(json.dumps(EIGHT_B))
    return write_project(
        folder, model__path=str(folder / "large"), model__dtype="bfloat16", model__device="auto",
        rollout__max_context_tokens=8192, rollout__max_response_tokens=4096,
        serving={"engine": "vllm"}, train__micro_batch_tokens=16384,
    )  # fmt: skip


def lines(run_file: Path, target: str, *changes: str) -> dict[str, Finding]:
    plan = plan_run(load_config(run_file, changes), run_file.parent)
    return {line.name: line for line in target_findings(plan, parse_target(target))}


def test_machines_are_read() -> None:
    assert parse_target("gpus=8x80GiB,nodes=4,host=1TiB") == Target(
        gpus=8, card=80 * GIB, nodes=4, host=1024 * GIB
    )
    assert parse_target(" gpus = 2x24GB ") == Target(gpus=2, card=24 * 10**9)
    assert parse_target("gpus=0,host=64GiB") == parse_target("host=64gib")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("gpus=8x80", "gpus is '8x80', expected COUNTxSIZE"),
        ("gpus=80GiB", "gpus is '80gib'"),
        ("gpus=0x80GiB", "gpus is '0x80GiB'"),
        ("gpus=8x0GiB", "gpus is '8x0GiB'"),
        ("gpus=-1x80GiB", "gpus is '-1x80GiB'"),
        ("gpus=8x80GiB,nodes=0", "nodes is '0', expected a number of nodes"),
        ("gpus=8x80GiB,nodes=two", "nodes is 'two'"),
        ("gpus=8x80GiB,host=much", "host is 'much', expected the main memory"),
        ("gpu=8x80GiB", "did you mean 'gpus'"),
        ("gpus=8x80GiB,gpus=4x80GiB", "gpus is there twice"),
        ("gpus", "gpus has no value"),
        ("nodes=4", "it names no memory"),
        ("gpus=0", "without GPUs it needs host"),
        ("", "it names no memory"),
    ],
)
def test_a_target_that_is_none_is_explained(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_target(text)
    assert said.lower() in str(caught.value).lower()
    assert "an example: --target gpus=8x80GiB,nodes=4,host=1TiB" in str(caught.value)


def test_an_impossible_plan_does_not_fit_and_what_would_is_named(run_file: Path) -> None:
    """8B with all weights on one card: 14 bytes of masters, moments and gradients a parameter."""
    found = lines(run_file, "gpus=8x80GiB,nodes=4")
    assert found["trainer"].status == "fail", found["trainer"]
    assert "does not fit" in found["trainer"].detail
    assert "optimizer 89.75" in found["trainer"].detail
    assert found["vLLM server"].status == "ok"
    assert "runtime.trainer_ranks=31, train.backend=fsdp2" in found["would fit"].detail


def test_a_sharded_plan_fits_and_a_node_that_is_too_small_does_not(run_file: Path) -> None:
    ray = (*RAY, "serving.replicas=8", "train.micro_batch_tokens=8192")
    found = lines(run_file, "gpus=8x80GiB,nodes=2,host=1TiB", *ray, "serving.kv_cache_gb=20")
    assert "would fit" not in found, found
    assert {line.status for line in found.values()} <= {"ok", "warn"}
    few = lines(run_file, "gpus=8x80GiB", *ray)
    assert "asks for 16 GPUs" in few["placement"].detail
    small = lines(run_file, "gpus=8x80GiB,nodes=2,host=16GiB", *ray)
    assert small["host"].status == "fail"


def test_offload_moves_to_the_host(run_file: Path) -> None:
    """Fails if slices that are kept in main memory are counted on the device, or nowhere."""
    ray = (*RAY, "train.micro_batch_tokens=8192")
    here = lines(run_file, "gpus=16x80GiB,host=4TiB", *ray)
    away = lines(run_file, "gpus=16x80GiB,host=4TiB", *ray, "train.backend.offload=true")
    assert "optimizer 7.48" in here["trainer"].detail
    assert "optimizer" not in away["trainer"].detail
    assert "optimizer 7.48" in away["host"].detail


def test_one_card_for_both_and_the_turns_they_take(run_file: Path) -> None:
    shared = lines(run_file, "gpus=1x80GiB", "train.lora.rank=16", "train.micro_batch_tokens=8192")
    assert "beside vLLM server" in shared["trainer"].detail
    assert "keys and values 4.00" in shared["vLLM server"].detail
    assert "GiB of a GPU, in turns" in shared["trainer"].detail
    # What moves is in main memory, and on the card meanwhile nothing of it; weights stay there.
    full = ("gpus=1x80GiB", "train.micro_batch_tokens=8192")
    usual = lines(run_file, *full)
    assert "put aside 119.66" in usual["host"].detail, usual["host"].detail
    every = lines(run_file, *full, "runtime.offload=[optimizer, gradients, weights]")
    assert "put aside 134.62" in every["host"].detail, every["host"].detail
    stays = lines(run_file, "gpus=1x80GiB", "train.lora.rank=16", "runtime.colocated=false")
    assert "put aside" not in stays["host"].detail
    assert "in turns" not in stays["trainer"].detail
    alone = lines(run_file, "gpus=2x80GiB", "train.lora.rank=16")
    assert "beside" not in alone["trainer"].detail

    def process(name: str, **sizes: int) -> ProcessMemory:
        rests = ("weights", "cache")
        parts = tuple(Part(what=k, size=v, rests=k in rests) for k, v in sizes.items())
        return ProcessMemory(name=name, count=1, on_gpu=True, parts=parts)

    device = Device(held=[process("a", weights=30, work=5), process("b", cache=40, base=2)])
    assert device.peak(sleeps=False) == 77
    assert device.peak(sleeps=True) == max(35 + 2, 42 + 5)


def test_a_patch_goes_on_weights_that_main_memory_keeps_where_it_can(run_file: Path) -> None:
    """Fails if the weights of servers that sleep at level 1 are counted nowhere."""
    small = ("train.lora.rank=16", "train.micro_batch_tokens=8192")
    patches = (*small, "sync.backend=disk", "sync.dense_every=4")
    kept = "weights asleep 14.96"
    assert kept in lines(run_file, "gpus=1x80GiB", *patches)["host"].detail
    assert kept in lines(run_file, "gpus=1x80GiB,host=64GiB", *patches)["host"].detail
    tight = lines(run_file, "gpus=1x80GiB,host=20GiB", *patches)["host"]
    assert (kept in tight.detail, tight.status) == (False, "warn")
    assert kept not in lines(run_file, "gpus=1x80GiB,host=64GiB", *small)["host"].detail


def test_tensor_parallel_servers_divide_weights_and_heads(run_file: Path) -> None:
    wide = ("serving.args.tensor_parallel_size=4", "serving.kv_cache_gb=2", "train.lora.rank=4")
    found = lines(run_file, "gpus=8x80GiB", *wide)
    assert "weights 3.74" in found["vLLM server"].detail
    assert "32,768 bytes a token" in found["one sequence"].detail
    short = lines(run_file, "gpus=8x80GiB", "serving.kv_cache_gb=0.5", "train.lora.rank=4")
    assert "131,072 bytes a token" in short["one sequence"].detail
    assert "4096 tokens fit" in short["one sequence"].detail
    assert short["one sequence"].status == "fail"
