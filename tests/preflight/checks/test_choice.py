"""The line about the algorithm: each rule speaks where the run's numbers ask for it, else not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from agentrl.config import load_config
from agentrl.config.plan import plan_run
from agentrl.preflight.checks.choice import choice, flat_share
from agentrl.preflight.checks.facts import PreflightFacts
from agentrl.preflight.reward.known_answers import TriedAnswer
from agentrl.runtime.assembly.parts import load_task_sets
from agentrl.runtime.checks.algorithm import check_estimator
from agentrl.types import Task
from agentrl.types.finding import Finding, Status
from tests.runtime.tiny_project import write_project

ALONE = ["algorithm.preset=reinforce++"]
PPO = ["algorithm.preset=ppo"]
LARGE = ["rollout.prompts_per_step=16", "rollout.n_samples_per_prompt=4"]
LONG = ["rollout.max_assistant_turns=30"]
MEASURED = ["dataset.difficulty={source: 'column:rate', keep: [0, 1]}"]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_project(tmp_path_factory.mktemp("choice"))


async def line(
    project: Path,
    overrides: Sequence[str],
    *,
    rewards: tuple[float, float] | None = (0.0, 1.0),
    rates: Sequence[float] = (),
    answers: Sequence[TriedAnswer] = (),
) -> Finding:
    """The line of a run that would start with these settings; `rates` are those of its tasks."""
    plan = plan_run(load_config(project, overrides), project.parent)
    check_estimator(plan.trainer)
    sets = load_task_sets(replace(plan.tasks, dataset=plan.tasks.dataset.model_copy(
        update={"difficulty": None, "selection": None})))  # fmt: skip
    tasks = [Task(id=f"t{i}", prompt="?", metadata={"rate": p}) for i, p in enumerate(rates)]
    found = PreflightFacts(
        tasks=replace(sets, train=tasks) if tasks else sets, answers=list(answers)
    )
    if rewards is not None:
        found.make_env = lambda: SimpleNamespace(reward_range=rewards)
    outcome = await choice(plan.schedule, plan.trainer.critic, plan.tasks, found)
    if isinstance(outcome, str):
        return Finding(name="choice", status=Status.OK, detail=outcome)
    return outcome


@pytest.mark.parametrize(
    ("overrides", "words", "advised", "heeded"),
    [
        (
            ["algorithm.preset=grpo", "rollout.n_samples_per_prompt=2"],
            "groups of 2 divided by their spread: every advantage is 0.71 or -0.71",
            "algorithm.advantage_estimator: rloo",
            ["algorithm.advantage_estimator=rloo"],
        ),
        (
            ["algorithm.preset=grpo", "rollout.n_samples_per_prompt=2"],
            "groups of 2",
            "rollout.n_samples_per_prompt: 8",
            ["rollout.n_samples_per_prompt=8"],
        ),
        (
            [*ALONE, *LARGE, "algorithm.whiten_advantages=false"],
            "reinforce without a baseline, and rewards from 0 to 1 have one sign",
            "algorithm.whiten_advantages: true",
            ["algorithm.whiten_advantages=true"],
        ),
        (
            ALONE,
            "the mean of 12 rollouts a step, which is off by 0.29 of their standard deviation",
            "rollout.prompts_per_step: 16",
            ["rollout.prompts_per_step=16"],
        ),
        (
            ALONE,
            "the mean of 12 rollouts",
            "algorithm.advantage_estimator: rloo",
            ["algorithm.advantage_estimator=rloo"],
        ),
        (
            [*PPO, "rollout.prompts_per_step=2"],
            "gae compares no siblings, so 4 rollouts of 2 prompts teach less than one of 8, of 12",
            "rollout.n_samples_per_prompt: 1 and rollout.prompts_per_step: 8",
            ["rollout.n_samples_per_prompt=1", "rollout.prompts_per_step=8"],
        ),
        (
            [*LONG, *LARGE],
            "one advantage for up to 30 turns and",
            "algorithm.preset: ppo, whose critic credits each token and has 64 rollouts",
            PPO,
        ),
        (
            [*LONG, "algorithm.preset=grpo"],
            "one advantage for up to 30 turns and",
            "algorithm.turn_rewards: return_to_go with algorithm.advantage_estimator: rloo",
            ["algorithm.turn_rewards=return_to_go", "algorithm.advantage_estimator=rloo"],
        ),
        (
            [*LONG, "algorithm.preset=rloo", "algorithm.kl_coef=0.01"],
            "one advantage for up to 30 turns and",
            "rollout.n_samples_per_prompt: 8 (12 rollouts a step are too few for a critic)",
            ["rollout.max_assistant_turns=15"],
        ),
    ],
)
async def test_a_rule_speaks_until_it_is_heeded(
    project: Path, overrides: list[str], words: str, advised: str, heeded: list[str]
) -> None:
    """Fails if a rule is silent, goes on after its own advice, or advises what is refused."""
    doubted = await line(project, overrides)
    assert doubted.status == "warn", doubted
    assert words in doubted.detail
    assert advised in doubted.fix
    assert words not in (await line(project, [*overrides, *heeded])).detail


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["algorithm.preset=grpo"],
        ["algorithm.preset=rloo", "rollout.n_samples_per_prompt=2"],
        ["algorithm.preset=reinforce++-baseline"],
        [*ALONE, "rollout.prompts_per_step=64", "rollout.n_samples_per_prompt=1"],
        [*PPO, "train.steps=20", "rollout.n_samples_per_prompt=1"],
        [*PPO, *LARGE, "train.steps=20", "reward.dynamic_filtering={keep: [0, 1]}"],
        [*LONG, *PPO, *LARGE, "train.steps=20"],
        [*LONG, "algorithm.turn_rewards=return_to_go"],
        ["rollout.max_assistant_turns=15"],
        [*LONG, "train.steps=0"],
    ],
)
async def test_no_rule_speaks_where_the_algorithm_suits_the_run(
    project: Path, overrides: list[str]
) -> None:
    found = await line(project, overrides)
    assert found.status == "ok", found
    assert "rewards from 0 to 1" in found.detail


@pytest.mark.parametrize(
    ("rewards", "overrides", "doubted"),
    [
        ((0.0, 500.0), [], True),
        ((-500.0, 0.0), [], True),
        ((0.0, 1.0), [], False),
        (None, [], False),
        ((0.0, 500.0), ["reward.normalize=true"], False),
        ((0.0, 500.0), ["critic.value_clip=null"], False),
        ((0.0, 500.0), ["train.steps=5000"], False),
        ((0.0, 500.0), ["reward.env_weight=0.002"], False),
        ((0.0, 500.0), ["algorithm.preset=dr_grpo"], False),
    ],
)
async def test_values_that_cannot_reach_the_rewards_are_seen(
    project: Path, rewards: tuple[float, float] | None, overrides: list[str], doubted: bool
) -> None:
    found = await line(project, [*PPO, *LARGE, "train.steps=20", *overrides], rewards=rewards)
    text = "move by 0.2 a step, and rewards reach 500: 2500 steps until values are there, and the"
    assert (text in found.detail) is doubted
    assert ("reward.normalize: true, or critic.value_clip: null" in found.fix) is doubted


@pytest.mark.parametrize(
    ("rewards", "doubted"), [((0, 1), True), ((-1, 0), True), ((-1, 1), False), (None, False)]
)
async def test_rewards_of_both_signs_need_no_baseline(
    project: Path, rewards: tuple[float, float] | None, doubted: bool
) -> None:
    overrides = [*ALONE, *LARGE, "algorithm.whiten_advantages=false"]
    found = await line(project, overrides, rewards=rewards)
    assert ("without a baseline" in found.detail) is doubted


@pytest.mark.parametrize(
    ("rates", "overrides", "words", "fix"),
    [
        ([0.1] * 10, [], "0 were never solved and 0 always: 66 %", "n_samples_per_prompt: 8"),
        ([0.0] * 6 + [0.5] * 4, [], "6 were never", "set dataset.difficulty.keep: [0.05, 0.9]"),
        ([1.0] * 6 + [0.5] * 4, [], "and 6 always: 65 % of groups of 4", "keep: [0.05, 0.9]"),
        (
            [0.0] * 6 + [0.5] * 4,
            ["dataset.difficulty.keep=[0, 0.9]"],
            "so 1.0 of 3 groups a step teach",
            "set dataset.difficulty.keep",
        ),
        ([0.0] * 6 + [1.0] * 4, [], "6 were never solved and 4 always: 100 %", "take easier tasks"),
        ([1.0] * 10, [], "and 10 always: 100 %", "take harder tasks"),
        ([0.5] * 10, [], "", ""),
        ([0.0] * 6 + [0.5] * 4, ALONE, "", ""),
        ([0.0] * 6 + [0.5] * 4, PPO, "", ""),
    ],
)
async def test_flat_groups_are_counted_before_they_are_rolled_out(
    project: Path, rates: list[float], overrides: list[str], words: str, fix: str
) -> None:
    """Fails if a group-relative estimator is not warned of tasks that all or none solve."""
    found = await line(project, [*MEASURED, *overrides], rates=rates)
    assert ("10 measured tasks" in found.detail) is bool(words)
    assert words in found.detail
    assert fix in found.fix


async def test_samples_of_a_model_stand_for_pass_rates(project: Path) -> None:
    def sample(task: int, score: float) -> TriedAnswer:
        return TriedAnswer(
            kind="sample", task_id=f"t{task}", text="", reward=score, score=score,
            termination="env_done", detail="", tokens=3, sandbox=False,
        )  # fmt: skip

    flat = [sample(task, float(task == 0)) for task in range(3) for _ in range(4)]
    found = await line(project, [], answers=flat)
    assert "of 3 sampled tasks 2 were never solved and 1 always: 100 % of groups" in found.detail
    assert "agentrl tasks profile, then set dataset.difficulty: {" in found.fix
    none = await line(project, [], answers=[sample(task, 0.0) for task in range(3)])
    assert "take easier tasks" in none.fix
    mixed = [sample(task, float(i % 2)) for task in range(3) for i in range(4)]
    assert "sampled tasks" not in (await line(project, [], answers=mixed)).detail


def test_the_share_of_flat_groups() -> None:
    assert flat_share({"a": 0.5}, 2, {}) == 0.5
    assert flat_share({"a": 0.5, "b": 0.0}, 2, {"a": 3.0, "b": 1.0}) == 0.625
    assert flat_share({}, 2, {}) == 0.0
