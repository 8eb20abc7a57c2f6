"""Names of what the platform measures of a rollout: its sandboxes and its failed attempts.

They are the keys of `Trajectory.usage`. The store keeps them in one column with the numbers of the
environment, as it always has, so none of these names is the environment's to write.
"""

from __future__ import annotations

from collections.abc import Mapping

from agentrl.types import Termination

LOST_TOKENS = "retried/tokens"
"""Tokens sampled in attempts that were thrown away before this one."""
LOST_SECONDS = "retried/seconds"
"""Wall time of these attempts in seconds."""
OUTCOMES = frozenset(
    f"sandbox/outcome/{outcome}"
    for outcome in ("ok", "nonzero", "timeout", "oom", "output_limit", "infrastructure")
)
"""Commands in the sandbox by how they ended: the values of `agentrl.sandbox.Outcome`, which what
only reads files does not load."""
SANDBOXES = frozenset(f"sandbox/{name}" for name in ("opened", "warm", "reused", "forked"))
"""Sandboxes by where they came from."""
SANDBOX_SECONDS = frozenset({"sandbox/wait_s", "sandbox/start_s"})
"""Seconds until a sandbox was there."""
RETRIED = frozenset(f"retried/{termination}" for termination in Termination)
"""Attempts that were thrown away, by how they ended."""
USAGE = OUTCOMES | SANDBOXES | SANDBOX_SECONDS | RETRIED | {LOST_TOKENS, LOST_SECONDS}
"""All metrics of resource use."""


def usage_of(numbers: Mapping[str, float]) -> dict[str, float]:
    """The numbers of the platform among those of a stored rollout."""
    return {name: value for name, value in numbers.items() if name in USAGE}


def without_usage(numbers: Mapping[str, float]) -> dict[str, float]:
    """The other numbers, which are the environment's."""
    return {name: value for name, value in numbers.items() if name not in USAGE}
