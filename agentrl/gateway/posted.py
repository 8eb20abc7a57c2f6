"""Rewards that agents post: read, checked, and taken once."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentrl.env import StepResult
from agentrl.errors import AgentrlError, GraderError, choices
from agentrl.gateway.bodies import check_shape
from agentrl.gateway.records import RefusalReason, RequestRefused
from agentrl.rollout.coerce import as_step_result

FIELDS = ("reward", "score", "reward_parts", "extra_logs", "explanation")
"""Fields of a posted reward; all but the first may be left out."""
MOST_REWARD_BYTES = 2**20
"""Most bytes of a posted reward; what is logged beside it belongs into files of the agent."""

_MOST_VALUES = 4096
"""Most values in one: it is read on the event loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PostedReward:
    """The reward of a session, as its agent posted it."""

    step: StepResult
    """The reward with the facts posted beside it."""
    digest: bytes
    """Of the body of the request; the same again gets the same answer."""

    @property
    def answer(self) -> dict[str, Any]:
        """The body of the answer."""
        return {"object": "reward", "reward": self.step.rewards, "score": self.step.scores}


def digest_of(raw: bytes) -> bytes:
    """The same for the same body: rewards are kept until the run ends, their bodies are not."""
    return hashlib.sha256(raw).digest()


def read_reward(raw: bytes) -> PostedReward:
    """The reward in the body of a request: a number, or an object with `FIELDS`.

    Raises:
        RequestRefused: it is neither, or a field of it is wrong; names the field.
    """
    check_shape(raw, most=_MOST_VALUES)
    try:
        value = json.loads(raw)
    except ValueError as error:
        raise _refused(f"the body is not JSON: {error}") from None
    if not isinstance(value, Mapping):
        value = {"reward": value}
    unknown = next((name for name in value if name not in FIELDS), None)
    if unknown is not None:
        raise _refused(f"unknown field: {choices(unknown, FIELDS)}")
    if "reward" not in value:
        raise _refused("reward is missing; send a number, or an object with a reward")
    step: dict[str, Any] = {"done": True}
    for name, kept in (("reward", "rewards"), ("score", "scores")):
        if name == "reward" or value.get(name) is not None:
            step[kept] = _number(value[name], name)
    for name in FIELDS[2:]:
        if value.get(name) is not None:
            step[name] = value[name]
    try:
        return PostedReward(step=as_step_result(step), digest=digest_of(raw))
    except (AgentrlError, ValueError) as error:
        raise _refused(str(error).removeprefix("step: ")) from None


def agreed(posted: PostedReward | None, returned: Any) -> Any:
    """The reward of an agent that returned: what it returned or what it posted.

    Raises:
        GraderError: it gave none, or two that differ.
    """
    if posted is None:
        if returned is None:
            raise GraderError(
                "the agent returned None and posted no reward; return a number, a StepResult or a "
                "dictionary of its fields, or POST /reward"
            )
        return returned
    if returned is None:
        return posted.step
    said = returned.get("rewards") if isinstance(returned, Mapping) else returned
    said = said.rewards if isinstance(said, StepResult) else said
    if said != posted.step.rewards:
        raise GraderError(
            f"the agent posted the reward {posted.step.rewards:g} and returned {said!r}; give one "
            "of them, or the same twice"
        )
    return posted.step


def _number(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _refused(f"{name} is a JSON {type(value).__name__}, expected a number")
    try:
        found = float(value)
    except OverflowError:
        found = math.inf
    if not math.isfinite(found):
        raise _refused(f"{name} is {found}, expected a finite number")
    return found


def _refused(why: str) -> RequestRefused:
    return RequestRefused(RefusalReason.BAD_REQUEST, f"this reward cannot be taken: {why}")
