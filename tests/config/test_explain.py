"""Keys that have another name, or another section, than a reader of other frameworks expects."""

from __future__ import annotations

import re
from typing import Any

import pytest

from agentrl.config import leaves, parse_config
from agentrl.config.explain import OTHER_NAMES
from agentrl.config.fit import FitConfig
from agentrl.config.load import FIT_FILE
from agentrl.errors import ConfigError

RUN: dict[str, Any] = {"env": {"target": "my.py:Env"}, "dataset": {"source": "train.jsonl"}}
FIT: dict[str, Any] = {"data": {"source": "rows.jsonl"}}


def test_every_name_of_others_leads_to_a_key_that_there_is() -> None:
    """Fails if a key is renamed and its line is not, or if a name of our own is translated."""
    own = [key.name for key in leaves()]
    keys = [*own, *(key.name for key in leaves(FitConfig))]
    meant = {key for found, _ in OTHER_NAMES.values() for key in found}
    assert [key for key in meant if not any(f"{one}.".startswith(f"{key}.") for one in keys)] == []
    assert {key.rpartition(".")[2] for key in own} & set(OTHER_NAMES) == set()
    assert len(OTHER_NAMES) > 150


@pytest.mark.parametrize(
    ("override", "meant"),
    [
        ("algorithm.max_seq_len=512", "algorithm.horizon (left out, it is rollout.max_response_t"),
        ("train.accumulation_steps=2", "train.micro_batch_tokens (a step is divided by tokens"),
        ("schedule.require_batches=4", "train.minibatches (it counts the updates of a pass"),
        ("max_prompt_length=8", "dataset.max_prompt_tokens?"),
        ("rollout.max_completion_length=8", "rollout.max_response_tokens ("),
        ("num_generations=8", "rollout.n_samples_per_prompt?"),
        ("rollout.n=8", "rollout.n_samples_per_prompt?"),
        ("eval.n=8", "eval.n_samples?"),
        ("train.rollout_batch_size=8", "rollout.prompts_per_step (it counts prompts"),
        ("train.train_batch_size=8", "rollout.prompts_per_step (it counts prompts"),
        ("train.ppo_mini_batch_size=8", "train.minibatches ("),
        ("algorithm.kl_loss_coef=0.1", "algorithm.kl_coef ("),
        ("algorithm.beta=0.1", "algorithm.kl_coef ("),
        ("algorithm.clip_ratio_high=0.3", "algorithm.eps_clip_high?"),
        ("algorithm.epsilon=0.3", "algorithm.eps_clip_low (with eps_clip_high)?"),
        ("train.gradient_accumulation_steps=4", "train.micro_batch_tokens ("),
        ("train.per_device_train_batch_size=4", "train.micro_batch_tokens ("),
        ("train.lr=1e-6", "train.learning_rate?"),
        ("critic.lr=1e-6", "critic.learning_rate?"),
        ("serving.num_engines=2", "serving.replicas with serving.engine: vllm?"),
        ("train.temperature=1", "rollout.temperature or eval.temperature?"),
        ("learning_rate=1e-6", "critic.learning_rate or train.learning_rate or reward.r"),
    ],
)
def test_a_name_of_another_framework_or_section_is_explained(override: str, meant: str) -> None:
    """Fails ("valid: ..." and no name) where only keys that look alike are proposed."""
    name = override.partition("=")[0]
    key = name.rpartition(".")[2]
    with pytest.raises(ConfigError) as failed:
        parse_config(RUN, [override])
    assert f"  {name}: unknown key: got {key!r}; did you mean {meant}" in str(failed.value)
    assert ("docs/defaults.md" in str(failed.value)) == (key in OTHER_NAMES)


@pytest.mark.parametrize(
    ("override", "meant"),
    [
        ("train.per_device_train_batch_size=4", "data.examples_per_step?"),
        ("train.num_train_epochs=4", "data.epochs?"),
        ("objective.max_length=8", "data.max_tokens?"),
        ("kl_coef=1", ""),
        ("beta=0.1", "objective.beta with objective.kind: dpo?"),
    ],
)
def test_a_fit_has_keys_of_its_own(override: str, meant: str) -> None:
    with pytest.raises(ConfigError) as failed:
        FIT_FILE.parse(FIT, [override])
    assert (f"did you mean {meant}" if meant else "'kl_coef'; valid: chat,") in str(failed.value)


def test_every_known_key_of_a_pasted_file_is_translated() -> None:
    """Fails if only its sections are called unknown."""
    verl = {
        "data": {"train_batch_size": 64},
        "actor_rollout_ref": {
            "actor": {"ppo_mini_batch_size": 16, "optim": {"lr": 1e-6}, "use_torch_compile": True},
            "rollout": {"n": 8, "name": "vllm", "top_p": 0.9},
        },
        "critic": {"optim": {"lr": 1e-5}},
    }
    with pytest.raises(ConfigError) as failed:
        parse_config({**RUN, **verl})
    lines = [line.strip() for line in str(failed.value).splitlines()]
    found = dict(re.findall(r"^(\S+): did you mean (\S+?)\??(?: \(|$)", "\n".join(lines), re.M))
    assert found == {
        "data.train_batch_size": "rollout.prompts_per_step",
        "actor_rollout_ref.actor.ppo_mini_batch_size": "train.minibatches",
        "actor_rollout_ref.actor.optim.lr": "train.learning_rate",
        "actor_rollout_ref.rollout.n": "rollout.n_samples_per_prompt",
        "actor_rollout_ref.rollout.top_p": "rollout.top_p",
        "critic.optim.lr": "critic.learning_rate",
    }
    assert any(line.startswith("actor_rollout_ref: unknown key: got") for line in lines)


@pytest.mark.parametrize(
    ("override", "valid"),
    [
        ("serving.engine=sglang", "serving.engine: got 'sglang'; valid: embedded, external, vllm"),
        ("train.backend=megatron", "train.backend.kind: got 'megatron'; valid: deepspeed, fsdp2"),
    ],
)
def test_kinds_that_are_not_there_have_a_page(override: str, valid: str) -> None:
    with pytest.raises(ConfigError) as failed:
        parse_config(RUN, [override])
    assert valid in str(failed.value)
    assert "; docs/defaults.md has the reasons for these" in str(failed.value)
    with pytest.raises(ConfigError) as failed:
        parse_config(RUN, ["serving.engine=vlm"])
    assert "docs/defaults.md" not in str(failed.value)
