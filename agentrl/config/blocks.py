"""An algorithm in words and formulas, block by block, for people who check a config."""

from __future__ import annotations

from agentrl.config.algorithm import AlgorithmSection, CriticSection
from agentrl.config.distill import DistillSection
from agentrl.config.presets import IS_BOUNDS
from agentrl.config.training import TrainSection
from agentrl.estimators import ESTIMATORS, STD_DDOF, STD_EPS

_LOSSES = {
    "ppo_clip": "-min(r A, clip(r, {low:g}, {high:g}) A), r of each token",
    "gspo": "-min(s A, clip(s, {low:g}, {high:g}) A), s the mean ratio of a rollout",
    "cispo": "-sg(clip(r, {low:g}, {high:g})) A log p",
    "tis_reinforce": "-sg(min(r, {high:g})) A log p, r of each {level}",
    "sapo": "-4/t sigmoid(t (r - 1)) A, t 1 where A > 0, else 1.05",
}
_SUMS = {
    "token-mean": "mean over all tokens of the update",
    "seq-mean-token-mean": "mean over rollouts of the mean over their tokens",
    "seq-mean-token-sum": "mean over rollouts of the sum over their tokens",
    "seq-mean-token-sum-norm": "sum over tokens / (rollouts * {horizon} tokens)",
}
_CORRECTIONS = {
    "tis": "w = clip(p_old / p_sampler, {low:g}, {high:g})",
    "icepop": "w = p_old / p_sampler, tokens outside [{low:g}, {high:g}] dropped",
    "seq-mask-tis": "w clipped, rollouts with a mean ratio outside [{low:g}, {high:g}] dropped",
}
_OLD = {
    "rollout": "r = p / p_sampler",
    "recompute": "r = p / p_old, p_old from a forward pass before the step",
    "decoupled": "r = p / p_old, weighted by p_old / p_sampler",
}


def describe_blocks(
    algorithm: AlgorithmSection,
    *,
    critic: CriticSection | None = None,
    train: TrainSection | None = None,
) -> list[str]:
    """One line a block, A to G, and H with a teacher.

    Args:
        algorithm: resolved (`RunConfig.resolved_algorithm`).
        critic: says more of block F.
        train: says more of block G.

    Example:
        >>> describe_blocks(AlgorithmSection(preset="rloo").resolved(horizon=100))[0]
        'A baseline    rloo: R - mean of the others of the group'
    """
    return [
        f"A baseline    {_baseline(algorithm)}",
        f"B reference   {_penalty(algorithm)}",
        f"C credit      {_credit(algorithm)}",
        f"D whitening   {_whitening(algorithm)}",
        f"E loss        {_loss(algorithm)}",
        f"F critic      {_critic(algorithm, critic or CriticSection())}",
        f"G updates     {_updates(train or TrainSection())}",
        *([] if algorithm.distill is None else [f"H teacher     {_teacher(algorithm.distill)}"]),
    ]


def _baseline(algorithm: AlgorithmSection) -> str:
    name = algorithm.advantage_estimator or "?"
    spec = ESTIMATORS.get(name)
    formula = "" if spec is None else spec.formula
    return f"{name}: {formula.format(ddof=STD_DDOF, eps=STD_EPS) or name}"


def _penalty(algorithm: AlgorithmSection) -> str:
    if not algorithm.needs_reference:
        return "none: kl_coef is 0 and no reference is loaded"
    where = "added to the loss" if algorithm.use_kl_loss else "taken off the reward of each token"
    text = f"{algorithm.kl_coef:g} * KL ({algorithm.kl_estimator}), {where}"
    target, update = algorithm.kl_target, algorithm.reference_update
    if isinstance(target, tuple):
        low, high = target
        text += f"; the weight keeps it in [{low:g}, {high:g}]"
    elif target is not None:
        text += f"; the weight steers it to {target:g}"
    if update is not None:
        text += f"; every {update.every_steps} steps the reference takes over "
        text += f"{update.polyak:g} of the policy"
    return text


