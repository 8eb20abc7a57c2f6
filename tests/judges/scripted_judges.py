"""Judges of tests as replies of a scripted server: honest ones, and those that repeat the work."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from agentrl.types import Task, Termination, Trajectory, Turn

TASK = Task(id="t", prompt="What is 2 + 2?", label="4")
CRITERIA = [
    {"name": "correct", "text": "The answer is right.", "weight": 3.0},
    {"name": "short", "text": "The answer is short."},
]


def row(*said: str, roles: tuple[str, ...] = ("assistant",)) -> Trajectory:
    """A rollout of which only the texts are known."""
    turns = [
        Turn(role=roles[i % len(roles)], start=0, end=0, text=text)  # type: ignore[arg-type]
        for i, text in enumerate(said)
    ]
    return Trajectory(
        task_id="t", group_id="g", rollout_id="g/0", prompt_ids=(), response_ids=(),
        response_mask=(), rollout_log_probs=(), policy_versions=(), turns=tuple(turns),
        reward=0.0, termination=Termination.ENV_DONE,
    )  # fmt: skip


def mark_in(body: Mapping[str, Any]) -> str:
    """The mark of the case, from the line where the prompt gives it."""
    first = body["messages"][-1]["content"].splitlines()[0]
    found = re.fullmatch(r"Mark of this case: ([0-9a-f]{32})", first)
    assert found is not None
    return found[1]


def part_of(body: Mapping[str, Any], name: str) -> str:
    """The text of a quoted part, as a careful reader finds it."""
    mark = mark_in(body)
    text = body["messages"][-1]["content"]
    begin, end = f"\nBEGIN {name} {mark}\n", f"\nEND {name} {mark}\n"
    assert text.count(begin) == text.count(end) == 1
    return text.split(begin)[1].split(end)[0]


def rubric_reply(grade: Callable[[str], int]) -> Callable[[dict[str, Any]], str]:
    """A judge that gives every criterion the grade of the work's text."""

    def reply(body: dict[str, Any]) -> str:
        value = grade(part_of(body, "work"))
        grades = {item["name"]: {"reason": "as seen", "grade": value} for item in CRITERIA}
        return json.dumps({"case": mark_in(body), "criteria": grades})

    return reply


def echo_all(body: dict[str, Any]) -> str:
    """Repeats all it was sent."""
    return "\n".join(said["content"] for said in body["messages"])


def echo_work(body: dict[str, Any]) -> str:
    """Repeats the work it was to judge, as a judge does that obeys it."""
    return part_of(body, "work")
