"""Refuses settings of `reward.refresh` that cannot work, before anything is loaded."""

from __future__ import annotations

from pathlib import Path

from agentrl.config.plan import SchedulePlan
from agentrl.disk.other_models import member_runs, other_model_source
from agentrl.errors import AgentrlError, ConfigError
from agentrl.fit.refresh.labels import HUMAN, check_human, load_function
from agentrl.fit.refresh.origin import old_pairs


def check_refresh(plan: SchedulePlan, *, synchronous: bool) -> str | None:
    """Check the settings of the refresh of a run.

    Args:
        plan: of the schedule.
        synchronous: whether no rollout is under way between steps.

    Returns:
        A line about it; None where nothing is refreshed.

    Raises:
        ConfigError: a schedule that runs ahead, an interval that is never reached, a labeller that
            cannot be called, an ensemble, or old pairs that are not there.
    """
    section, name = plan.reward.refresh, plan.reward.refreshed
    if section is None or name is None or not plan.train.steps:
        return None
    if not synchronous:
        raise ConfigError(
            f"reward.refresh.every_steps is {section.every_steps}, but this schedule has rollouts "
            "under way between steps, which two versions of the reward model would pay; remove "
            "schedule.oversample, staleness_threshold and trigger_parameter_sync_step, or set "
            "every_steps: 0"
        )
    if section.every_steps >= plan.train.steps:
        raise ConfigError(
            f"reward.refresh.every_steps is {section.every_steps}, but train.steps is "
            f"{plan.train.steps}, so that no step would be paid by a refreshed model; lower the "
            "first"
        )
    path = plan.reward.models[name].path[0]
    if members := member_runs(plan.base / Path(path).expanduser()):
        raise ConfigError(
            f"reward.models.{name}.path is {path!r}, an ensemble of {len(members)}, and only a "
            f"single model can be refreshed; give one member, as {members[0]}"
        )
    if section.labelled_by == HUMAN:
        check_human(section)
    else:
        load_function(section, base=plan.base, timeout_s=plan.rollout.env_timeout_s)
    _refuse_heads(name, path, base=plan.base)
    old = old_pairs(section, path, base=plan.base)
    if old is not None:
        try:
            old.load(most=1)
        except AgentrlError as error:
            raise ConfigError(
                f"reward.refresh.old_pairs: {error}; give a source of pairs, or `none`"
            ) from None
    mixed = "no old pairs" if old is None else f"old pairs of {old.source}"
    return (
        f"reward.refresh: {name} after every {section.every_steps} steps, labelled by "
        f"{section.labelled_by}, {mixed}"
    )


def _refuse_heads(name: str, path: str, *, base: Path) -> None:
    from agentrl.train.score_model import reward_head

    heads = reward_head(other_model_source(path, base)).heads
    if heads > 1:
        raise ConfigError(
            f"reward.models.{name}.path is {path!r}, an ensemble of {heads} heads, and only a "
            "single model can be refreshed; give a model of one head, or set "
            "reward.refresh.every_steps: 0"
        )
