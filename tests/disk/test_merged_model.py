"""`model.overrides`: one config for trainer, reference, engines and checkpoints, or a refusal."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    Qwen2Config,
)

from agentrl.batch.packing import pack_micro_batch
from agentrl.batch.records import Row, RowKey
from agentrl.config.fleet import EmbeddedServing, VllmServing
from agentrl.config.schema import AlgorithmSection, ModelSection
from agentrl.config.training import TrainSection
from agentrl.disk.model_source import model_source, policy_config, source_beside
from agentrl.errors import ConfigError
from agentrl.serving.embedded import EmbeddedEngine
from agentrl.serving.vllm.command import server_command
from agentrl.serving.vllm.launcher import VllmServer
from agentrl.train.backends.choose import make_backend
from agentrl.train.distill.teacher_model import load_teacher
from agentrl.train.model.load import load_trained
from agentrl.train.reference import load_reference
from agentrl.types import SamplingParams
from tests.serving.tiny_vllm import log_probs, require_vllm, transfer_backend, write_model

LINEAR = {"rope_parameters": {"rope_type": "linear", "factor": 4.0}}
YARN = {
    "rope_scaling": {"type": "yarn", "factor": 2.0},
    "max_position_embeddings": 16384,
}
MADE = {
    "linear": (LINEAR, {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}, 8192),
    "yarn": (
        YARN,
        {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 2.0,
            "original_max_position_embeddings": 8192,
        },
        16384,
    ),
}
"""Overrides, and what the config of the model must be, written out."""
PROMPT = list(range(40, 72))


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTRL_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


def by_hand(folder: Path, target: Path, kind: str) -> Path:
    """A copy of a model whose config is written out, without anything of ours."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    _, rope, positions = MADE[kind]
    config = {**json.loads((folder / "config.json").read_text()), "rope_parameters": rope}
    model.save_pretrained(target)
    (target / "config.json").write_text(
        json.dumps({**config, "max_position_embeddings": positions})
    )
    return target


def section(folder: Path, overrides: dict[str, Any]) -> ModelSection:
    return ModelSection(path=str(folder), overrides=overrides, dtype="float32", device="cpu")


@pytest.mark.parametrize("kind", MADE)
async def test_trainer_reference_and_engine_have_the_config(
    folder: Path, tmp_path: Path, kind: str
) -> None:
    """Fails if one of them keeps the old rotation, or the checkpoint does."""
    overrides, rope, positions = MADE[kind]
    model, train = section(folder, overrides), TrainSection()
    pretrained = load_trained(model, train, checkpoint=None)
    engine = EmbeddedEngine(
        pretrained.model, section=EmbeddedServing(max_batch_size=1), lanes=1, max_context_tokens=128
    )
    answer = await engine.generate(PROMPT, SamplingParams(max_tokens=24, seed=3), "s")
    await engine.close()
    there = by_hand(folder, tmp_path / "copy", kind)
    want = log_probs(there, PROMPT, answer.ids, temperature=1.0)
    assert answer.log_probs == pytest.approx(want, abs=1e-4)
    plain = log_probs(folder, PROMPT, answer.ids, temperature=1.0)
    assert np.abs(np.subtract(plain, want)).max() > 0.05, "the rotation makes no difference"

    count = len(answer.ids)
    row = Row(
        key=RowKey(group_id="g", rollout_id="r", row_index=0),
        input_ids=np.array([*PROMPT, *answer.ids], dtype=np.int64),
        prompt_length=len(PROMPT),
        mask_R=np.ones(count, dtype=np.bool_),
        sampled_R=np.ones(count, dtype=np.bool_),
        rollout_log_probs_R=np.zeros(count),
        advantages_R=np.zeros(count),
        weight=0.0,
        temperature=1.0,
    )
    micro = pack_micro_batch([row])
    backend = make_backend(pretrained.model, train=train, gradient_checkpointing=False, ranks=None)
    reference = load_reference(
        model.model_copy(update={"path": model_source(model)}), AlgorithmSection(kl_coef=0.1)
    )
    assert reference is not None
    beside = model.model_copy(update={"path": source_beside(model, str(folder))})
    teacher: Any = load_teacher(beside, top_k=0, vocabulary=128)
    for holder in (backend, reference.frozen, teacher._policy):
        with holder.running(), torch.no_grad():
            found = holder.log_probs(holder.to_tensors(micro)).log_probs_R
        assert found.tolist() == pytest.approx(want, abs=1e-4)

    pretrained.model.save_pretrained(tmp_path / "saved")
    for config in (
        AutoConfig.from_pretrained(tmp_path / "saved"),
        policy_config(model),
    ):
        assert (config.rope_parameters, config.max_position_embeddings) == (rope, positions)
    saved = str(tmp_path / "saved")
    assert model_source(model, path=saved) == saved, "a checkpoint has them already"


