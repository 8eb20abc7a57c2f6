"""Turns what `reset` and `step` may return into the records of the contract.

Besides `Observation` and `StepResult`, text and the dictionaries of OpenRLHF are accepted. Numbers
may be anything with one value: floats, numpy scalars, tensors of one element. A reward that is no
finite number is a `GraderError`, never a 0.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

from agentrl.env import Observation, StepResult
from agentrl.errors import DataError, EnvError, GraderError, choices
from agentrl.images import message as message_of
from agentrl.images import placed
from agentrl.types import (
    MOST_REWARD,
    TERMINATION_RULES,
    Explanation,
    Message,
    Role,
    SamplingParams,
    Termination,
)
from agentrl.types.explanation import read_explanation
from agentrl.types.history import read_history

STEP_KEYS = (
    "rewards",
    "environment_feedback",
    "done",
    "scores",
    "extra_logs",
    "sampling_params",
    "reward_parts",
    "explanation",
    "history",
)
PICTURE_KEYS = ("environment_images", "images")
"""Images that an OpenRLHF environment gives beside a text."""
MOST_NAMES = 1000
"""Names that one rollout may give in `extra_logs`, and in `reward_parts`."""
NAME_CHARS = 200
"""Characters of such a name."""
_NEAR = 0.8
"""Likeness from which an unknown key is a known one misspelt; others belong to other trainers."""
SAMPLING_KEYS = ("temperature", "top_p", "max_tokens")
_ENDINGS = tuple(ending for ending, rule in TERMINATION_RULES.items() if rule.from_env)


def as_reward_range(value: Any) -> tuple[float, float]:
    """Bounds that an environment declares of its rewards; an infinite one is none.

    Raises:
        EnvError: not two numbers, the smaller one first.
    """
    try:
        low, high = map(float, value)
    except (TypeError, ValueError):
        low, high = 1.0, 0.0
    if not low <= high:  # NaN, too
        raise EnvError(
            f"reward_range is {reprlib.repr(value)}; expected two numbers, the smallest and the "
            "largest sum of an episode's rewards, or None"
        )
    return low, high


def as_observation(value: Any) -> Observation:
    """`Observation`, text, messages, or `{"observation": ...}`.

    Raises:
        EnvError: anything else.
    """
    if isinstance(value, Observation):
        content = _messages(value.content, "reset: Observation.content")
        return value if content is value.content else replace(value, content=content)
    if isinstance(value, Mapping):
        if "observation" not in value:
            raise EnvError(
                f"reset returned a dictionary with the keys {sorted(map(str, value))}, expected "
                "'observation'"
            )
        _check_spelling(value, ("observation", *PICTURE_KEYS), "reset")
        content = _messages(value["observation"], "reset: 'observation'")
        return Observation(content=_with_pictures(content, value, "reset"))
    if isinstance(value, (str, tuple, list)):
        return Observation(content=_messages(value, "reset"))
    raise EnvError(
        f"reset returned {_kind(value)}, expected Observation, text, or a dictionary with the key "
        "'observation'"
    )


def as_step_result(value: Any) -> StepResult:
    """A checked `StepResult`, from one or from a dictionary.

    Raises:
        GraderError: a reward or score is not one finite number.
        EnvError: anything else that is wrong.
    """
    if isinstance(value, Mapping):
        value = _from_mapping(value)
    elif not isinstance(value, StepResult):
        raise EnvError(
            f"step returned {_kind(value)}, expected StepResult or a dictionary with the keys "
            f"{', '.join(STEP_KEYS)}"
        )
    if _is_clean(value):
        return value
    if value.termination not in _ENDINGS:
        raise EnvError(
            f"step: termination is {value.termination!r}; an environment may say "
            f"{', '.join(_ENDINGS)}"
        )
    return StepResult(
        rewards=number(value.rewards, "rewards"),
        environment_feedback=_messages(value.environment_feedback, "step: environment_feedback"),
        done=bool(value.done),
        scores=None if value.scores is None else number(value.scores, "scores"),
        extra_logs=_numbers(value.extra_logs, "extra_logs"),
        sampling_params=dict(value.sampling_params),
        reward_parts=_numbers(value.reward_parts, "reward_parts"),
        explanation=_explanation(value.explanation),
        termination=value.termination,
        tools=tuple(value.tools),
        history=_history(value),
        history_tools=None if value.history_tools is None else tuple(value.history_tools),
        data=dict(value.data),
    )


def number(value: Any, what: str) -> float:
    """Return one finite number, or raise.

    Raises:
        GraderError: it is not.
    """
    if hasattr(value, "item") and getattr(value, "size", 1) != 0:
        try:
            value = value.item()
        except (ValueError, RuntimeError, TypeError) as error:
            raise GraderError(f"step: {what} has more than one value: {error}") from None
    if not isinstance(value, (int, float)):
        raise GraderError(f"step: {what} is {_kind(value)}, expected one number")
    # Comparing takes whole numbers of any size, where `math.isfinite` raises.
    if not abs(value) <= MOST_REWARD:
        raise GraderError(
            f"step: {what} is {value:.6g}, expected a finite number of at most {MOST_REWARD:g}"
            if isinstance(value, float)
            else f"step: {what} has {value.bit_length()} bits, expected at most {MOST_REWARD:g}"
        )
    return float(value)


def sampling_overrides(values: Mapping[str, Any], base: SamplingParams) -> dict[str, Any]:
    """The checked overrides of one turn.

    Raises:
        EnvError: an unknown name, or a value out of its range.
    """
    checks: dict[str, tuple[Callable[[Any], bool], str]] = {
        # Greedy draws have no distribution to train on, so only a greedy run may be greedy.
        "temperature": (lambda v: v > 0 or base.temperature == 0, "a positive number"),
        "top_p": (lambda v: 0 < v <= 1, "a number in (0, 1]"),
        "max_tokens": (lambda v: v >= 1 and int(v) == v, "a whole number of at least 1"),
    }
    for name, value in values.items():
        if name not in checks:
            raise EnvError(f"step: unknown sampling parameter: {choices(str(name), checks)}")
        holds, expected = checks[name]
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not holds(value):
            raise EnvError(f"step: sampling_params[{name!r}] is {value!r}, expected {expected}")
    return dict(values)


def _is_clean(result: StepResult) -> bool:
    """The common case, in which there is nothing to convert."""
    return (
        type(result.rewards) is float
        and abs(result.rewards) <= MOST_REWARD
        and type(result.environment_feedback) is str
        and type(result.done) is bool
        and result.scores is None
        and not result.extra_logs
        and not result.sampling_params
        and not result.reward_parts
        and result.explanation is None
        and result.history is None
        and result.history_tools is None
        and result.termination is Termination.ENV_DONE
    )


def _from_mapping(value: Mapping[str, Any]) -> StepResult:
    missing = [key for key in ("rewards", "done") if key not in value]
    if missing:
        raise EnvError(
            f"step returned a dictionary with the keys {sorted(map(str, value))}; "
            f"{' and '.join(map(repr, missing))} missing"
        )
    _check_spelling(value, (*STEP_KEYS, *PICTURE_KEYS), "step")
    feedback = _or(value.get("environment_feedback"), "")
    return StepResult(
        rewards=value["rewards"],
        environment_feedback=_with_pictures(feedback, value, "step"),
        done=value["done"],
        scores=value.get("scores"),
        extra_logs=_or(value.get("extra_logs"), {}),
        sampling_params=_or(value.get("sampling_params"), {}),
        reward_parts=_or(value.get("reward_parts"), {}),
        explanation=value.get("explanation"),
        history=value.get("history"),
    )


def _check_spelling(value: Mapping[str, Any], known: Sequence[str], what: str) -> None:
    """Refuse a key that is nearly a known one: what it holds would be lost without a word."""
    for key in value:
        if key in known or not isinstance(key, str):
            continue
        near = get_close_matches(key, [name for name in known if name not in value], 1, _NEAR)
        if near:
            raise EnvError(f"{what} returned the key {key!r}; did you mean {near[0]!r}?")


def _with_pictures(content: Any, given: Mapping[str, Any], what: str) -> Any:
    """`content` with the images that an OpenRLHF environment gives beside it, before its text."""
    for key in PICTURE_KEYS:
        # An empty list and None say that there are none; `or` would ask a tensor for its truth.
        if given.get(key) is None or not len(given[key]):
            continue
        if not isinstance(content, str):
            raise EnvError(
                f"{what} returned {len(given[key])} {key} beside messages; make them parts of a "
                "message, or give the text alone"
            )
        return (_parts("user", [*map(_as_part, given[key]), content], what),)
    return content


def _as_part(image: Any) -> Any:
    """An image in a list of images, where text is a path or a data URL."""
    return {"image": image} if isinstance(image, str) else image


def _parts(role: Role, parts: Any, what: str) -> Message:
    try:
        return message_of(role, parts)
    except DataError as error:
        raise EnvError(f"{what}: {error}") from None


def _or(value: Any, default: Any) -> Any:
    """`default` for None only: `value or default` asks a tensor for its truth."""
    return default if value is None else value


def _numbers(values: Any, what: str) -> dict[str, float]:
    if not isinstance(values, Mapping):
        raise EnvError(f"step: {what} is {_kind(values)}, expected a dictionary of numbers")
    if len(values) > MOST_NAMES:
        raise EnvError(
            f"step: {what} has {len(values)} names, expected at most {MOST_NAMES}; a name is a "
            "metric of the run, so what differs from task to task belongs into `data`"
        )
    out: dict[str, float] = {}
    for name, value in values.items():
        if len(str(name)) > NAME_CHARS:
            raise EnvError(
                f"step: {what} has a name of {len(str(name))} characters, expected at most "
                f"{NAME_CHARS}: {str(name)[:60]!r}..."
            )
        if hasattr(value, "item"):
            value = value.item()
        if not isinstance(value, (int, float)):
            raise EnvError(f"step: {what}[{name!r}] is {_kind(value)}, expected a number")
        out[str(name)] = float(value)
    return out


def _history(value: StepResult) -> tuple[Message, ...] | None:
    if value.history is None:
        if value.history_tools is not None:
            raise EnvError(
                "step: history_tools without history; they are the tools of that history, so give "
                "both, or add tools to the present conversation with `tools`"
            )
        return None
    # `if value.environment_feedback` would ask a tensor for its truth.
    if isinstance(value.environment_feedback, str | tuple | list) and value.environment_feedback:
        raise EnvError(
            "step: environment_feedback beside history; the history is all that the model sees "
            "next, so make the feedback its last message"
        )
    try:
        return read_history(value.history)
    except ValueError as error:
        raise EnvError(f"step: {error}") from None


def _explanation(value: Any) -> Explanation | None:
    try:
        return read_explanation(value)
    except ValueError as error:
        raise EnvError(f"step: {error}") from None


def _messages(value: Any, what: str) -> str | tuple[Message, ...]:
    """Text, or messages as records or as `{"role", "content"}` dictionaries."""
    if isinstance(value, str):
        return value
    if not isinstance(value, (tuple, list)):
        raise EnvError(f"{what} is {_kind(value)}, expected text or chat messages")
    return tuple(_message(item, what) for item in value)


def _message(item: Any, what: str) -> Message:
    if isinstance(item, Message):
        if not item.images:
            return item
        try:
            return placed(item)
        except DataError as error:
            raise EnvError(f"{what}: {error}") from None
    if isinstance(item, Mapping) and isinstance(item.get("content"), (str, list, tuple)):
        roles: tuple[Role, ...] = ("system", "user", "assistant", "tool")
        for role in roles:
            if item.get("role") == role:
                return _parts(role, item["content"], what)
        raise EnvError(f"{what}: unknown role: {choices(str(item.get('role')), roles)}")
    raise EnvError(
        f"{what} holds {_kind(item)}, expected Message or a dictionary with 'role' and 'content'"
    )


def _kind(value: Any) -> str:
    text = reprlib.repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"
