"""Checks of what `reset` and `step` return, before anything coerces it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from agentrl.env import Observation, StepResult
from agentrl.images import message, placed, words
from agentrl.testing.env_check.findings import broken
from agentrl.types import Message
from agentrl.types.explanation import read_explanation
from agentrl.types.finding import Finding
from agentrl.types.history import read_history
from agentrl.types.solved import unrounded


def check_observation(value: Any) -> Iterator[Finding]:
    """Check that the model can be shown what `reset` returned."""
    content = value
    if isinstance(value, Observation):
        content = value.content
    elif isinstance(value, Mapping):
        content = value.get("observation")
    if not is_content(content):
        yield broken("E103", f"reset returned {shown(value)}")
    elif not content:
        yield broken("E103", "reset returned an empty observation")


def check_result(value: Any, *, wants_history: bool = False) -> Iterator[Finding]:
    """Check that the loop and the trainer can use what `step` returned.

    Args:
        value: as returned.
        wants_history: of the environment.
    """
    fields = result_fields(value)
    if fields is None:
        yield broken("E308", f"step returned {shown(value)}")
        return
    yield from _check_number("rewards", fields["rewards"], wrong="E301", infinite="E302")
    score = fields["scores"]
    if score is not None:
        number = _number(score)
        if number is None or not 0 <= unrounded(number) <= 1:
            yield broken("E304", f"step returned scores={shown(score)}")
    if not is_content(fields["environment_feedback"]):
        feedback = shown(fields["environment_feedback"])
        yield broken("E305", f"step returned environment_feedback={feedback}")
    for name in ("extra_logs", "reward_parts"):
        logs = fields[name]
        if not isinstance(logs, Mapping):
            yield broken("E306", f"step returned {name}={shown(logs)}")
            continue
        for key, item in logs.items():
            number = _number(item)
            if number is None or not math.isfinite(number):
                yield broken("E306", f"step returned {name}[{key!r}]={shown(item)}")
    try:
        read_explanation(fields["explanation"])
    except ValueError as error:
        yield broken("E309", f"step returned a wrong explanation: {error}")
    yield from _check_history(fields, wants_history)
    if not isinstance(_item(fields["done"]), bool):
        yield broken("E307", f"step returned done={shown(fields['done'])}")


def result_fields(value: Any) -> dict[str, Any] | None:
    """The fields of a `StepResult` or of its dictionary; None if it is neither."""
    if isinstance(value, StepResult):
        return {
            "rewards": value.rewards,
            "scores": value.scores,
            "environment_feedback": value.environment_feedback,
            "extra_logs": value.extra_logs,
            "reward_parts": value.reward_parts,
            "explanation": value.explanation,
            "history": value.history,
            "history_tools": value.history_tools,
            "done": value.done,
        }
    if not isinstance(value, Mapping) or "rewards" not in value or "done" not in value:
        return None

    def given(name: str, default: Any) -> Any:
        # `value.get(name) or default` would ask a tensor for its truth.
        return default if value.get(name) is None else value[name]

    return {
        "rewards": value["rewards"],
        "scores": value.get("scores"),
        "environment_feedback": given("environment_feedback", ""),
        "extra_logs": given("extra_logs", {}),
        "reward_parts": given("reward_parts", {}),
        "explanation": value.get("explanation"),
        "history": value.get("history"),
        "history_tools": None,
        "done": value["done"],
    }


def history_of(value: Any) -> tuple[Message, ...]:
    """The history in what `step` returned; empty without one, or with one that is wrong."""
    fields = result_fields(value)
    try:
        return () if fields is None else read_history(fields["history"])
    except ValueError:
        return ()


def finite_reward(value: Any) -> float | None:
    """The reward in what `step` returned, if it is a finite number."""
    fields = result_fields(value)
    number = None if fields is None else _number(fields["rewards"])
    return number if number is not None and math.isfinite(number) else None


def is_done(value: Any) -> bool:
    """True if what `step` returned ends the episode."""
    fields = result_fields(value)
    return fields is not None and bool(_item(fields["done"]))


def is_content(value: Any) -> bool:
    """True for text and for chat messages."""
    if isinstance(value, str):
        return True
    return isinstance(value, tuple | list) and all(
        isinstance(item, Message)
        or (isinstance(item, Mapping) and isinstance(item.get("content"), str | list | tuple))
        for item in value
    )


def text_of(value: Any) -> str:
    """Text or messages as one text, for `Action.observation_text`."""
    if isinstance(value, Observation):
        value = value.content
    elif isinstance(value, Mapping):
        value = value.get("observation", "")
    if isinstance(value, str):
        return value
    if not is_content(value):
        return ""
    return "".join(words(item.content, item.images) for item in map(_as_message, value))


def messages_of(value: Any) -> tuple[Message, ...]:
    """Text or messages as messages, for `Action.history`."""
    if isinstance(value, Observation):
        value = value.content
    elif isinstance(value, Mapping):
        value = value.get("observation", "")
    if isinstance(value, str) or not is_content(value):
        text = value if isinstance(value, str) else ""
        return (Message(role="user", content=text),) if text else ()
    return tuple(map(_as_message, value))


def _as_message(item: Any) -> Message:
    """A message from a record, or from a dictionary whose content may be parts.

    Raises:
        DataError: an image that cannot be read.
    """
    if isinstance(item, Message):
        return placed(item)
    return message(item["role"], item["content"])


def shown(value: Any) -> str:
    """A value for a message: its type and at most 80 characters of it."""
    try:
        text = repr(value)
    except Exception as error:  # a user's __repr__ may raise anything; this is for reading only
        text = f"<repr raised {type(error).__name__}>"
    text = text.encode("ascii", "backslashreplace").decode()
    return f"{type(value).__name__} {text if len(text) <= 80 else text[:77] + '...'}"


def _check_history(fields: Mapping[str, Any], wanted: bool) -> Iterator[Finding]:
    history = fields["history"]
    if history is None:
        if fields["history_tools"] is not None:
            yield broken("E310", "step returned history_tools without history")
        return
    try:
        read_history(history)
    except ValueError as error:
        yield broken("E310", f"step returned a wrong history: {error}")
        return
    if not wanted:
        yield broken("E310", "step returned a history, but wants_history is not set on the class")
    feedback = fields["environment_feedback"]
    if is_content(feedback) and feedback:
        yield broken("E310", f"step returned feedback beside a history: {shown(feedback)}")


def _check_number(name: str, value: Any, *, wrong: str, infinite: str) -> Iterator[Finding]:
    number = _number(value)
    if number is None:
        yield broken(wrong, f"step returned {name}={shown(value)}")
    elif not math.isfinite(number):
        yield broken(infinite, f"step returned {name}={number}")


def _number(value: Any) -> float | None:
    value = _item(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value)


def _item(value: Any) -> Any:
    """What is in a tensor or numpy scalar of one element; anything else as it is."""
    item = getattr(value, "item", None)
    if not callable(item):
        return value
    try:
        return item()
    except (ValueError, RuntimeError, TypeError):
        return value
