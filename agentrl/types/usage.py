"""Names of what the platform measures of a rollout: sandboxes, served models, failed attempts.

They are the keys of `Trajectory.usage`. The store keeps them in one column with the numbers of the
environment, as it always has, so none of these names is the environment's to write.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

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
SERVED_REQUESTS = "served/requests"
"""Requests to served models that were sent, failed ones included."""
SERVED_FAILED = "served/failed"
"""Requests of them that brought no usable answer, and were tried again or given up."""
SERVED_CACHED = "served/cached"
"""Answers of served models that were known already, and cost nothing."""
SERVED_PROMPT_TOKENS = "served/prompt_tokens"
"""Tokens that served models read, as their servers report them."""
SERVED_COMPLETION_TOKENS = "served/completion_tokens"
"""Tokens that served models wrote, as their servers report them."""
SERVED_COST = "served/cost"
"""Price of these tokens, in the currency of the configured prices."""
SERVED = frozenset(
    {
        SERVED_REQUESTS, SERVED_FAILED, SERVED_CACHED, SERVED_PROMPT_TOKENS,
        SERVED_COMPLETION_TOKENS, SERVED_COST,
    }
)  # fmt: skip
"""Use of served models: judges, simulated users, teachers."""
USAGE = (
    OUTCOMES | SANDBOXES | SANDBOX_SECONDS | RETRIED | SERVED | {LOST_TOKENS, LOST_SECONDS}
)  # fmt: skip
"""All metrics of resource use."""

_SPENT: ContextVar[dict[str, float] | None] = ContextVar("_SPENT", default=None)


@contextmanager
def counting_served() -> Iterator[dict[str, float]]:
    """Count the use of served models by this task, and by tasks and threads it starts meanwhile.

    Gives the names of `SERVED` that occurred, with their sums; it fills while the block runs. In a
    nested block the inner one counts alone.

    Example:
        >>> with counting_served() as spent:
        ...     spend(SERVED_REQUESTS, 1)
        >>> spent
        {'served/requests': 1.0}
    """
    spent: dict[str, float] = {}
    token = _SPENT.set(spent)
    try:
        yield spent
    finally:
        _SPENT.reset(token)


def spend(name: str, amount: float) -> None:
    """Book a use of served models on the present rollout; outside of one it is not kept.

    Args:
        name: one of `SERVED`.
        amount: how much, in the unit of the name.
    """
    spent = _SPENT.get()
    if spent is not None:
        spent[name] = spent.get(name, 0.0) + amount


def usage_of(numbers: Mapping[str, float]) -> dict[str, float]:
    """The numbers of the platform among those of a stored rollout."""
    return {name: value for name, value in numbers.items() if name in USAGE}


def without_usage(numbers: Mapping[str, float]) -> dict[str, float]:
    """The other numbers, which are the environment's."""
    return {name: value for name, value in numbers.items() if name not in USAGE}
