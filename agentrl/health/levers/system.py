"""Levers on what surrounds the policy: limits, data, critic, sampler, sandboxes, tools."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from agentrl.health.levers.policy import Config, value_of
from agentrl.health.records import Lever, RolloutFacts
from agentrl.types import Termination

_UNSOLVED = 0.01
"""Mean score or reward below which nothing is solved."""
_MEMORY = re.compile(
    r"\boom\b|out of memory|MemoryError|memory limit|cannot allocate", re.IGNORECASE
)


LIMITS = {
    "max_assistant_turns": 4,
    "max_user_turns": 16,
    "max_turn_tokens": 512,
    "max_response_tokens": 2048,
    "max_context_tokens": 4096,
}
"""Limits of a rollout with their defaults."""


def limit_of(config: Config, name: str) -> int:
    """A limit of rollouts in the run's config, or its default."""
    return value_of(config, f"rollout.{name}", LIMITS[name])


def more_room(config: Config, limit: str) -> list[Lever]:
    """A larger limit, and what has to grow with it, for rollouts that it truncates.

    Args:
        config: of the run.
        limit: key of `rollout` that truncates most of them.
    """
    limits = {name: limit_of(config, name) for name in LIMITS}
    why = f"Rollouts end at {limit}, not when they are done (ours)."
    wanted = {limit: 2 * limits[limit]}
    response, context = limits["max_response_tokens"], limits["max_context_tokens"]
    if limit == "max_turn_tokens" and wanted[limit] > response:
        wanted["max_response_tokens"] = wanted[limit]
    more = wanted.get("max_response_tokens", response) - response
    if more > 0:
        wanted["max_context_tokens"] = context + more
    found = [
        Lever(
            key=f"rollout.{name}",
            value=value,
            why=why if name == limit else "Holds the longer turn or response.",
        )
        for name, value in wanted.items()
    ]
    longest = wanted.get("max_context_tokens", context)
    if value_of(config, "train.micro_batch_tokens", 4096) < longest:
        found.append(
            Lever(
                key="train.micro_batch_tokens",
                value=longest,
                why="One row of the longer context must fit a micro-batch.",
            )
        )
    return found


def difficulty(config: Config, level: float | None = None) -> list[Lever]:
    """Prompts of the right difficulty, and more of a chance that siblings differ.

    Args:
        config: of the run.
        level: mean score or reward now, if that is known. Where nothing is solved at all, a filter
            by pass rate would leave no task, so that none is advised.
    """
    if level is not None and abs(level) < _UNSOLVED:
        return _out_of_reach(config)
    found: list[Lever] = []
    if config.get("dataset.difficulty.keep") is None:
        found.append(
            Lever(
                key="dataset.difficulty.keep",
                value=[0.05, 0.9],
                why="Leave out what is too hard and too easy.",
            )
        )
        found.append(
            Lever(
                key="dataset.difficulty.source",
                value="what agentrl tasks profile wrote",
                why="Where that was measured.",
            )
        )
    if config.get("reward.dynamic_filtering.keep") is None:
        found.append(
            Lever(
                key="reward.dynamic_filtering.keep",
                value=[0.0, 1.0],
                why="Replace groups in which all succeed or all fail (DAPO).",
            )
        )
    group = value_of(config, "rollout.n_samples_per_prompt", 8)
    if group < 32:
        found.append(
            Lever(
                key="rollout.n_samples_per_prompt",
                value=max(8, 2 * group),
                why="The more siblings, the rarer all are equal.",
            )
        )
    return found


def _out_of_reach(config: Config) -> list[Lever]:
    """A start from which some tasks are solved, where today none is."""
    group = value_of(config, "rollout.n_samples_per_prompt", 8)
    found = [
        Lever(
            key="model.path",
            value="the run of an agentrl fit on solved examples (objective: sft)",
            why="Nothing is solved, so no rollout is better than another: begin with a policy that "
            "solves some tasks, or with easier tasks (ours).",
        )
    ]
    if group < 64:
        found.append(
            Lever(
                key="rollout.n_samples_per_prompt",
                value=max(16, 2 * group),
                why="The more attempts at a task, the likelier one of them succeeds.",
            )
        )
    return found


