"""How long each line of a preflight may take in a run."""

from __future__ import annotations

from agentrl.config import RunConfig
from agentrl.preflight.checks.parts import SAMPLE_S
from agentrl.preflight.reward.known_answers import IN_FLIGHT, TASKS, AnswerKind
from agentrl.preflight.runner import COMMON, Limit
from agentrl.runtime.launch import in_flight

_MARGIN_S = 5.0
"""Beyond the limit of one call, after which the rollout loop would have given up on it."""
_IMPORT_S = 300.0
"""More for lines that import code of the user, which may load much, once."""
_LOAD_S = 1800.0
"""To load a model."""


def limits_of(config: RunConfig, samples: int = 0) -> dict[str, Limit]:
    """Seconds that each line may take; `COMMON` for those that are not named.

    Args:
        config: of the run.
        samples: that a model is to write.
    """
    rollout = config.rollout
    call_s = rollout.env_timeout_s + _MARGIN_S
    episode_s = rollout.timeout_s * (1 + rollout.retries) + _MARGIN_S
    imported = Limit(still_s=call_s + _IMPORT_S, total_s=call_s + _IMPORT_S)
    answers_s = -(-TASKS * len(AnswerKind) // IN_FLIGHT) * episode_s
    samples_s = _LOAD_S + -(-samples // in_flight(config)) * episode_s
    return {
        "tools": imported, "environment": imported, "rewards": imported,
        "prompts": Limit(still_s=call_s, total_s=SAMPLE_S + 2 * call_s),
        "reward test": Limit(still_s=call_s, total_s=COMMON.total_s + answers_s),
        "reward samples": Limit(still_s=_LOAD_S, total_s=samples_s),
    }  # fmt: skip
