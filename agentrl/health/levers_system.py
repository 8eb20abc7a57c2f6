"""Levers on what surrounds the policy: limits, data, critic, sampler, sandboxes, tools."""

from __future__ import annotations

from collections.abc import Collection

from agentrl.health.levers import Config, value_of
from agentrl.health.records import Lever
from agentrl.types import Termination


def more_room(config: Config, *, turns: bool) -> list[Lever]:
    """Larger limits, for rollouts that a limit truncates before they are done."""
    if turns:
        most = value_of(config, "rollout.max_assistant_turns", 4)
        return [
            Lever(
                key="rollout.max_assistant_turns",
                value=2 * most,
                why="Rollouts end at the limit of turns, not when they are done (ours).",
            )
        ]
    budget = value_of(config, "rollout.max_response_tokens", 2048)
    context = value_of(config, "rollout.max_context_tokens", 4096)
    micro = value_of(config, "train.micro_batch_tokens", 4096)
    why = "Rollouts end at the limit of tokens, not when they are done."
    found = [
        Lever(key="rollout.max_response_tokens", value=2 * budget, why=why),
        Lever(
            key="rollout.max_context_tokens",
            value=context + budget,
            why="Holds the prompt and the longer response.",
        ),
    ]
    if micro < context + budget:
        found.append(
            Lever(
                key="train.micro_batch_tokens",
                value=context + budget,
                why="One row of the longer context must fit a micro-batch.",
            )
        )
    return found


def difficulty(config: Config) -> list[Lever]:
    """Prompts of the right difficulty, and more of a chance that siblings differ."""
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


def closer_sampler(config: Config) -> list[Lever]:
    """Sampler and trainer closer together, and weights for what is left."""
    found: list[Lever] = []
    threshold = value_of(config, "schedule.staleness_threshold", 0.0)
    if threshold > 0:
        found.append(
            Lever(
                key="schedule.staleness_threshold",
                value=round(threshold / 2, 3) if threshold > 0.1 else 0.0,
                why="Fewer rollouts of older weights.",
            )
        )
    if value_of(config, "schedule.trigger_parameter_sync_step", 1) > 1:
        found.append(
            Lever(
                key="schedule.trigger_parameter_sync_step",
                value=value_of(config, "schedule.trigger_parameter_sync_step", 2) // 2,
                why="Send the weights more often.",
            )
        )
    if threshold > 0 and not value_of(config, "schedule.partial_rollout", False):
        found.append(
            Lever(
                key="schedule.partial_rollout",
                value=True,
                why="Bounds how old a single rollout can become.",
            )
        )
    narrow = value_of(config, "model.dtype", "float32") != "float32"
    if narrow and value_of(config, "model.head_dtype", "model") == "model":
        found.append(
            Lever(
                key="model.head_dtype",
                value="float32",
                why="Logits are not rounded before the softmax, by engines and trainer.",
            )
        )
    return found + _correction(config)


def _correction(config: Config) -> list[Lever]:
    found: list[Lever] = []
    if value_of(config, "algorithm.is_correction_type", "none") == "none":
        if value_of(config, "algorithm.old_log_probs", "rollout") != "recompute":
            found.append(
                Lever(
                    key="algorithm.old_log_probs",
                    value="recompute",
                    why="The correction below needs the trainer's own log-probabilities.",
                )
            )
        many = value_of(config, "rollout.max_assistant_turns", 4) > 1
        found.append(
            Lever(
                key="algorithm.is_correction_type",
                value="seq-mask-tis" if many else "tis",
                why="Weigh what the sampler and the trainer disagree on; whole rollouts where "
                "there are many turns."
                if many
                else "Weigh what the sampler and the trainer disagree on.",
            )
        )
    if value_of(config, "rollout.top_p", 1.0) < 1:
        found.append(
            Lever(
                key="rollout.top_p",
                value=1.0,
                why="Below 1 the sampler draws from another distribution than is trained (ours).",
            )
        )
    return found


def sturdier(config: Config, lost: Collection[str]) -> list[Lever]:
    """Room for what the rollouts stand on.

    Args:
        config: of the run.
        lost: terminations of the rollouts that were lost lately.
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
    if Termination.SANDBOX_FAILED in lost:
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
