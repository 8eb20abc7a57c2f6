"""Checks of the setup: batch, normalisation, KL, evaluation, early stop, async, critic.

Nothing here tries anything out; the lines follow from the config alone, and most of them advise.
A line fails only where what is trained would be wrong. Imports inside functions keep torch away.
"""

from __future__ import annotations

from collections.abc import Collection

from agentrl.config.algorithm import KL_WINDOW, AlgorithmSection
from agentrl.config.fleet import ScheduleSection
from agentrl.config.health import HealthSection
from agentrl.config.plan import TrainerPlan
from agentrl.config.presets import Bounds
from agentrl.config.reward import RewardSection
from agentrl.config.schema import EvalSection, RolloutSection
from agentrl.config.training import TrainSection
from agentrl.disk.other_models import other_model_source
from agentrl.models.source import check_model_path
from agentrl.preflight.checks.facts import PreflightFacts
from agentrl.runtime.drivers.choose import runs_ahead
from agentrl.runtime.health.rules import check_health
from agentrl.types.finding import Finding, fail, warn

GROUP = 8
"""Rollouts of a prompt below which its mean is a noisy baseline; 16 is comfortable."""
PROMPTS = 256
"""Prompts of an optimizer step that large runs take at least."""
_CRITIC_ROLLOUTS = 64
"""Rollouts of a step that a critic needs for a target that holds still."""
_EVAL_TASKS = (50, 200)
"""Held-out prompts: fewer show little, more cost time."""
_EVAL_EVERY = (50, 100)
"""Steps between two evaluations."""
_RULES = ("kl > 2 for 20 steps -> stop", "entropy < 0.05 for 10 steps -> stop")
"""Rules that any run can begin with."""


async def batch(
    algorithm: AlgorithmSection, rollout: RolloutSection, train: TrainSection
) -> Finding | str:
    """Check that groups and steps are large enough for the estimator."""
    n, prompts = rollout.n_samples_per_prompt, rollout.prompts_per_step
    updates = "1 update" if train.minibatches == 1 else f"{train.minibatches} updates"
    text = f"{prompts} prompts of {n} rollouts a step, {updates} a pass"
    found: list[str] = []
    fixes: list[str] = []
    estimator = algorithm.estimator
    if estimator.compares_siblings and n < GROUP:
        found.append(f"groups of {n} give a noisy baseline")
        fixes.append(f"set rollout.n_samples_per_prompt: {GROUP}")
    if estimator.needs_critic and prompts * n < _CRITIC_ROLLOUTS:
        found.append(f"{prompts * n} rollouts a step give the critic a target that jumps")
        fixes.append(f"set rollout.prompts_per_step: {-(-_CRITIC_ROLLOUTS // n)}")
    if not estimator.needs_critic and prompts < PROMPTS:
        found.append(f"{prompts} prompts a step are few ({PROMPTS} is usual)")
        fixes.append(
            f"raise rollout.prompts_per_step where time allows, or keep train.learning_rate small "
            f"(it is {train.learning_rate:g})"
        )
    if found:
        return warn("batch", "; ".join([*found, text]), "; ".join(fixes))
    return text


