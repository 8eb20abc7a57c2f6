"""Sample a model before it is trained: a hundred answers, each with what it scored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentrl.config.plan import Plan
from agentrl.data import TrajectoryStore
from agentrl.preflight.reward.known_answers import TriedAnswer, answer_of, spread
from agentrl.preflight.reward.sample_verdict import judge_samples
from agentrl.runtime.checks.fleet import require_engines
from agentrl.runtime.drivers.concurrency import RolloutLimit
from agentrl.runtime.drivers.groups import run_groups, stable_seed
from agentrl.runtime.launch import in_flight
from agentrl.runtime.open_policy import open_policy
from agentrl.types import SamplingParams, Task
from agentrl.types.finding import Finding

_NAME = "preflight-samples"


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRequest:
    """Request for samples of a model."""

    model: str | None
    """Checkpoint, hub name or run directory; None takes `model.path`."""
    count: int
    """Samples in all; rounded up to whole groups."""
    out: Path
    """Folder for the trajectories."""
    on_group: Callable[[int], None] = lambda rollouts: None
    """Called with the number of rollouts of each finished group."""


async def sample_rewards(
    run: Plan, tasks: Sequence[Task], request: SampleRequest
) -> tuple[Finding, list[TriedAnswer]]:
    """Roll a few tasks out as training would, and judge what they earned.

    Returns:
        The line of preflight, and every sample.

    Raises:
        AgentrlError: the model, its engines or the sandboxes cannot be had.
    """
    schedule, rollout = run.schedule, run.schedule.rollout
    n = rollout.n_samples_per_prompt
    await require_engines(run.engines, model_path=request.model)
    async with open_policy(
        run,
        model_path=request.model,
        logs=request.out / "logs",
        note=lambda text: None,
        images=request.out / "images",
    ) as policy:
        groups = await run_groups(
            policy.rollouts,
            spread(tasks, -(-request.count // n)),
            name=_NAME,
            n=n,
            sampling=SamplingParams(
                temperature=rollout.temperature,
                top_p=rollout.top_p,
                max_tokens=rollout.max_turn_tokens,
                stop_token_ids=policy.chat.stop_token_ids,
            ),
            seed=lambda task: stable_seed(schedule.run.seed, _NAME, task.id),
            limit=RolloutLimit(in_flight(run.engines, schedule.schedule)),
            on_group=lambda held: request.on_group(n),
        )
    made = [held.group for held in groups]
    TrajectoryStore(request.out / "trajectories").write(0, "train", made, None)
    answers = [answer_of(rows[-1], "sample") for group in made for rows in group.rollouts()]
    return judge_samples(answers, where=str(request.out)), answers
