"""Sections of several kinds: which one a mapping, a plain value or an override means."""

from __future__ import annotations

from typing import Any

import pytest

from agentrl.config import RunConfig, parse_config
from agentrl.config.fleet import ExternalServing, LocalRuntime, RayRuntime, VllmServing
from agentrl.config.sandboxes import ContainerSandbox, HostSandbox
from agentrl.config.training import DeepspeedTraining, Fsdp2Training, LoraSection
from agentrl.errors import ConfigError

MINIMAL: dict[str, Any] = {"env": {"target": "a:B"}, "dataset": {"source": "x.jsonl"}}
APART = ["runtime=ray", "serving.engine=vllm"]


def with_keys(*overrides: str, **sections: Any) -> RunConfig:
    return parse_config({**MINIMAL, **sections}, overrides)


@pytest.mark.parametrize("value", ["ray", {"kind": "ray"}, {"kind": "ray", "rollout_workers": 2}])
def test_a_plain_value_stands_for_the_key_that_names_the_kind(value: Any) -> None:
    assert with_keys(runtime=value).runtime == RayRuntime()


def test_plain_values_of_sections_that_have_no_kinds() -> None:
    config = with_keys(
        "train.lora=8", "reward.overlong=4", "reward.dynamic_filtering=[0, 1]",
        "algorithm.kl_coef=1", "algorithm.reference_update=5",
    )  # fmt: skip
    assert config.train.lora == LoraSection(rank=8)
    assert config.reward.overlong is not None
    assert config.reward.overlong.buffer_len == 4
    assert config.reward.dynamic_filtering is not None
    assert config.reward.dynamic_filtering.keep == (0.0, 1.0)
    assert config.algorithm.reference_update is not None
    assert config.algorithm.reference_update.every_steps == 5


def test_an_override_goes_on_from_a_plain_value() -> None:
    config = with_keys("reward.dynamic_filtering.rounds=7", reward={"dynamic_filtering": [0, 1]})
    assert config.reward.dynamic_filtering is not None
    assert config.reward.dynamic_filtering.rounds == 7
    config = with_keys("train.backend.zero_stage=3", *APART, train={"backend": "deepspeed"})
    assert config.train.backend == DeepspeedTraining(zero_stage=3)


def test_the_kind_may_be_named_after_its_keys() -> None:
    config = with_keys("runtime.trainer_ranks=3", "serving.replicas=2", *APART)
    assert config.runtime == RayRuntime(trainer_ranks=3)
    assert config.serving == VllmServing(replicas=2)


def test_an_override_of_the_kind_leaves_what_the_file_said_of_the_other() -> None:
    """Fails if a run directory cannot be evaluated with another engine or another backend."""
    sections = {
        "train": {"backend": {"kind": "deepspeed", "zero_stage": 3, "offload": True}},
        "serving": {"engine": "vllm", "replicas": 4, "kv_cache_gb": 2.0},
        "runtime": {"kind": "ray", "trainer_ranks": 4},
        "sandbox": {"backend": "docker", "image": "i", "limits": {"cpus": 2, "wall_s": 3}},
    }
    config = with_keys("train.backend.kind=fsdp2", **sections)
    assert config.train.backend == Fsdp2Training(offload=True)
    config = with_keys(
        "runtime=local", "serving.engine=embedded", "train.backend=torch",
        "sandbox.backend=process", **sections,
    )  # fmt: skip
    assert config.runtime == LocalRuntime()
    assert config.serving.engine == "embedded"
    assert config.serving.kv_cache_gb == 2.0
    assert isinstance(config.sandbox, HostSandbox)
    assert config.sandbox.limits.wall_s == 3


def test_a_run_on_ray_becomes_local_by_one_word() -> None:
    """Fails if a key of Ray's workers asks for workers that an embedded engine cannot have."""
    ray = {"kind": "ray", "rollout_workers": 2, "trainer_ranks": 2}
    assert with_keys("runtime=local", runtime=ray).runtime == LocalRuntime()


def test_names_that_are_no_kind_of_their_own() -> None:
    assert isinstance(with_keys("sandbox.backend=mine.py:Own").sandbox, ContainerSandbox)
    assert isinstance(with_keys("sandbox.backend=bubblewrap").sandbox, HostSandbox)
    config = with_keys("serving.engine=external", "serving.urls=[http://a:1]")
    assert config.serving == ExternalServing(urls=("http://a:1",))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["train.backend.zero_stage=3"],
            r"zero_stage belongs to train\.backend\.kind: deepspeed, and .*kind is torch",
        ),
        (
            ["train.backend=fsdp2", "train.backend.zero_stage=3"],
            r"zero_stage belongs to train\.backend\.kind: deepspeed, and .*kind is fsdp2",
        ),
        (["serving.replicas=2"], r"belongs to serving\.engine: vllm, and serving\.engine is embed"),
        (
            ["serving.engine=vllm", "serving.urls=[http://a:1]"],
            r"serving\.engine: external, and",
        ),
        (["sandbox.limits.cpus=2"], r"cpus belongs to sandbox\.backend: docker, and .* is auto"),
        (["sandbox.backend=process", "sandbox.image=i"], r"sandbox\.backend is process"),
        (["runtime.trainer_ranks=2"], r"belongs to runtime\.kind: ray, and .* is local"),
        (["runtime.trainer_rank=2"], r"runtime\.trainer_rank: unknown key"),
        (["runtime=rya"], r"runtime\.kind: got 'rya'; did you mean 'ray'\? valid: local, ray"),
        (["serving.engine=vlm"], r"serving\.engine: got 'vlm'; did you mean 'vllm'\?"),
        (["runtime=[1]"], r"runtime\.kind: got '\[1\]'"),
        (["train.lora.alpha=2"], r"train\.lora\.rank: missing"),
        (["train.lora.rank=0"], r"leave lora out"),
        (["serving.engine=external"], r"serving\.urls: missing"),
        (["serving.engine=external", "serving.urls=[]"], r"serving\.urls: .*at least 1 item"),
        (["algorithm.kl_coef=1", "algorithm.kl_horizon=5"], r"only a kl_target of one number"),
        (["algorithm.kl_target=[0.05, 0.2]"], r"kl_coef is 0; set it"),
        (["reward.dynamic_filtering=[1, 0]"], r"dynamic_filtering\.keep: keep is \[1\.0, 0\.0\]"),
        (["train.lora=8", "train.lora.rnk=1"], r"unknown key: got 'rnk'; did you mean 'rank'"),
    ],
)
def test_a_key_of_another_kind_is_told_from_an_unknown_one(
    overrides: list[str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        with_keys(*overrides)