async def normalisation(
    algorithm: AlgorithmSection, reward: RewardSection, found: PreflightFacts
) -> Finding | str:
    """Check that something brings rewards of any scale to one."""
    ways = []
    if algorithm.estimator.divides_by_spread:
        ways.append("advantages divided by the group's standard deviation")
    if algorithm.whiten_advantages:
        ways.append("advantages whitened over the step")
    if reward.normalize:
        ways.append("rewards divided by their running standard deviation")
    ways += [
        f"rewards clipped to {list(clip)} {when} normalisation"
        for clip, when in ((reward.clip_raw, "before"), (reward.clip, "after"))
        if clip is not None
    ]
    bounds = found.reward_bounds()
    for key, clip in _clips_of_raw_rewards(reward):
        if bounds is not None and (bounds[0] >= clip[1] or bounds[1] <= clip[0]):
            return warn(
                "normalisation",
                f"reward.{key} {list(clip)} leaves one value of rewards from {bounds[0]:g} to "
                f"{bounds[1]:g}: nothing can be learned",
                f"remove reward.{key}, or set reward.normalize: true with reward.clip: [-10, 10], "
                "which bounds what the normalisation leaves",
            )
    if ways:
        return "; ".join(ways)
    if bounds is not None and bounds[1] - bounds[0] <= 2:
        return f"none, and rewards lie in [{bounds[0]:g}, {bounds[1]:g}] without it"
    how = "of unknown size" if bounds is None else f"from {bounds[0]:g} to {bounds[1]:g}"
    return warn(
        "normalisation",
        f"{algorithm.preset} takes rewards as they are, and they are {how}: one outlier is one "
        "large step",
        "set reward.normalize: true, and with it reward.clip: [-10, 10], which bounds what the "
        "normalisation leaves of an outlier; or give the environment a reward_range",
    )


def _clips_of_raw_rewards(reward: RewardSection) -> list[tuple[str, Bounds]]:
    """The clips that act on rewards in the units of the environment."""
    clips = [("clip_raw", reward.clip_raw), ("clip", None if reward.normalize else reward.clip)]
    return [(key, clip) for key, clip in clips if clip is not None]


async def kl(algorithm: AlgorithmSection, health: HealthSection) -> Finding | str:
    """Check that drift from the first policy is measured, and held."""
    if not algorithm.needs_reference:
        if any(rule.split()[:1] == ["entropy"] for rule in health.rules):
            return "no reference policy; a rule watches the entropy instead"
        return warn(
            "kl",
            "no reference policy: drift is neither measured nor held back",
            f"set algorithm.kl_coef: 0.001 with algorithm.kl_target: {list(KL_WINDOW)}; or, to "
            f"save its memory, health.rules: [{_RULES[1]!r}]",
        )
    text = (
        f"weight {algorithm.kl_coef:g}, {algorithm.kl_control} controller, "
        f"{'in the loss' if algorithm.use_kl_loss else 'in the reward'} ({algorithm.kl_estimator})"
    )
    target = algorithm.kl_target
    if target is None:
        return warn(
            "kl",
            f"{text}: one weight does not fit every model and stage",
            f"set algorithm.kl_target: {list(KL_WINDOW)}",
        )
    return f"{text}, target {list(target) if isinstance(target, tuple) else target}"


async def evaluation(
    section: EvalSection, train: TrainSection, found: PreflightFacts
) -> Finding | str:
    """Check that a held-out score is taken often enough, on enough tasks."""
    steps = train.steps
    if not section.datasets:
        return warn(
            "evaluation",
            "no held-out tasks: reward hacking would look like success",
            "add eval.datasets.held_out: {source: ..., split: test}",
        )
    doubts: list[str] = []
    fixes: list[str] = []
    sizes = {} if found.tasks is None else {n: len(t) for n, t in found.tasks.evals.items()}
    text = ", ".join(f"{name} {size} tasks" for name, size in sizes.items()) or "not loaded"
    most = max(sizes.values(), default=_EVAL_TASKS[0])
    if most < _EVAL_TASKS[0]:
        doubts.append(f"{most} tasks leave a wide interval ({_EVAL_TASKS[0]} to {_EVAL_TASKS[1]})")
        fixes.append("raise limit or n of eval.datasets")
    for name, size in sizes.items():
        if size > _EVAL_TASKS[1]:
            doubts.append(
                f"{name} has {size} tasks, which cost {size * section.n_samples} rollouts"
            )
            fixes.append(f"set eval.datasets.{name}.limit: {_EVAL_TASKS[1]}")
    every = section.every_steps
    if (every or steps) > _EVAL_EVERY[1]:
        rhythm = f"every {every}" if every else f"only before and after {steps}"
        doubts.append(f"{rhythm} steps is too seldom to see the two curves part")
        fixes.append(f"set eval.every_steps: {_EVAL_EVERY[0]}")
    if doubts:
        return warn("evaluation", "; ".join([*doubts, text]), "; ".join(dict.fromkeys(fixes)))
    return f"{text}; {f'every {every} steps' if every else 'before and after training'}"