def test_a_folder_is_made_once_and_only_where_something_changes(folder: Path) -> None:
    plain = section(folder, {})
    assert model_source(plain) == str(folder)
    assert model_source(section(folder, {"max_position_embeddings": 8192})) == str(folder)
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(model_source, [section(folder, LINEAR)] * 16))
    (made,) = found
    assert sorted(path.name for path in Path(made).parent.iterdir()) == [Path(made).name]
    assert {p.name for p in Path(made).iterdir()} == {p.name for p in folder.iterdir()}
    assert model_source(section(Path(made), LINEAR)) == made
    theta = model_source(section(Path(made), {"rope_theta": 5e5}))
    rope = AutoConfig.from_pretrained(theta).rope_parameters
    assert rope == {**MADE["linear"][1], "rope_theta": 5e5}, "nested keys are merged"
    llama = AutoConfig.from_pretrained(model_source(section(Path(made), YARN))).rope_parameters
    assert llama == MADE["yarn"][1], "another type keeps nothing of the old one"


def test_another_model_beside_the_policy_keeps_its_config(folder: Path, tmp_path: Path) -> None:
    other = by_hand(folder, tmp_path / "other", "yarn")
    model = section(folder, LINEAR)
    assert source_beside(model, str(other)) == str(other)
    assert source_beside(model, str(folder)) == model_source(model)
    assert source_beside(section(folder, {}), str(folder)) == str(folder)


@pytest.mark.parametrize(
    ("config", "overrides", "said"),
    [
        (LlamaConfig, {"max_position_embedding": 3}, r"no key .* mean max_position_embeddings"),
        (LlamaConfig, {"sliding_window": 3}, "sliding_window is no key of the config of a llama"),
        (LlamaConfig, {"rope_parameters": {"facto": 2}}, r"no parameter of RoPE .*mean factor"),
        (LlamaConfig, {"rope_parameters": {"rope_type": "yarn"}}, r"'yarn': \{'factor'\}"),
        (LlamaConfig, {"rope_parameters": {"rope_type": "yarnn"}}, "'rope_type'='yarnn'"),
        (LlamaConfig, {"rope_parameters": {"rope_type": "linear", "factor": 0.5}}, "got 0.5"),
        (LlamaConfig, {"rope_parameters": 7}, "is 7, expected a mapping"),
        (LlamaConfig, {"max_position_embeddings": "many"}, "expected int, got str"),
        (LlamaConfig, {"dtype": "float32"}, "dtype cannot be changed: set model.dtype"),
        (LlamaConfig, {"model_type": "qwen2"}, "cannot be changed"),
        (Qwen2Config, {"sliding_window": 3}, r"the config that transformers makes has None"),
        (
            Qwen2Config,
            {"use_sliding_window": True, "sliding_window": 3},
            r"no layer has a window; set layer_types, a list of 2 names",
        ),
        (Gemma3TextConfig, {"rope_parameters": {"factor": 2.0}}, "full_attention, sliding_att"),
    ],
)
def test_what_no_config_can_be_is_refused_in_one_sentence(
    config: Any, overrides: dict[str, Any], said: str, tmp_path: Path
) -> None:
    config(num_hidden_layers=2, architectures=["X"]).save_pretrained(tmp_path / "model")
    with pytest.raises(ConfigError, match=said) as caught:
        model_source(section(tmp_path / "model", overrides))
    assert str(caught.value).startswith("model.overrides")
    assert "\n" not in str(caught.value)


def test_windows_and_kinds_of_layers_can_be_changed(tmp_path: Path) -> None:
    Gemma3TextConfig(num_hidden_layers=2).save_pretrained(tmp_path / "gemma")
    rope = {"full_attention": {"rope_type": "linear", "factor": 8.0}}
    found = policy_config(
        section(tmp_path / "gemma", {"sliding_window": 3, "rope_parameters": rope})
    )
    assert found.sliding_window == 3
    assert found.rope_parameters["full_attention"]["factor"] == 8.0
    assert found.rope_parameters["sliding_attention"]["rope_type"] == "default"


@pytest.mark.fleet
async def test_a_vllm_server_has_the_config(folder: Path, tmp_path: Path) -> None:
    require_vllm()
    from agentrl.serving.vllm import VllmEngine

    command = server_command(
        VllmServing(max_batch_size=2, kv_cache_gb=0.1),
        model_path=model_source(section(folder, YARN)),
        max_context_tokens=256,
        dtype="float32",
        replicas=2,
        weight_transfer=transfer_backend(),
    )
    server = VllmServer(command, name="vllm-0", log=tmp_path / "server.log", start_limit_s=240)
    await server.start()
    try:
        engine = VllmEngine(server.url, name="vllm-0", probe_limit_s=30)
        answer = await engine.generate(PROMPT, SamplingParams(max_tokens=24, seed=3), "s")
        await engine.close()
    finally:
        await server.stop()
    want = log_probs(by_hand(folder, tmp_path / "copy", "yarn"), PROMPT, answer.ids, temperature=1)
    assert answer.log_probs == pytest.approx(want, abs=1e-4)
    plain = log_probs(folder, PROMPT, answer.ids, temperature=1.0)
    assert np.abs(np.subtract(plain, want)).max() > 0.05
