"""The lines of preflight that advise: each names what to set, and is content once it is set."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from agentrl.config import load_config
from agentrl.config.plan import plan_run
from agentrl.errors import ConfigError, EnvError
from agentrl.preflight.checks import setup
from agentrl.preflight.checks.facts import PreflightFacts
from agentrl.runtime.assembly.parts import load_task_sets
from agentrl.types.finding import Finding, Status
from tests.runtime.tiny_project import write_project


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_project(tmp_path_factory.mktemp("setup"))


async def line(project: Path, name: str, overrides: Sequence[str]) -> Finding:
    config = load_config(project, overrides)
    plan = plan_run(config, project.parent)
    trainer = plan.trainer
    algorithm = trainer.algorithm
    tasks = load_task_sets(plan.tasks)
    found = PreflightFacts(tasks=tasks)
    calls = {
        "batch": lambda: setup.batch(algorithm, config.rollout, config.train),
        "normalisation": lambda: setup.normalisation(algorithm, config.reward, found),
        "kl": lambda: setup.kl(algorithm, config.health),
        "evaluation": lambda: setup.evaluation(config.eval, config.train, found),
        "early stop": lambda: setup.early_stop(
            algorithm, config.health, datasets=config.eval.datasets
        ),
        "async": lambda: setup.asynchrony(trainer, config.schedule),
        "critic": lambda: setup.critic(trainer),
    }
    outcome = await calls[name]()
    if isinstance(outcome, str):
        return Finding(name=name, status=Status.OK, detail=outcome)
    return outcome


ASYNC = ["serving.engine=vllm", "schedule.staleness_threshold=1", "schedule.partial_rollout=true"]
RECOMPUTE = [*ASYNC, "algorithm.old_log_probs=recompute"]
REFERENCE = ["algorithm.kl_coef=0.01"]
PPO = ["algorithm.preset=ppo"]
ENTROPY = "health.rules=['entropy < 0.05 for 10 steps -> stop']"
LARGE = ["rollout.prompts_per_step=256", "rollout.n_samples_per_prompt=8"]


@pytest.mark.parametrize(
    ("name", "overrides", "status", "words"),
    [
        ("batch", [], "warn", ["groups of 4", "set rollout.n_samples_per_prompt: 8", "3 prompts"]),
        ("batch", LARGE, "ok", ["256 prompts of 8 rollouts"]),
        ("batch", PPO, "warn", ["12 rollouts a step", "set rollout.prompts_per_step: 16"]),
        ("batch", [*PPO, "rollout.prompts_per_step=16"], "ok", ["16 prompts of 4"]),
        ("normalisation", [], "warn", ["of unknown size", "set reward.normalize: true"]),
        ("normalisation", ["reward.normalize=true"], "ok", ["running standard deviation"]),
        ("normalisation", [], "warn", ["with it reward.clip: [-10, 10], which bounds what"]),
        ("normalisation", ["reward.clip=[-1, 1]"], "ok", ["clipped to [-1.0, 1.0] after"]),
        ("normalisation", ["reward.clip_raw=[-1, 1]"], "ok", ["[-1.0, 1.0] before normalisation"]),
        ("normalisation", ["algorithm.preset=grpo"], "ok", ["group's standard deviation"]),
        ("normalisation", PPO, "ok", ["whitened"]),
        ("kl", [], "warn", ["no reference policy", "set algorithm.kl_coef"]),
        ("kl", [ENTROPY], "ok", ["a rule watches the entropy"]),
        ("kl", REFERENCE, "warn", ["fixed controller", "set algorithm.kl_target: [0.05, 0.2]"]),
        ("kl", [*REFERENCE, "algorithm.kl_target=[0.05, 0.2]"], "ok", ["target [0.05, 0.2]"]),
        ("evaluation", ["eval.datasets={}"], "warn", ["no held-out tasks", "add eval.datasets"]),
        ("evaluation", [], "warn", ["3 tasks leave a wide interval"]),
        ("evaluation", ["train.steps=500"], "warn", ["set eval.every_steps: 50"]),
        ("early stop", [], "warn", ["no rule ends", "entropy < 0.05"]),
        ("early stop", [ENTROPY], "ok", ["-> stop"]),
        ("early stop", ["health.rules=['kl > 2 for 2 steps -> stop']"], "warn", ["never measured"]),
        (
            "early stop",
            ["health.rules=['entropy < 1 for 2 steps -> warn']"],
            "warn",
            ["let one of health.rules end in -> stop"],
        ),
        ("async", [], "ok", ["on-policy"]),
        ("async", ASYNC, "ok", ["ratios are taken to the sampler"]),
        ("async", RECOMPUTE, "fail", ["older weights", "set algorithm.is_correction_type: tis"]),
        ("async", [*RECOMPUTE, "algorithm.is_correction_type=tis"], "ok", ["corrected by tis"]),
        ("async", [*ASYNC, "schedule.partial_rollout=false"], "warn", ["partial_rollout: true"]),
        ("critic", [], "ok", ["dr_grpo has no critic"]),
        ("critic", PPO, "warn", ["no faster than the policy", "critic.learning_rate: 0.01"]),
        ("critic", [*PPO, "critic.learning_rate=0.01"], "warn", ["set critic.warmup_steps: 1"]),
        (
            "critic",
            [*PPO, "critic.learning_rate=0.01", "critic.warmup_steps=2"],
            "ok",
            ["from the policy itself", "2 steps of its own first"],
        ),
    ],
)
async def test_each_line_advises_until_it_is_heeded(
    project: Path, name: str, overrides: list[str], status: str, words: list[str]
) -> None:
    check = await line(project, name, overrides)
    assert check.status == status, check
    text = f"{check.detail} {check.fix}"
    assert [word for word in words if word not in text] == [], text
    assert bool(check.fix) is (status != "ok")


async def test_the_path_of_a_critic_starts_at_the_run_file(tmp_path: Path) -> None:
    """Fails ("does not exist") if it starts at the working directory."""
    file = write_project(tmp_path, critic__path="./model")
    assert f"from {tmp_path / 'model'}" in (await line(file, "critic", PPO)).detail


async def test_what_cannot_be_read_is_an_error(project: Path) -> None:
    with pytest.raises(ConfigError, match="health"):
        await line(project, "early stop", ["health.rules=['entropy below 1']"])
    with pytest.raises(ConfigError, match="nowhere"):
        await line(project, "critic", [*PPO, "critic.path=./nowhere"])
    with pytest.raises(ConfigError, match="no_such_loss"):
        await line(project, "async", [*ASYNC, "algorithm.policy_loss=no_such_loss"])


@pytest.mark.parametrize(
    ("overrides", "status"),
    [
        (["reward.clip=[-10, 10]"], "warn"),
        (["reward.clip_raw=[-10, 10]", "reward.normalize=true"], "warn"),
        (["reward.clip=[-10, 10]", "reward.normalize=true"], "ok"),
        (["reward.clip=[-10, 60]"], "ok"),
    ],
)
async def test_a_clip_beside_all_rewards_is_seen(
    project: Path, overrides: list[str], status: str
) -> None:
    """Fails ("clipped to [-10, 10]") where rewards of 50 to 500 all become 10."""
    config = load_config(project, overrides)
    found = PreflightFacts(make_env=lambda: SimpleNamespace(reward_range=(50.0, 500.0)))
    outcome = await setup.normalisation(config.resolved_algorithm(), config.reward, found)
    assert ("ok" if isinstance(outcome, str) else outcome.status) == status, outcome
    if not isinstance(outcome, str):
        assert "leaves one value of rewards from 50 to 500" in outcome.detail


@pytest.mark.parametrize("declared", [(0,), "ab", 5, (1.0, 0.0), (float("nan"), 1.0), object()])
async def test_a_reward_range_that_is_none_is_named(project: Path, declared: object) -> None:
    """Fails if the line of a check is an IndexError of ours."""
    config = load_config(project, [])
    found = PreflightFacts(make_env=lambda: SimpleNamespace(reward_range=declared))
    with pytest.raises(EnvError, match=r"reward_range is .*; expected two numbers"):
        await setup.normalisation(config.resolved_algorithm(), config.reward, found)


def test_rewards_without_bounds_are_of_unknown_size() -> None:
    """Fails if `round(inf)` ends the check of the algorithm: gym declared that by default."""
    ends = (float("-inf"), float("inf"))
    assert (
        PreflightFacts(make_env=lambda: SimpleNamespace(reward_range=ends)).reward_bounds() is None
    )
