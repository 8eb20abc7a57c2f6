"""Reward functions written for verl, TRL or OpenRLHF, known by their parameter names.

| written for | parameters | gives |
| --- | --- | --- |
| verl | `solution_str, ground_truth` and more | a number or `{"score": ...}` |
| TRL | `completions` or `completion_ids`, `prompts`, columns | a list of numbers or None |
| OpenRLHF | `queries, prompts, labels` | a tensor of one number or `{"rewards": ...}` |

TRL's get the whole group, as there; OpenRLHF's get batches of one. Other numbers that they give are
parts of the reward for reading: further keys of verl's dictionary, `scores` and `extra_logs` of
OpenRLHF's, and what TRL's log. The response is the text of its turns, what tools and environment
said included, without special tokens; the text of the prompt has them.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentrl.errors import choices
from agentrl.images import words
from agentrl.types import RewardValue, Task, Trajectory

Ask = Callable[[Trajectory, Task], dict[str, Any]]


NOT_JUDGED = object()
"""Returned for a rollout that a function does not judge: no number, and no failure either."""


def adapted(call: Callable[..., Any], args: Mapping[str, Any]) -> Callable[..., Any] | None:
    """`call` as a function of ours; None if it is for none of them.

    Those for TRL become functions of `(trajectories, task, **args)`, which are asked once a group,
    the others functions of `(trajectory, task, **args)`.

    Args:
        call: a function with a signature that can be read.
        args: more keyword arguments, from the config.

    Raises:
        TypeError: a required parameter that has no value.
    """
    parameters = inspect.signature(call).parameters
    if {"trajectory", "trajectories"} & parameters.keys():
        return None  # ours, with a setting of its own that has one of their names
    if {"completions", "completion_ids"} & parameters.keys():
        return _of_group(call, args)
    found = next(((ask, read) for names, ask, read in _TRAINERS if names <= set(parameters)), None)
    if found is None:
        return None
    ask, read = found
    if unknown := set(_needed(call)) - _KNOWN - set(args):
        raise TypeError(f"missing a required argument: {', '.join(sorted(unknown))}")

    if inspect.iscoroutinefunction(call):

        async def later(trajectory: Trajectory, task: Task, **more: Any) -> Any:
            return read(await call(**{**_taken(call, ask(trajectory, task)), **more}))

        return later

    def now(trajectory: Trajectory, task: Task, **more: Any) -> Any:
        return read(call(**{**_taken(call, ask(trajectory, task)), **more}))

    return now


def _of_group(call: Callable[..., Any], args: Mapping[str, Any]) -> Callable[..., Any]:
    """A function for TRL as one of ours of groups."""
    needed = [name for name in _needed(call) if name not in args]
    if trainers := _ONLY_TRL.intersection(needed):
        raise TypeError(f"only TRL's trainer has an argument for {', '.join(sorted(trainers))}")

    def asked(trajectories: Sequence[Trajectory], task: Task, log: _TrlLog) -> dict[str, Any]:
        values = {**_trl(trajectories, task), "log_metric": log.metric, "log_extra": log.column}
        left = [name for name in needed if name not in values]
        if len(left) == 1:
            # The column of the answer, whatever the file calls it, is the label here.
            values[left.pop()] = [task.label] * len(trajectories)
        if left:
            raise TypeError(f"no column for a parameter: {choices(left[0], [*task.metadata])}")
        return _taken(call, values)

    if inspect.iscoroutinefunction(call):

        async def later(trajectories: Sequence[Trajectory], task: Task, **more: Any) -> Any:
            log = _TrlLog()
            return log.values(await call(**{**asked(trajectories, task, log), **more}))

        return later

    def now(trajectories: Sequence[Trajectory], task: Task, **more: Any) -> Any:
        log = _TrlLog()
        return log.values(call(**{**asked(trajectories, task, log), **more}))

    return now


class _TrlLog:
    """What a function for TRL logs beside its rewards, in the two ways that it is given there."""

    def __init__(self) -> None:
        self._metrics: dict[str, Any] = {}
        self._columns: dict[str, Sequence[Any]] = {}

    def metric(self, name: str, value: Any) -> None:
        """One number of all completions."""
        self._metrics[name] = value

    def column(self, column: str, values: Sequence[Any]) -> None:
        """One value for each completion."""
        self._columns[column] = values

    def values(self, given: Any) -> Any:
        """One value a rollout: its reward with what was logged of it, or `NOT_JUDGED`."""
        try:
            numbers = None if isinstance(given, str | bytes | Mapping | set) else iter(given)
        except TypeError:  # one number, also an array of one
            numbers = None
        if numbers is None:
            return given  # refused by its reader, who knows what was expected
        return [
            NOT_JUDGED if number is None else _value(number, self._metrics | self._row(index))
            for index, number in enumerate(numbers)
        ]

    def _row(self, index: int) -> dict[str, Any]:
        return {k: column[index] for k, column in self._columns.items() if index < len(column)}


def _needed(call: Callable[..., Any]) -> list[str]:
    return [
        p.name
        for p in inspect.signature(call).parameters.values()
        if p.default is p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    ]


def _taken(call: Callable[..., Any], values: dict[str, Any]) -> dict[str, Any]:
    """Those values that a function takes."""
    parameters = inspect.signature(call).parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    return values if takes_any else {n: v for n, v in values.items() if n in parameters}


def _text(trajectory: Trajectory) -> str:
    return "".join(turn.text for turn in trajectory.turns)


def _verl(trajectory: Trajectory, task: Task) -> dict[str, Any]:
    return {
        "data_source": task.metadata.get("data_source", ""),
        "solution_str": _text(trajectory),
        "ground_truth": task.label,
        "extra_info": task.metadata.get("extra_info") or {},
    }


def _trl(trajectories: Sequence[Trajectory], task: Task) -> dict[str, Any]:
    prompt: Any = task.prompt
    completions: list[Any] = [_text(trajectory) for trajectory in trajectories]
    if not isinstance(prompt, str):
        prompt = [
            {"role": said.role, "content": words(said.content, said.images)} for said in prompt
        ]
        completions = [
            [{"role": turn.role, "content": turn.text} for turn in trajectory.turns]
            for trajectory in trajectories
        ]
    columns = {**task.metadata, "prompts": prompt}
    if task.label_column or task.label is not None:
        columns.setdefault(task.label_column or "label", task.label)
    return {
        **{name: [value] * len(trajectories) for name, value in columns.items()},
        "completions": completions,
        "completion_ids": [list(trajectory.response_ids) for trajectory in trajectories],
    }


def _openrlhf(trajectory: Trajectory, task: Task) -> dict[str, Any]:
    prompt = trajectory.prompt_text
    return {
        "queries": [prompt + _text(trajectory)],
        "prompts": [prompt],
        "labels": [task.label],
    }


def _score(value: Any) -> Any:
    return _paid(value, "score") if isinstance(value, Mapping) else value


def _rewards(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return _only(value)
    logs = value.get("extra_logs")
    logs = dict(logs) if isinstance(logs, Mapping) else {}
    return _paid({**value, **logs}, "rewards")


def _paid(given: Mapping[Any, Any], name: str) -> RewardValue:
    """The reward by its name, with the other numbers as its parts."""
    if name not in given:
        raise ValueError(
            f"it returned a dictionary with {sorted(map(str, given))[:8]}, expected {name!r}"
        )
    return _value(_only(given[name]), {key: of for key, of in given.items() if key != name})


def _value(number: Any, others: Mapping[Any, Any]) -> RewardValue:
    """The reward, and what among other values is one finite number."""
    parts = {str(name): _number(value) for name, value in others.items()}
    return RewardValue(
        value=number, parts={name: part for name, part in parts.items() if math.isfinite(part)}
    )


def _number(value: Any) -> float:
    """One number as a float, NaN for anything else: it is for reading only."""
    try:
        value = _only(value)
        return math.nan if isinstance(value, str | bytes) else float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return math.nan


def _only(value: Any) -> Any:
    """The one value of a batch of one; a number is itself."""
    if isinstance(value, str | bytes | Mapping) or not hasattr(value, "__len__"):
        return value
    if getattr(value, "ndim", 1) == 0:
        return value
    [only] = value
    return only


_TRAINERS: tuple[tuple[frozenset[str], Ask, Callable[[Any], Any]], ...] = (
    # Legal without `data_source`: other parameters may take it.
    (frozenset({"solution_str", "ground_truth"}), _verl, _score),
    (frozenset({"queries", "prompts", "labels"}), _openrlhf, _rewards),
)
_ONLY_TRL = frozenset({"trainer_state", "environments"})
"""Arguments that TRL gives and nothing here stands for."""
_KNOWN = frozenset({"data_source", "solution_str", "ground_truth", "extra_info"}) | frozenset(
    {"queries", "prompts", "labels"}
)