def critic(config: Config) -> list[Lever]:
    """A critic that keeps up."""
    found: list[Lever] = []
    rate = value_of(config, "critic.learning_rate", 1e-5)
    actor = value_of(config, "train.learning_rate", 1e-6)
    if rate < 10 * actor:
        found.append(
            Lever(
                key="critic.learning_rate",
                value=float(f"{10 * actor:.3g}"),
                why="A regression has to keep up with the policy: 10 to 20 times its rate.",
            )
        )
    elif rate > 100 * actor or rate > 1e-3:
        found.append(
            Lever(
                key="critic.learning_rate",
                value=float(f"{min(rate / 10, 20 * actor):.3g}"),
                why="Far above the usual 10 to 20 times the policy's rate it diverges.",
            )
        )
    if value_of(config, "critic.warmup_steps", 0) < 100:
        found.append(
            Lever(
                key="critic.warmup_steps",
                value=100,
                why="The policy rests until the value loss is stable.",
            )
        )
    if config.get("critic.path") is None:
        found.append(
            Lever(
                key="critic.path",
                value="the folder of a reward model",
                why="A reward model already scores sequences with one output.",
            )
        )
    if value_of(config, "algorithm.preset", "ppo") != "dr_grpo":
        found.append(
            Lever(
                key="algorithm.preset",
                value="dr_grpo",
                why="Without a critic there is none to diverge.",
            )
        )
    return found


def sturdier(
    config: Config, lost: Collection[str], failed: Sequence[RolloutFacts] = ()
) -> list[Lever]:
    """Room for what the rollouts stand on.

    Args:
        config: of the run.
        lost: terminations of the rollouts that were lost lately.
        failed: rollouts that were lost, as far as they were stored; a limit of memory is raised
            only where their errors speak of memory.
    """
    found = [
        Lever(
            key="rollout.retries",
            value=value_of(config, "rollout.retries", 1) + 1,
            why="A fresh attempt costs less than a lost rollout (ours).",
        )
    ]
    if {Termination.ENV_CRASHED, Termination.GRADER_CRASHED} & set(lost):
        found.append(
            Lever(
                key="rollout.env_timeout_s",
                value=2 * value_of(config, "rollout.env_timeout_s", 60.0),
                why="Environments under load answer late (ours).",
            )
        )
    out_of_memory = any(_MEMORY.search(text) for fact in failed for text in fact.errors)
    if Termination.SANDBOX_FAILED in lost and out_of_memory:
        found.append(
            Lever(
                key="sandbox.limits.memory_mb",
                value=2 * value_of(config, "sandbox.limits.memory_mb", 512),
                why="A sandbox that runs out of memory takes its rollout along (ours).",
            )
        )
    return found


def tools(config: Config, statuses: Collection[str]) -> list[Lever]:
    """Calls that can be read and run.

    Args:
        config: of the run.
        statuses: how the failing calls ended, most frequent first; `parse` where they could not
            be read at all.
    """
    found: dict[str, list[Lever]] = {
        "timeout": [
            Lever(
                key="sandbox.limits.wall_s",
                value=2 * value_of(config, "sandbox.limits.wall_s", 10.0),
                why="Calls end at their time limit (ours).",
            )
        ],
        "over_cap": [
            Lever(
                key="rollout.max_parallel_calls",
                value=2 * value_of(config, "rollout.max_parallel_calls", 4),
                why="Calls beyond the limit of one turn are refused (ours).",
            )
        ],
        "parse": [
            Lever(
                key="chat.tool_parser",
                value="hermes",
                why="Or whichever format this model was taught: agentrl preflight shows a round "
                "trip (ours).",
            )
        ],
    }
    example = Lever(
        key="chat.system_prompt",
        value="one example of a call that works",
        why="The model calls tools in a way that they refuse (ours).",
    )
    broken = Lever(
        key="health.rules",
        value=["tools/failure_frequency > 0.6 for 10 steps -> stop"],
        why="Run the calls of the evidence by hand: a tool that fails for everybody teaches to "
        "avoid it, so mend it and stop early the next time (ours).",
    )
    chosen = [lever for status in statuses for lever in found.get(status, [])]
    if {"invalid_arguments", "unknown_tool", "malformed", "parse"} & set(statuses):
        chosen.append(example)
    return [*chosen, broken] if "error" in statuses or not chosen else chosen