def _credit(algorithm: AlgorithmSection) -> str:
    spec = ESTIMATORS.get(algorithm.advantage_estimator)
    if spec is not None and spec.needs_critic:
        return f"GAE over action tokens, gamma {algorithm.gamma:g}, lambda {algorithm.lam:g}"
    if algorithm.turn_rewards == "return_to_go":
        return f"a turn gets what came from it on, gamma {algorithm.gamma:g} per turn"
    if spec is None or spec.per == "token":
        return f"as {algorithm.advantage_estimator} says"
    if algorithm.gamma != 1.0 and spec.discounts_tokens:
        return f"R at the last token, gamma {algorithm.gamma:g} per action token"
    return "every action token of a rollout gets the same"


def _whitening(algorithm: AlgorithmSection) -> str:
    if not algorithm.whiten_advantages:
        return "none"
    rest = "A - mean" if algorithm.whiten_advantages == "mean" else "(A - mean) / std"
    return f"{rest} over all action tokens of the step"


def _loss(algorithm: AlgorithmSection) -> str:
    name = algorithm.policy_loss or "?"
    parts = [name]
    if name in _LOSSES:
        clipped = name != "tis_reinforce"
        formula = _LOSSES[name].format(
            low=max(0.0, 1 - (algorithm.eps_clip_low or 0)) if clipped else 0,
            high=1 + (algorithm.eps_clip_high or 0),
            level=algorithm.importance_level,
        )
        parts[0] += f": {formula}"
    if algorithm.dual_clip is not None:
        parts.append(f"at most {algorithm.dual_clip:g} |A| where A < 0")
    kind, old = algorithm.is_correction_type, algorithm.old_log_probs or "rollout"
    if kind == "none" and name == "tis_reinforce":
        kind, old = "tis", "recompute"  # this loss brings it along, also in place of the raw weight
    parts.append(_OLD[old])
    if kind != "none":
        low, high = algorithm.is_correction_threshold or IS_BOUNDS[kind]
        parts.append("times " + _CORRECTIONS[kind].format(low=low, high=high))
    mode = algorithm.loss_agg_mode or "?"
    parts.append(f"{mode}: {_SUMS.get(mode, mode).format(horizon=algorithm.horizon)}")
    if algorithm.entropy_coef:
        parts.append(f"less {algorithm.entropy_coef:g} * entropy of the policy, with the same mean")
    return "; ".join(parts)


def _critic(algorithm: AlgorithmSection, critic: CriticSection) -> str:
    spec = ESTIMATORS.get(algorithm.advantage_estimator)
    if spec is None or not spec.needs_critic:
        return "none"
    start = critic.path or "model.path"
    moved = "" if critic.value_clip is None else f", moved at most {critic.value_clip:g} a step"
    warm = f"; alone for {critic.warmup_steps} steps" if critic.warmup_steps else ""
    low = "" if critic.lora is None else f" with adapters of rank {critic.lora}"
    return f"squared error of V{moved}; from {start}{low}{warm}"


def _updates(train: TrainSection) -> str:
    passes = "1 pass" if train.epochs_per_batch == 1 else f"{train.epochs_per_batch} passes"
    parts = "1 update" if train.minibatches == 1 else f"{train.minibatches} updates"
    return f"{passes} over the rollouts of a step, {parts} each, {train.optimizer}"


def _teacher(distill: DistillSection) -> str:
    teacher = distill.teacher
    if teacher.kind == "hint":
        which = "now" if teacher.weights == "current" else "the run began with"
        name = f"the policy {which}, with a hint"
    else:
        name = teacher.path if teacher.kind == "checkpoint" else f"{teacher.model} at {teacher.url}"
    rest = "besides" if distill.with_reward else "alone, rewards are only measured"
    if distill.top_k:
        text = f"{distill.coef:g} * KL(p, p_teacher) over its {distill.top_k} likeliest tokens and "
        return f"{text}the rest, added to the loss; {rest}; from {name}"
    return f"A of a token {distill.coef:g} (log p_teacher - log p); {rest}; from {name}"
