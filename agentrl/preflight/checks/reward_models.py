"""The check of the reward models of a run: none of them is loaded."""

from __future__ import annotations

from agentrl.config.plan import RewardPlan, SchedulePlan
from agentrl.fit.refresh.checks import check_refresh
from agentrl.fit.reward_models.open import check_reward_models
from agentrl.preflight.checks.facts import PreflightFacts
from agentrl.runtime.drivers.choose import is_synchronous
from agentrl.types.finding import Finding, warn


async def reward_models(
    plan: RewardPlan, schedule: SchedulePlan, found: PreflightFacts
) -> Finding | str:
    """Check reward models without loading them: paths, scales, lengths and vocabularies."""
    lines = check_reward_models(plan, tokenizer=found.tokenizer)
    synchronous = is_synchronous(schedule.schedule)
    if (refresh := check_refresh(schedule, synchronous=synchronous)) is not None:
        lines.append(refresh)
    reward = plan.reward
    if reward.normalize or reward.clip is not None or reward.clip_raw is not None:
        return "; ".join(lines)
    raw = [f"reward.models.{n}" for n, item in reward.models.items() if item.scale != "stored"]
    if raw:
        return warn(
            "reward models",
            f"{'; '.join(lines)}: rewards of {', '.join(raw)} have no bound and no fixed unit, and "
            "nothing whitens or clips them",
            "set scale: stored (agentrl rm report --store), or reward.normalize: true with "
            "reward.clip: [-10, 10]",
        )
    return "; ".join(lines)
