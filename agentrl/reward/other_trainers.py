"""Reward functions written for verl, TRL or OpenRLHF, known by their parameter names.

| written for | parameters | gives |
| --- | --- | --- |
| verl | `data_source, solution_str, ground_truth, extra_info` | a number or `{"score": ...}` |
| TRL | `completions` or `completion_ids`, `prompts`, columns | a list of one number or None |
| OpenRLHF | `queries, prompts, labels` | a tensor of one number or `{"rewards": ...}` |

Those that work on batches get batches of one. The response is the text of its turns, what tools and
environment said included, without special tokens; the text of the prompt has them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from agentrl.errors import choices
from agentrl.images import words
from agentrl.types import Task, Trajectory

Ask = Callable[[Trajectory, Task], dict[str, Any]]


NOT_JUDGED = object()
"""Returned for a rollout that a function does not judge: no number, and no failure either."""


def adapted(call: Callable[..., Any], args: Mapping[str, Any]) -> Callable[..., Any] | None:
    """`call` as a function of `(trajectory, task, **args)`; None if it is for none of them.

    Args:
        call: a function with a signature that can be read.
        args: more keyword arguments, from the config.

    Raises:
        TypeError: a required parameter that has no value.
    """
    parameters = inspect.signature(call).parameters
    if "trajectory" in parameters:  # ours, with a setting of its own that has one of their names
        return None
    found = next(((ask, read) for names, ask, read in _TRAINERS if names <= set(parameters)), None)
    if found is None:
        return None
    ask, read = found
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    needed = [
        p.name
        for p in parameters.values()
        if p.default is p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    ]
    if ask is not _trl and (unknown := set(needed) - _KNOWN - set(args)):
        raise TypeError(f"missing a required argument: {', '.join(sorted(unknown))}")

    def asked(trajectory: Trajectory, task: Task) -> dict[str, Any]:
        values = ask(trajectory, task)
        left = [name for name in needed if name not in values and name not in args]
        if ask is _trl and len(left) == 1:
            # The column of the answer, whatever the file calls it, is the label here.
            values[left.pop()] = [task.label]
        if left:
            raise TypeError(f"no column for a parameter: {choices(left[0], [*task.metadata])}")
        return values if takes_any else {n: v for n, v in values.items() if n in parameters}

    if inspect.iscoroutinefunction(call):

        async def later(trajectory: Trajectory, task: Task, **more: Any) -> Any:
            return read(await call(**{**asked(trajectory, task), **more}))

        return later

    def now(trajectory: Trajectory, task: Task, **more: Any) -> Any:
        return read(call(**{**asked(trajectory, task), **more}))

    return now


def _text(trajectory: Trajectory) -> str:
    return "".join(turn.text for turn in trajectory.turns)


def _verl(trajectory: Trajectory, task: Task) -> dict[str, Any]:
    return {
        "data_source": task.metadata.get("data_source", ""),
        "solution_str": _text(trajectory),
        "ground_truth": task.label,
        "extra_info": task.metadata.get("extra_info") or {},
    }


def _trl(trajectory: Trajectory, task: Task) -> dict[str, Any]:
    prompt: Any = task.prompt
    completion: Any = _text(trajectory)
    if not isinstance(prompt, str):
        prompt = [
            {"role": said.role, "content": words(said.content, said.images)} for said in prompt
        ]
        completion = [{"role": turn.role, "content": turn.text} for turn in trajectory.turns]
    return {
        **{name: [value] for name, value in task.metadata.items()},
        "prompts": [prompt],
        "completions": [completion],
        "completion_ids": [list(trajectory.response_ids)],
    }


def _openrlhf(trajectory: Trajectory, task: Task) -> dict[str, Any]:
    prompt = trajectory.prompt_text
    return {
        "queries": [prompt + _text(trajectory)],
        "prompts": [prompt],
        "labels": [task.label],
    }


def _score(value: Any) -> Any:
    return value["score"] if isinstance(value, Mapping) else value


def _only(value: Any) -> Any:
    """The one number of a batch of one; TRL's None means that the function is not for this task."""
    [number] = value
    return NOT_JUDGED if number is None else number


def _rewards(value: Any) -> Any:
    return _only(value["rewards"] if isinstance(value, Mapping) else value)


_TRAINERS: tuple[tuple[frozenset[str], Ask, Callable[[Any], Any]], ...] = (
    (frozenset({"data_source", "solution_str", "ground_truth"}), _verl, _score),
    (frozenset({"queries", "prompts", "labels"}), _openrlhf, _rewards),
    (frozenset({"completions"}), _trl, _only),
    (frozenset({"completion_ids"}), _trl, _only),
)
_KNOWN = frozenset({"data_source", "solution_str", "ground_truth", "extra_info"}) | frozenset(
    {"queries", "prompts", "labels"}
)
