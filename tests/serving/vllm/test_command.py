"""Command lines and environments of vLLM servers."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig

from agentrl.config.fleet import VllmServing
from agentrl.errors import ConfigError
from agentrl.models.cache_bytes import cache_shape
from agentrl.serving.cache_room import require_one_sequence
from agentrl.serving.vllm.command import (
    ServerCommand,
    cache_size,
    check_head_support,
    require_one_config,
    server_command,
)


def command(args: dict[str, Any] | None = None, **changes: Any) -> ServerCommand:
    section = VllmServing(
        max_batch_size=16,
        kv_cache_gb=0.5,
        args=args or {},
    )
    settings = {"model_path": "m", "max_context_tokens": 2048, "device": "cpu", **changes}
    return server_command(section, **settings)


def options(made: ServerCommand) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for word in made.argv[3:]:
        if word.startswith("--"):
            values = found.setdefault(word, [])
        else:
            values.append(word)
    return found


def test_what_the_section_says_reaches_the_server() -> None:
    found = options(command(dtype="float32"))
    assert found["--model"] == ["m"]
    assert found["--max-model-len"] == ["2048"]
    assert found["--max-num-seqs"] == ["16"]
    assert options(command(device="cuda"))["--max-num-batched-tokens"] == ["4096"]
    assert found["--kv-cache-memory-bytes"] == [str(2**29)]
    assert found["--dtype"] == ["float32"]
    assert found["--logprobs-mode"] == ["processed_logprobs"]
    assert found["--weight-transfer-config"] == ['{"backend": "agentrl"}']
    assert "--no-use-tqdm-on-load" in found  # its bars would be lines of a file
    assert "--use-tqdm-on-load" in options(command({"use_tqdm_on_load": True}))
    assert {"--enable-scale-out", "--enable-prompt-tokens-details", "--enforce-eager"} <= set(found)
    assert "--weight-transfer-config" not in options(command(weight_transfer=None))


def test_one_cpu_worker_computes_in_the_engine_core() -> None:
    """Fails if each server imports vLLM in one more process than it needs, or if several workers
    or a user's own choice are overruled."""
    flag = "--distributed-executor-backend"
    assert options(command())[flag] == ["vllm.v1.executor.uniproc_executor.UniProcExecutor"]
    assert options(command({"distributed_executor_backend": "mp"}))[flag] == ["mp"]
    assert flag not in options(command({"tensor_parallel_size": 2}))
    assert flag not in options(command({"config": "mine.yaml"}))
    assert flag not in options(command({"data-parallel-backend": "ray"}))
    assert flag not in options(command(device="cuda"))


def test_a_cpu_server_computes_every_prompt_in_one_piece() -> None:
    """Fails if the budget of a pass is below the longest prompt, which vLLM refuses then."""
    found = options(command(max_context_tokens=8192))
    assert "--no-enable-chunked-prefill" in found
    assert found["--max-num-batched-tokens"] == ["8192"]
    assert options(command(max_context_tokens=256))["--max-num-batched-tokens"] == ["4096"]
    assert "--no-enable-chunked-prefill" not in options(command(device="cuda"))


def test_args_win_in_any_spelling() -> None:
    """Fails if ours stays beside theirs, or a switch cannot be turned off."""
    found = options(
        command(
            {
                "max-model-len": 99,
                "enforce_eager": False,
                "enable_prefix_caching": True,
                "dtype": None,
                "override_generation_config": {"top_k": 3},
            }
        )
    )
    assert found["--max-model-len"] == ["99"]
    assert "--no-enforce-eager" in found
    assert "--enforce-eager" not in found
    assert found["--enable-prefix-caching"] == []
    assert "--dtype" not in found
    assert found["--override-generation-config"] == ['{"top_k": 3}']


def test_middleware_of_both_sides_is_loaded() -> None:
    made = command({"middleware": "theirs:App"}, middleware=("ours.lean:Middleware",))
    assert options(made)["--middleware"] == ["ours.lean.Middleware", "theirs.App"]
    assert made.argv.count("--middleware") == 2


@pytest.mark.parametrize("key", ["model", "port", "served-model-name", "host"])
def test_what_agentrl_decides_is_not_an_option(key: str) -> None:
    with pytest.raises(ConfigError, match=f"serving.args.{key}"):
        command({key: "x"})


