"""Reward models that cannot be used are refused by their configuration alone, or when opened."""

from __future__ import annotations

import asyncio
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer

from agentrl.batch.examples import ScoredTokens
from agentrl.config import load_config, parse_config
from agentrl.config.plan import RewardPlan, plan_run
from agentrl.config.reward import RefreshSection
from agentrl.errors import ConfigError, GraderError
from agentrl.fit.reward_models.open import (
    check_reward_models,
    open_reward_models,
    reward_model_bytes,
)
from agentrl.fit.reward_models.versions import UsedRewardModel
from agentrl.reward.posterior import POSTERIOR_FILE, HeadPosterior
from agentrl.reward.scale import RewardScale
from agentrl.train.score_model import load_score_model
from agentrl.types import RewardValue, Task
from tests.runtime.reward_checkpoints import rollout_of, values_of, write_reward_model
from tests.runtime.tiny_project import resize_ids, write_project


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with the reward models `rm` and `raw`, which has no scale."""
    folder = tmp_path_factory.mktemp("models")
    write_project(folder)
    write_reward_model(folder / "rm", folder / "model", scale=RewardScale(std=2.0))
    write_reward_model(folder / "raw", folder / "model")
    return folder


def config_of(project: Path, **model: Any):
    return load_config(write_project(project, reward={"models": {"good": {"path": "rm", **model}}}))


def rewards_of(project: Path, **model: Any) -> RewardPlan:
    return plan_run(config_of(project, **model), project).rewards


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ({"path": "raw"}, r"raw.*agentrl rm report .*raw --data PAIRS --store"),
        ({"path": "model"}, "is a LlamaForCausalLM, expected a"),
        ({"path": "./nowhere"}, r"/nowhere' does not exist"),
        ({"uncertainty": 1.0}, "/rm' gives no deviation"),
        ({"disagreement": 1.0}, "one reward model of one head cannot disagree; give path a list"),
        ({"device": "cuda:77"}, "torch sees"),
    ],
)
def test_a_model_that_cannot_be_used_is_refused(project: Path, model, said: str) -> None:
    with pytest.raises(ConfigError, match=rf"(?s)reward\.models\.good.*{said}"):
        check_reward_models(rewards_of(project, **model))


def test_rollouts_longer_than_the_model_reads_are_refused(project: Path) -> None:
    plan = rewards_of(project)
    longer = plan.rollout.model_copy(update={"max_context_tokens": 513})
    with pytest.raises(ConfigError, match="reads 512 tokens, but a rollout may have 513"):
        check_reward_models(replace(plan, rollout=longer))


def test_the_name_of_the_part_of_the_environment_is_taken(project: Path) -> None:
    config = load_config(write_project(project, reward={"models": {"env": "rm"}}))
    with pytest.raises(ConfigError, match="is the environment's own part; rename it"):
        check_reward_models(plan_run(config, project).rewards)


async def test_ids_that_a_model_cannot_read_end_only_their_rollout(tmp_path: Path) -> None:
    """Fails if a padding id of the policy breaks the batch of others, or if nothing warns of it."""
    path = write_project(tmp_path, reward={"models": {"rm": {"path": "rm", "scale": "none"}}})
    write_reward_model(tmp_path / "rm", tmp_path / "model")
    resize_ids(tmp_path / "model", 264)
    plan = plan_run(load_config(path), tmp_path).rewards
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    (line,) = check_reward_models(plan, tokenizer=tokenizer)
    assert "it reads 258 token ids and the policy has 264" in line
    async with open_reward_models(plan, tokenizer=tokenizer) as opened:
        (target,) = opened.targets
        rows = [ScoredTokens(prompt_ids=(1,), ids=(2, last)) for last in (263, 257)]
        task = Task(id="t", prompt="p")
        found = await asyncio.gather(
            *(target.call(rollout_of(row), task) for row in rows), return_exceptions=True
        )
    assert isinstance(found[0], GraderError)
    assert "token id 263 is none of the 258" in str(found[0])
    assert isinstance(found[1], RewardValue)


def test_a_model_without_an_embedding_for_a_token_is_refused(tmp_path: Path) -> None:
    """Fails if a tokenizer that fits hides weights that do not."""
    path = write_project(tmp_path, reward={"models": {"rm": {"path": "rm", "scale": "none"}}})
    file = write_reward_model(tmp_path / "rm", tmp_path / "model") / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "vocab_size": 257}))
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    with pytest.raises(ConfigError, match=r"/rm' reads 257 token ids .* is id 257 for the policy"):
        check_reward_models(plan_run(load_config(path), tmp_path).rewards, tokenizer=tokenizer)


async def test_another_vocabulary_is_refused(project: Path, tmp_path: Path) -> None:
    """Fails if ids that mean other text to the reward model are scored."""
    tokenizer = AutoTokenizer.from_pretrained(project / "model")
    assert check_reward_models(rewards_of(project), tokenizer=tokenizer) == [
        f"reward.models.good: {project}/rm, scale stored"
    ]
    tokenizer.add_tokens(["extra"])
    with pytest.raises(ConfigError, match=r"token 'extra' is id 258 for the policy and no id"):
        check_reward_models(rewards_of(project), tokenizer=tokenizer)
    with pytest.raises(ConfigError, match="another vocabulary than the policy"):
        async with open_reward_models(rewards_of(project), tokenizer=tokenizer):
            pass
    # The reward model may know more than the policy.
    shutil.copytree(project / "rm", tmp_path / "rm")
    tokenizer.save_pretrained(tmp_path / "rm")
    plain = AutoTokenizer.from_pretrained(project / "model")
    assert check_reward_models(rewards_of(project), tokenizer=plain)


def test_a_stored_posterior_takes_its_deviation_off(project: Path, tmp_path: Path) -> None:
    """Fails if the deviation is in raw scores, or if a refreshed model would keep it."""
    rows = [ScoredTokens(prompt_ids=(1,), ids=(2, 3)), ScoredTokens(prompt_ids=(1,), ids=(90, 7))]
    (plain, other) = values_of(config_of(project), project, rows, name="good")
    assert plain.parts == {}
    shutil.copytree(project, tmp_path / "copy")
    base = tmp_path / "copy"
    weight = load_score_model(str(base / "rm")).reward_weight
    posterior = HeadPosterior(
        weight_E=weight, mean_E=np.zeros(len(weight)), covariance_EE=0.01 * np.eye(len(weight)),
        prior=1.0, decided=1.0, pairs=9,
    )  # fmt: skip
    posterior.save(base / "rm")
    config = config_of(base, uncertainty=3.0)
    (found, _) = values_of(config, base, rows, name="good")
    features = load_score_model(str(base / "rm")).features(rows)
    # The scale of the project divides by 2.
    deviation = 0.1 * float(np.linalg.norm(features[0])) / 2.0
    assert found.parts["deviation"] == pytest.approx(deviation, rel=1e-5)
    assert found.value == pytest.approx(plain.value - 3.0 * deviation, rel=1e-4)
    assert other.value != plain.value
    kind = base / "rm" / "config.json"
    kind.write_text(kind.read_text().replace('"float32"', '"bfloat16"'))
    rounded = load_score_model(str(base / "rm")).features(rows)
    assert 0 < np.abs(rounded - features).max() < 0.05 * np.abs(features).max()
    refresh = RefreshSection(every_steps=1, labeller="verifier")
    plan = plan_run(config, base).rewards
    reward = plan.reward.model_copy(update={"refresh": refresh})
    with pytest.raises(ConfigError, match="a refreshed model has another head"):
        check_reward_models(replace(plan, reward=reward))
    (base / "rm" / POSTERIOR_FILE).write_bytes(b"no archive")
    with pytest.raises(ConfigError, match=r"(?s)reward\.models\.good.*cannot be read"):
        check_reward_models(plan)


def test_the_bytes_of_models_are_those_of_their_files(project: Path) -> None:
    size = (project / "rm" / "model.safetensors").stat().st_size
    assert size > 50_000
    assert reward_model_bytes(rewards_of(project, path=["rm", "raw"])) == 2 * size


@pytest.mark.parametrize(
    ("reward", "said"),
    [
        ({"models": {"a": {"path": ["x", "x"]}}}, "names one model twice"),
        ({"models": {"a": {"path": []}}}, "at least 1 item"),
        ({"models": {"a": {"path": ["x", "y"], "scale": "none"}}}, "whitened before their mean"),
        ({"models": {"a": "x"}, "functions": {"a": {"target": "m:f"}}}, "both have a 'a'"),
    ],
)
def test_sections_that_mean_nothing_are_refused(reward: dict[str, Any], said: str) -> None:
    data = {"env": {"target": "m:E"}, "dataset": {"source": "x.jsonl"}, "reward": reward}
    with pytest.raises(ConfigError, match=said):
        parse_config(data)


async def test_the_version_that_scores_is_not_loaded_again(project: Path) -> None:
    """Fails if a process that had no room for a new version needs it to go back to the present."""
    refresh = {"every_steps": 2, "labeller": "verifier", "old_pairs": "none"}
    models = {"good": {"path": "rm", "device": "cpu"}}
    config = load_config(write_project(project, reward={"models": models, "refresh": refresh}))
    plan = plan_run(config, project).rewards
    tokenizer = AutoTokenizer.from_pretrained(project / "model")
    async with open_reward_models(plan, tokenizer=tokenizer) as opened:
        nowhere = str(project / "nowhere")
        with pytest.raises(ConfigError, match=r"version 1 of reward\.models\.good: .*nowhere"):
            await opened.use_reward_model(UsedRewardModel(name="good", version=1, path=nowhere))
        await opened.use_reward_model(UsedRewardModel(name="good", version=0, path=nowhere))
