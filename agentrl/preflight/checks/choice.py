"""Checks of the algorithm against the run at hand: groups, rewards, batch, turns and critic.

Each rule is a function that gives what it doubts, with the run's own numbers, and what to set;
`docs/defaults.md` lists them. A rule that lacks a number (no reward range, no pass rates) is
silent, and no rule names a setting that the run file would be refused with.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from math import sqrt
from statistics import fmean

from agentrl.config.algorithm import AlgorithmSection, CriticSection
from agentrl.config.plan import SchedulePlan, TaskPlan
from agentrl.config.presets import PRESETS, Bounds
from agentrl.config.reward import RewardSection
from agentrl.config.schema import RolloutSection, TrainDatasetSection
from agentrl.config.training import TrainSection
from agentrl.data.tasks.difficulty import known_pass_rates
from agentrl.preflight.checks.facts import PreflightFacts
from agentrl.types.finding import Finding, warn

Doubt = tuple[str, str]
"""What is doubted, and what to set."""

LARGE_BATCH = 64
"""Rollouts of a step that a critic, or a baseline over the step, needs to hold still."""
_LARGEST_GROUP = 64
FLAT = 0.5
"""Share of flat groups above which most of a step teaches nothing."""
TEACHING = (0.05, 0.9)
"""Pass rates of tasks of which most groups differ."""
MANY_TURNS = 16
"""Turns of a rollout from which one advantage is too coarse for each."""


async def choice(
    plan: SchedulePlan, critic: CriticSection, tasks: TaskPlan, found: PreflightFacts
) -> Finding | str:
    """Check that the algorithm suits groups, rewards, batch and turns of this run.

    Raises:
        DataError: the pass rates that the run file names cannot be read.
    """
    algorithm, rollout, reward = plan.algorithm, plan.rollout, plan.reward
    n, prompts = rollout.n_samples_per_prompt, rollout.prompts_per_step
    bounds = bounds_of_rewards(reward, found)
    scale = "of unknown size" if bounds is None else f"from {bounds[0]:g} to {bounds[1]:g}"
    text = (
        f"{algorithm.advantage_estimator}: {prompts} prompts of {n} rollouts a step, rewards "
        f"{scale}, up to {rollout.max_assistant_turns} turns"
    )
    if algorithm.ignores_rewards or plan.train.steps == 0:
        return f"no reward is trained on; {text}"
    doubts = [
        *_two_siblings(algorithm, n),
        *_no_baseline(algorithm, reward, bounds),
        *_small_batch(algorithm, prompts=prompts, n=n),
        *_repeated_prompts(algorithm, rollout, reward, tasks.dataset, found),
        *_clipped_critic(algorithm, critic, reward, plan.train, bounds),
        *_one_credit(algorithm, rollout),
        *_flat_groups(algorithm, rollout, tasks, found),
    ]
    if not doubts:
        return text
    detail = "; ".join([*(said for said, _ in doubts), text])
    return warn("choice", detail, "; ".join(dict.fromkeys(fix for _, fix in doubts)))


def bounds_of_rewards(reward: RewardSection, found: PreflightFacts) -> Bounds | None:
    """Smallest and largest reward; None where functions or models pay, whose range is unknown."""
    if reward.functions or reward.models or reward.env_weight <= 0:
        return None
    bounds = found.reward_bounds()
    return (
        None if bounds is None else (bounds[0] * reward.env_weight, bounds[1] * reward.env_weight)
    )


def _two_siblings(algorithm: AlgorithmSection, n: int) -> Iterator[Doubt]:
    if algorithm.estimator.divides_by_spread and n == 2:
        yield (
            "groups of 2 divided by their spread: every advantage is 0.71 or -0.71, however much "
            "or little the two rewards differ",
            "set algorithm.advantage_estimator: rloo, or rollout.n_samples_per_prompt: 8",
        )


def _no_baseline(
    algorithm: AlgorithmSection, reward: RewardSection, bounds: Bounds | None
) -> Iterator[Doubt]:
    estimator = algorithm.estimator
    compared = estimator.compares_siblings or estimator.needs_critic or algorithm.whiten_advantages
    if compared or reward.normalize or bounds is None or bounds[0] < 0 < bounds[1]:
        return
    less = "less" if bounds[0] >= 0 else "more"
    yield (
        f"{estimator.name} without a baseline, and rewards from {bounds[0]:g} to {bounds[1]:g} "
        f"have one sign: nothing that the policy does becomes {less} likely by them",
        "set algorithm.whiten_advantages: true",
    )


def _small_batch(algorithm: AlgorithmSection, *, prompts: int, n: int) -> Iterator[Doubt]:
    estimator, rollouts = algorithm.estimator, prompts * n
    alone = not estimator.compares_siblings and not estimator.needs_critic
    if not alone or not algorithm.whiten_advantages or rollouts >= LARGE_BATCH:
        return
    rloo = ", or algorithm.advantage_estimator: rloo, whose baseline is the group" if n > 2 else ""
    yield (
        f"the baseline of {estimator.name} is the mean of {rollouts} rollouts a step, which is off "
        f"by {1 / sqrt(rollouts):.2f} of their standard deviation",
        f"set rollout.prompts_per_step: {-(-LARGE_BATCH // n)}{rloo}",
    )


def _repeated_prompts(
    algorithm: AlgorithmSection,
    rollout: RolloutSection,
    reward: RewardSection,
    dataset: TrainDatasetSection,
    found: PreflightFacts,
) -> Iterator[Doubt]:
    n, prompts = rollout.n_samples_per_prompt, rollout.prompts_per_step
    # What filters, chooses tasks by groups or may compare rollouts needs the siblings.
    used = reward.dynamic_filtering or reward.functions or dataset.chosen or found.tasks is None
    if algorithm.estimator.compares_siblings or used or n == 1:
        return
    if found.tasks is not None and len(found.tasks.train) >= prompts * n:
        yield (
            f"{algorithm.estimator.name} compares no siblings, so {n} rollouts of {prompts} "
            f"prompts teach less than one of {prompts * n}, of {len(found.tasks.train)} there are",
            f"set rollout.n_samples_per_prompt: 1 and rollout.prompts_per_step: {prompts * n}",
        )


def _clipped_critic(
    algorithm: AlgorithmSection,
    critic: CriticSection,
    reward: RewardSection,
    train: TrainSection,
    bounds: Bounds | None,
) -> Iterator[Doubt]:
    clip = critic.value_clip
    if not algorithm.needs_values or clip is None or critic.path or bounds is None:
        return
    largest = max(abs(bounds[0]), abs(bounds[1]))
    steps = round(largest / clip)
    if not reward.normalize and reward.clip is None and 2 * steps > train.steps:
        yield (
            f"critic.value_clip lets a value move by {clip:g} a step, and rewards reach "
            f"{largest:g}: {steps} steps until values are there, and the run has {train.steps}",
            "set reward.normalize: true, or critic.value_clip: null",
        )


def _one_credit(algorithm: AlgorithmSection, rollout: RolloutSection) -> Iterator[Doubt]:
    turns, n, estimator = (
        rollout.max_assistant_turns, rollout.n_samples_per_prompt, algorithm.estimator
    )  # fmt: skip
    discounted = estimator.discounts_tokens and algorithm.gamma != 1.0
    by_part = estimator.per == "token" or algorithm.turn_rewards != "sum" or discounted
    if by_part or estimator.needs_critic or turns < MANY_TURNS:
        return
    ways = [
        "where the environment pays in more than one turn, algorithm.turn_rewards: return_to_go"
        + (" with algorithm.advantage_estimator: rloo" if estimator.divides_by_spread else "")
    ]
    usual = PRESETS[algorithm.preset]["advantage_estimator"] == algorithm.advantage_estimator
    rollouts = rollout.prompts_per_step * n
    if usual and rollouts >= LARGE_BATCH:
        ways.append(
            f"where it pays at the end, algorithm.preset: ppo, whose critic credits each token and "
            f"has {rollouts} rollouts a step to learn from"
        )
    elif estimator.compares_siblings and n < _LARGEST_GROUP:
        ways.append(
            f"where it pays at the end, rollout.n_samples_per_prompt: {2 * n} ({rollouts} rollouts "
            f"a step are too few for a critic)"
            if rollouts < LARGE_BATCH
            else f"where it pays at the end, rollout.n_samples_per_prompt: {2 * n}"
        )
    yield (
        f"one advantage for up to {turns} turns and {rollout.max_response_tokens} tokens: a wrong "
        "turn counts against all the right ones of its rollout",
        f"set, {'; '.join(ways)}",
    )


def _flat_groups(
    algorithm: AlgorithmSection, rollout: RolloutSection, tasks: TaskPlan, found: PreflightFacts
) -> Iterator[Doubt]:
    if not algorithm.estimator.compares_siblings or found.tasks is None:
        return
    n, dataset = rollout.n_samples_per_prompt, tasks.dataset
    rates = {
        name: min(max(rate.mean, 0.0), 1.0)
        for name, rate in known_pass_rates(found.tasks.train, dataset, base=tasks.base).items()
    }
    source = f"{len(rates)} measured tasks"
    if not rates:
        rates = _sampled_rates(found)
        source = f"{len(rates)} sampled tasks"
    weights = found.tasks.weights or {}
    share = flat_share(rates, n, weights)
    if share <= FLAT:
        return
    none, every = (sum(rate == edge for rate in rates.values()) for edge in (0.0, 1.0))
    teach = rollout.prompts_per_step * (1 - share)
    sizes = (size for size in (2 * n, 4 * n) if size <= _LARGEST_GROUP)
    enough = next((size for size in sizes if flat_share(rates, size, weights) <= FLAT), None)
    yield (
        f"of {source} {none} were never solved and {every} always: {100 * share:.0f} % of groups "
        f"of {n} are expected to be flat, so {teach:.1f} of {rollout.prompts_per_step} groups a "
        "step teach",
        _fix_of_flat(enough, rates.values(), dataset),
    )


def flat_share(rates: Mapping[str, float], n: int, weights: Mapping[str, float]) -> float:
    """Share of groups of `n` rollouts that are all right or all wrong; 0 where nothing is known.

    Args:
        rates: pass rate of each task.
        n: rollouts of a group.
        weights: how often each task is drawn; one that is not named counts 1.
    """
    total = sum(weights.get(name, 1.0) for name in rates)
    flat = sum(weights.get(name, 1.0) * (p**n + (1 - p) ** n) for name, p in rates.items())
    return flat / total if total else 0.0


def _fix_of_flat(enough: int | None, rates: Collection[float], dataset: TrainDatasetSection) -> str:
    if enough is not None:
        return f"set rollout.n_samples_per_prompt: {enough}"
    low, high = TEACHING
    teaching = sum(low <= rate <= high for rate in rates)
    mean, measured = fmean(rates), dataset.difficulty is not None
    # Such bounds would leave none out, or none over.
    if teaching == len(rates) or mean in (0.0, 1.0) or (measured and not teaching):
        return f"take {'easier' if mean < 0.5 else 'harder'} tasks"
    keep = f"keep: [{low}, {high}]"
    if not measured:
        return f"agentrl tasks profile, then set dataset.difficulty: {{source: profile, {keep}}}"
    return f"set dataset.difficulty.{keep}"


def _sampled_rates(found: PreflightFacts) -> dict[str, float]:
    """Mean score of each task that a model was sampled on."""
    scores: dict[str, list[float]] = {}
    for answer in found.answers:
        if answer.kind == "sample" and answer.score is not None:
            scores.setdefault(answer.task_id, []).append(min(max(answer.score, 0.0), 1.0))
    return {name: fmean(values) for name, values in scores.items()}