def test_replicas_share_the_cores() -> None:
    """Fails if every replica takes all cores, or pins its threads to the same ones."""
    cores = len(os.sched_getaffinity(0))
    env = command(replica=1, replicas=2).env
    assert env["OMP_NUM_THREADS"] == str(max(1, cores // 2))
    assert env["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    assert env["VLLM_SERVER_DEV_MODE"] == "1"
    assert "CUDA_VISIBLE_DEVICES" not in env


def test_replicas_have_devices_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    args = {"tensor_parallel_size": 2}
    made = command(args, replica=1, replicas=2, device="cuda")
    assert made.env["CUDA_VISIBLE_DEVICES"] == "6,7"
    assert "--enforce-eager" not in options(made)
    assert command(device="cuda", devices=(3,)).env["CUDA_VISIBLE_DEVICES"] == "7"
    with pytest.raises(ConfigError, match="needs device 5"):
        command(args, replica=2, replicas=3, device="cuda")


def test_the_head_of_the_trainer_reaches_the_server() -> None:
    """Fails if a server rounds logits that the trainer does not round, or the other way."""
    assert "--hf-overrides" not in options(command())
    (said,) = options(command(head_dtype="float32"))["--hf-overrides"]
    assert json.loads(said) == {"head_dtype": "float32"}
    for given in ({"rope_theta": 5}, '{"rope_theta": 5}'):
        (said,) = options(command({"hf_overrides": given}, head_dtype="float32"))["--hf-overrides"]
        assert json.loads(said) == {"rope_theta": 5, "head_dtype": "float32"}
    with pytest.raises(ConfigError, match=r"asks for head_dtype 'float32'.*is 'model'"):
        command({"hf_overrides": {"head_dtype": "float32"}})
    with pytest.raises(ConfigError, match="expected a mapping"):
        command({"hf_overrides": "much"})


@pytest.mark.parametrize("given", [{"rope_theta": 5, "head_dtype": "model"}, '{"rope_theta": 5}'])
def test_a_config_that_the_trainer_would_not_have_is_refused(given: object) -> None:
    for spelling in ("hf_overrides", "--hf-overrides"):
        with pytest.raises(ConfigError, match=r"hf_overrides\.rope_theta .* model\.overrides"):
            require_one_config({spelling: given})
    for option in ("rope-scaling", "hf_config_path"):
        with pytest.raises(ConfigError, match="would change the config of the servers"):
            require_one_config({option: "x"})
    require_one_config({"seed": 1, "hf_overrides": {"head_dtype": "model"}})


def test_a_vllm_that_cannot_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "model_executor" / "layers" / "logits_processor.py"
    file.parent.mkdir(parents=True)
    file.write_text("class LogitsProcessor: ...")
    with pytest.raises(ConfigError, match=r"rounds the logits.*set model\.head_dtype: model"):
        check_head_support(tmp_path)
    file.write_text("self.head_dtype = model_config.head_dtype")
    check_head_support(tmp_path)


def test_a_cache_of_its_own_size_or_of_what_vllm_measures() -> None:
    """Fails if a number reaches a server that shall measure, or a share of a card is overruled."""
    flag = "--kv-cache-memory-bytes"

    def sized(device: Any = "cuda", *, shared: bool = False, **keys: Any) -> int | None:
        return cache_size(VllmServing(**keys), device, shared=shared)

    assert sized() is None
    assert sized(shared=True) == 4 * 2**30
    assert sized(kv_cache_gb=1.5, shared=True) == 3 * 2**29
    assert sized(args={"gpu-memory-utilization": 0.5}, shared=True) is None
    whole, half = sized("cpu"), sized("cpu", replicas=2)
    assert whole
    assert half
    assert 0.3 < half / whole < 0.7
    made = server_command(VllmServing(), model_path="m", max_context_tokens=64, device="cuda")
    assert flag not in options(made)
    with pytest.raises(ValueError, match="ignores the share of a card"):
        VllmServing(kv_cache_gb=2, args={"gpu_memory_utilization": 0.5})


def test_a_cache_without_room_for_one_sequence_is_refused() -> None:
    """2 x 8 heads x 128 numbers in 32 layers: 128 KiB a token in bfloat16, 1 GiB for 8192."""
    text = LlamaConfig(
        hidden_size=4096, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8
    )
    cache = cache_shape(text)

    def require(room: float, **args: Any) -> None:
        section = VllmServing(kv_cache_gb=room, args=args)
        require_one_sequence(section, cache, dtype="bfloat16", tokens=8192, room=int(room * 2**30))

    require(1.0)
    require(0.5, kv_cache_dtype="fp8")
    require(0.25, tensor_parallel_size=4)
    with pytest.raises(ConfigError) as caught:
        require(0.5)
    for part in (
        "serving.kv_cache_gb is 0.5", "8192 tokens needs 1.000 GiB", "131,072 bytes a token",
        "4096 tokens fit", "serving.kv_cache_gb: 1 or more", "max_context_tokens to 4096 or less",
    ):  # fmt: skip
        assert part in str(caught.value), caught.value