async def early_stop(
    algorithm: AlgorithmSection, health: HealthSection, *, datasets: Collection[str]
) -> Finding | str:
    """Check that rules decide when to stop, and that each can be read and can ever act.

    Raises:
        ConfigError: a rule that cannot be read.
    """
    texts = health.rules
    rules = check_health(health, datasets=datasets)
    if not rules:
        kept = _RULES if algorithm.needs_reference else _RULES[1:]
        return warn(
            "early stop",
            "no rule ends a run that has gone off the rails; it does not come back by itself",
            f"set health.rules: {list(kept)}",
        )
    if any(rule.metric == "kl" for rule in rules) and not algorithm.needs_reference:
        return warn(
            "early stop",
            "a rule waits for 'kl', which is never measured without a reference policy",
            "set algorithm.kl_coef: 0.001, or watch entropy",
        )
    if all(str(rule.action) == "warn" for rule in rules):
        return warn("early stop", "; ".join(texts), "let one of health.rules end in -> stop")
    return "; ".join(texts)


async def asynchrony(plan: TrainerPlan, schedule: ScheduleSection) -> Finding | str:
    """Check that tokens of older weights are weighed as such.

    Raises:
        ConfigError: there is no such policy loss.
    """
    from agentrl.train.losses import find_loss

    if not runs_ahead(schedule):
        return "on-policy: nothing to correct"
    algorithm = plan.algorithm
    loss = find_loss(algorithm.policy_loss, base=plan.base)
    corrected = algorithm.is_correction_type != "none" or loss.correction != "none"
    if algorithm.old_log_probs == "recompute" and not corrected:
        return fail(
            "async",
            "tokens of older weights are trained on as if they were the trainer's own",
            "set algorithm.is_correction_type: tis, or algorithm.old_log_probs: decoupled",
        )
    ways = {
        "rollout": "ratios are taken to the sampler",
        "decoupled": "sampler and trainer weighed apart",
        "recompute": f"corrected by {algorithm.is_correction_type}",
    }
    way = ways[algorithm.old_log_probs or "rollout"]
    text = f"{way}; a sync every {schedule.trigger_parameter_sync_step}"
    if schedule.staleness_threshold > 0 and not schedule.partial_rollout:
        return warn(
            "async",
            f"{text}; rollouts keep the weights they began with, however long they take",
            "set schedule.partial_rollout: true",
        )
    if schedule.lag_limit is None:
        return f"{text}; late rollouts are waited for"
    return f"{text}; at most {schedule.lag_limit} versions old"


async def critic(plan: TrainerPlan) -> Finding | str:
    """Check that the value function begins well and can keep up.

    Raises:
        ConfigError: its path is no checkpoint.
    """

    if not plan.algorithm.needs_values:
        return f"none: {plan.algorithm.preset} has no critic"
    section, train = plan.critic, plan.train
    if section.path is not None:
        check_model_path(other_model_source(section.path, plan.base), key="critic.path")
    text = f"from {section.path or 'the policy itself'}, learning rate {section.learning_rate:g}"
    found: list[str] = []
    fixes: list[str] = []
    # Adapters learn at ten times the rate of whole matrices.
    alike = (train.lora is None) == (section.lora is None)
    if alike and section.learning_rate <= train.learning_rate:
        found.append(f"it learns no faster than the policy ({train.learning_rate:g})")
        fixes.append(f"set critic.learning_rate: {10 * train.learning_rate:g}")
    if section.warmup_steps == 0:
        found.append("the policy follows it from the first step, before it has learned anything")
        fixes.append(f"set critic.warmup_steps: {max(1, min(100, train.steps // 10))}")
    if found:
        return warn("critic", "; ".join([*found, text]), "; ".join(fixes))
    return f"{text}, {section.warmup_steps} steps of its own first"
