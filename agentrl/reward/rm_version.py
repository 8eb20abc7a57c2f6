"""The part of a reward that names which version of a refreshed reward model paid it."""

from __future__ import annotations

from agentrl.types import Trajectory

RM_VERSION = "rm_version"
"""Part of a reward model that is refreshed: 0 until the first refresh that was accepted."""


def rm_version(row: Trajectory) -> int:
    """Version of the refreshed reward model that paid a rollout; 0 where none did.

    Example:
        The parts of a reward model `rm`, of which the second accepted refresh is in use:

        >>> from agentrl.types import Termination
        >>> row = Trajectory(
        ...     task_id="t", group_id="g", rollout_id="r", prompt_ids=(1,), response_ids=(),
        ...     response_mask=(), rollout_log_probs=(), policy_versions=(), reward=0.5,
        ...     reward_parts={"rm": 0.5, "rm/rm_version": 2.0}, termination=Termination.ENV_DONE)
        >>> rm_version(row)
        2
    """
    found = (v for name, v in row.reward_parts.items() if name.endswith(f"/{RM_VERSION}"))
    return int(max(found, default=0))
