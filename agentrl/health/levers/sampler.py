"""Levers on the way from the trained weights to the tokens that the sampler draws."""

from __future__ import annotations

from agentrl.health.levers.policy import Config, value_of
from agentrl.health.records import Lever


def send_weights(config: Config) -> list[Lever]:
    """Weights that arrive at the sampler: for a gap that grows although no rollout is stale.

    Importance weights would hide that the sampler is not the policy. An embedded engine samples
    from the trainer's own weights, so that nothing is sent and only the arithmetic can differ.
    """
    if config.get("serving.engine") == "embedded":
        return closer_sampler(config)
    found: list[Lever] = []
    if value_of(config, "sync.backend", "auto") != "disk":
        found.append(
            Lever(
                key="sync.backend",
                value="disk",
                why="The sampler does not get the weights that are trained: send them in the way "
                "that has the fewest parts, and compare (ours).",
            )
        )
    if value_of(config, "sync.dense_every", 1) != 1:
        found.append(
            Lever(
                key="sync.dense_every",
                value=1,
                why="Whole weights at each sync, instead of differences to earlier ones (ours).",
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


def wait_for_slow(config: Config) -> list[Lever]:
    """Slow rollouts that come in time: nothing is thrown away where the driver waits for them."""
    found: list[Lever] = []
    if config.get("schedule.max_version_lag") is not None:
        found.append(
            Lever(
                key="schedule.max_version_lag",
                value=None,
                why="Wait for late rollouts instead of dropping them; the other keys of schedule "
                "bound their age.",
            )
        )
    # Without rollouts ahead none is in flight at a sync, and the key is refused.
    ahead = value_of(config, "schedule.staleness_threshold", 1.0) > 0
    if ahead and not value_of(config, "schedule.partial_rollout", False):
        found.append(
            Lever(
                key="schedule.partial_rollout",
                value=True,
                why="A long rollout goes on with newer weights.",
            )
        )
    return found
