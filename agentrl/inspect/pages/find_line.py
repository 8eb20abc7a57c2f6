"""A line of words and filters as a question, for where people type: `/` and `traj find`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from agentrl.errors import RunError
from agentrl.types.solved import ROUNDING

FILTERS = (
    "task:sum end:max_turns tool:any_error reward<0.5 score<1 step>=3 lag>=1 gap>=0.1 "
    "is:truncated is:paid is:wrong label:hacked like:ROLLOUT role:assistant /regular.expression/ "
    "sort:-reward"
)
"""An example of each filter."""

_NAMES = {
    "kind": "kind",
    "task": "task",
    "end": "termination",
    "tool": "tool_status",
    "label": "label",
    "like": "like",
    "role": "role",
    "sort": "sort",
}
ROLES = ("assistant", "tool", "user", "system", "prompt")
"""Roles of a turn whose text can be searched alone, and the prompt."""
SORTS = ("step", "reward", "score", "tokens")
"""Orders of what is found: smallest first, or with a minus before it largest first."""
_BOUNDS = {
    ("reward", ">="): "reward_min",
    ("reward", "<="): "reward_max",
    ("score", ">="): "score_min",
    ("score", "<="): "score_max",
    ("step", ">="): "step_min",
    ("step", "<="): "step_max",
    ("lag", ">="): "lag_min",
    ("gap", ">="): "gap_min",
}
_FLAGS = {
    "truncated": ("truncated", True),
    "whole": ("truncated", False),
    "flat": ("zero_advantage", True),
    "signal": ("zero_advantage", False),
    "paid": ("paid", True),
    "unpaid": ("paid", False),
    "wrong": ("wrong", True),
    "right": ("wrong", False),
    "public_only": ("public_only", True),
}
_FILTER = re.compile(
    r"(kind|task|end|tool|is|label|like|role|sort)(?::|(?<=label)=)(\S+)"
    r"|(reward|score|step|lag|gap)(<=|>=|<|>|=)(\S+)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Conditions on the rollouts that are looked for; None and empty mean anything."""

    text: str = ""
    """In a prompt, a turn or a tool's output; empty finds by the filters alone. Between slashes a
    regular expression (RE2), as `/ValueError: .* is not/`."""
    role: str | None = None
    """One of `ROLES`, whose text alone is searched."""
    sort: str = ""
    """One of `SORTS`, with a minus for the largest first; empty for the order of the steps."""
    kind: str | None = None
    """`train` or `eval/NAME`."""
    task: str | None = None
    """Part of a task id."""
    termination: str | None = None
    """A `Termination` value."""
    tool_status: str | None = None
    """A `ToolStatus` or `CallStatus` value of any call, or `any_error`."""
    reward_min: float | None = None
    """Lowest reward, included."""
    reward_max: float | None = None
    """Highest reward, included."""
    score_min: float | None = None
    """Lowest score of the environment, included."""
    score_max: float | None = None
    """Highest score, included."""
    lag_min: float | None = None
    """Least versions between the oldest weights that sampled a token and those it trained."""
    gap_min: float | None = None
    """Least largest difference between trainer and sampler, in nats."""
    truncated: bool | None = None
    """Whether a budget truncated it."""
    zero_advantage: bool | None = None
    """Whether its advantage was 0."""
    paid: bool | None = None
    """Whether its reward is one that solved rollouts get (`PaidLimits`)."""
    wrong: bool | None = None
    """Whether it is wrong by the score (`PaidLimits`)."""
    public_only: bool | None = None
    """Whether it passed every public test and failed a hidden one."""
    step_min: int | None = None
    """First step, included."""
    step_max: int | None = None
    """Last step, included."""
    label: str | None = None
    """Given by a reviewer, to the rollout or to tokens of it."""
    like: str | None = None
    """Id of a rollout; only those whose answer is near-identical to its answer, itself included."""
    among: frozenset[tuple[str, int, str]] | None = None
    """Kind, step and stored id of those that may be found; for what a comparison counts."""
    limit: int = 50
    """Hits given."""
    offset: int = 0
    """Hits passed over."""


def parse_question(line: str, **more: Any) -> Question:
    """The question that a line asks: filters first to last, the rest is the text to find.

    `reward<0.5` leaves 0.5 out and `reward<=0.5` does not; `=` is both bounds.

    Raises:
        RunError: a filter that is not understood; says which there are.

    Example:
        >>> parse_question("not found task:sum reward<0.5").text
        'not found'
    """
    fields: dict[str, Any] = dict(more)
    words: list[str] = []
    for word in line.split():
        match = _FILTER.fullmatch(word)
        if match is None:
            words.append(word)
        elif match[1] == "is":
            if match[2] not in _FLAGS:
                raise RunError(f"is:{match[2]} is no filter; valid: is:{', is:'.join(_FLAGS)}")
            name, value = _FLAGS[match[2]]
            fields[name] = value
        elif match[1]:
            fields[_NAMES[match[1]]] = match[2]
        else:
            fields |= _bounds(match[3], match[4], match[5])
    # Words keep their spaces when no filter stands among them.
    text = line.strip() if len(words) == len(line.split()) else " ".join(words)
    question = Question(text=text, **fields)
    for name, value, valid in (
        ("role", question.role, ROLES),
        ("sort", question.sort.removeprefix("-") or None, SORTS),
    ):
        if value is not None and value not in valid:
            raise RunError(f"{name}:{value} is no filter; valid: {name}:{f', {name}:'.join(valid)}")
    return question


def _bounds(name: str, sign: str, value: str) -> dict[str, Any]:
    try:
        number = int(value) if name == "step" else float(value)
    except ValueError as error:
        raise RunError(f"{name}{sign}{value}: expected a number after {name}{sign}") from error
    signs = [">=", "<="] if sign == "=" else [f"{sign[0]}="]
    if sign in ("<", ">"):  # bounds are inclusive
        towards = -1 if sign == "<" else 1
        # A search takes what is equal but for rounding, too.
        number += towards if name == "step" else 2 * towards * ROUNDING
    found = {_BOUNDS[name, each]: number for each in signs if (name, each) in _BOUNDS}
    if not found:
        raise RunError(f"{name}{sign}{value} is no filter; {name} can only be asked with >=")
    return found
