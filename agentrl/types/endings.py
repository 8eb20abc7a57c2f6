"""Endings of rollouts, turns and calls, and what follows from each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal


class Termination(StrEnum):
    """Why a rollout ended. `TERMINATION_RULES` lists what follows from it, for every stage.

    Example:
        >>> Termination("max_turns") is Termination.MAX_TURNS
        True
    """

    ENV_DONE = "env_done"
    """The environment returned `done=True`."""
    NO_TOOL_CALL = "no_tool_call"
    """The model answered without an action although the loop runs on tool calls."""
    MAX_TURNS = "max_turns"
    """`max_assistant_turns` or `max_user_turns` was reached before the environment was done."""
    MAX_TOKENS = "max_tokens"
    """The response budget of the rollout was used up."""
    CONTEXT_FULL = "context_full"
    """Prompt plus response reached the context length of the model."""
    TOOL_TIMEOUT = "tool_timeout"
    """The model's own action, or the rollout as a whole, ran past its wall-clock limit."""
    OUTPUT_LIMIT = "output_limit"
    """The model's own action printed more than the sandbox keeps, and the environment ended it."""
    OOM = "oom"
    """The model's own action used more memory than its sandbox allows."""
    SANDBOX_FAILED = "sandbox_failed"
    """The sandbox itself failed; the model had no part in it."""
    ENGINE_FAILED = "engine_failed"
    """The inference engine failed."""
    NO_ENGINE = "no_engine"
    """No inference engine took requests; the group is rolled out again and never trained so."""
    ENV_CRASHED = "env_crashed"
    """`reset` or `step` raised."""
    GRADER_CRASHED = "grader_crashed"
    """The reward could not be computed (raised, NaN, wrong type)."""
    NOT_JUDGED = "not_judged"
    """No reward function judged it: each is for other tasks."""
    ABORTED = "aborted"
    """The run was stopped while the rollout was in flight."""
    STALE = "stale"
    """The rollout was sampled by weights older than the configured bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminationRule:
    """Consequences of one termination for every later stage.

    Example:
        >>> rule = TERMINATION_RULES[Termination.MAX_TOKENS]
        >>> rule.in_loss, rule.truncated, rule.retried
        (True, True, False)
    """

    reward_trusted: bool
    """Whether `Trajectory.reward` measures what the policy did."""
    in_baseline: bool
    """Whether the reward takes part in the statistics of its group."""
    in_loss: bool
    """Whether the action tokens are trained on."""
    truncated: bool = False
    """Whether a budget truncated the rollout before its end."""
    retried: bool = False
    """Whether the worker tries the rollout again on fresh parts before it drops it."""
    from_env: bool = False
    """Whether an environment may report it in its `StepResult`."""
    mark: Literal["done", "limit", "fault"]
    """How views mark it: the environment was done, the policy met a limit, or no fault of its."""
    meaning: str
    """One sentence for those who look at a rollout."""


def _trusted(
    meaning: str,
    *,
    mark: Literal["done", "limit"] = "limit",
    truncated: bool = False,
    from_env: bool = False,
) -> TerminationRule:
    return TerminationRule(
        reward_trusted=True,
        in_baseline=True,
        in_loss=True,
        truncated=truncated,
        from_env=from_env,
        mark=mark,
        meaning=meaning,
    )


def _dropped(meaning: str, *, retried: bool = False) -> TerminationRule:
    return TerminationRule(
        reward_trusted=False,
        in_baseline=False,
        in_loss=False,
        retried=retried,
        mark="fault",
        meaning=meaning,
    )


TERMINATION_RULES: Mapping[Termination, TerminationRule] = {
    Termination.ENV_DONE: _trusted("The environment said it is done.", mark="done", from_env=True),
    Termination.NO_TOOL_CALL: _trusted("The model answered without a tool call."),
    Termination.MAX_TURNS: _trusted("It used all turns it may take.", truncated=True),
    Termination.MAX_TOKENS: _trusted("It used all tokens it may sample.", truncated=True),
    Termination.CONTEXT_FULL: _trusted("The context had no room left.", truncated=True),
    Termination.TOOL_TIMEOUT: _trusted(
        "Its own action, or the whole rollout, took longer than it may.", from_env=True
    ),
    Termination.OUTPUT_LIMIT: _trusted(
        "Its own action printed more than the sandbox keeps.", from_env=True
    ),
    Termination.OOM: _trusted(
        "Its own action used more memory than the sandbox allows.", from_env=True
    ),
    Termination.SANDBOX_FAILED: _dropped(
        "The sandbox broke: no fault of the policy.", retried=True
    ),
    Termination.ENGINE_FAILED: _dropped(
        "The engine that samples broke: no fault of the policy.", retried=True
    ),
    Termination.NO_ENGINE: _dropped("No engine was there to sample: no fault of the policy."),
    Termination.ENV_CRASHED: _dropped(
        "The environment raised an error: no fault of the policy.", retried=True
    ),
    Termination.GRADER_CRASHED: _dropped(
        "The reward could not be computed: no fault of the policy.", retried=True
    ),
    Termination.NOT_JUDGED: _dropped("No reward function judged it, so it has no reward."),
    Termination.ABORTED: _dropped("The run was stopped while it was in flight."),
    Termination.STALE: _dropped("Weights older than the bound sampled it."),
}
"""The one table every stage reads: a new ending is a member above and a row here, no more, since
filters, views and the page take its traits and its meaning from here. `loss.mask_truncated` may
further exclude truncated rows."""


class CallStatus(StrEnum):
    """The parser's verdict on a span that looks like a tool call. A bad call is data."""

    OK = "ok"
    """Well formed: name and arguments were read."""
    MALFORMED = "malformed"
    """The span could not be parsed (broken JSON, unknown structure)."""
    UNCLOSED = "unclosed"
    """The opening marker is there, the closing one is not."""
    MISSING_NAME = "missing_name"
    """Parsed, but it names no tool."""
    INVALID_ARGUMENTS = "invalid_arguments"
    """Parsed, but the arguments are not an object."""


class ToolStatus(StrEnum):
    """The way in which one tool call ended."""

    OK = "ok"
    """The tool returned a result."""
    ERROR = "error"
    """The tool raised `ToolError`; its text is what the model sees."""
    INVALID_ARGUMENTS = "invalid_arguments"
    """The arguments did not fit the schema; the tool did not run."""
    UNKNOWN_TOOL = "unknown_tool"
    """No tool of that name is offered."""
    MALFORMED = "malformed"
    """The call could not be parsed; the tool did not run."""
    OVER_CAP = "over_cap"
    """Beyond `max_parallel_calls`; the tool did not run and the result reports it."""
    TIMEOUT = "timeout"
    """The tool ran past its time limit."""


class FinishReason(StrEnum):
    """Why the engine stopped generating a turn."""

    STOP = "stop"
    """A stop token was sampled; it is the last id of the generation."""
    LENGTH = "length"
    """`max_tokens` was reached."""
    ABORT = "abort"
    """The request was cancelled."""
