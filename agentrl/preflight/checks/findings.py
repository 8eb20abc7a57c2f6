"""What the checks of one preflight hand on to those after them, and how they report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agentrl.runtime.assembly.parts import TaskSets
from agentrl.runtime.records import Check, Status
from agentrl.tool import Tool

if TYPE_CHECKING:
    from agentrl.chat import ChatFormat
    from agentrl.preflight.reward.known_answers import Answer


@dataclass(slots=True, kw_only=True)
class Found:
    """What the checks of one preflight found, for those after them; None where they failed."""

    tokenizer: Any = None
    """Of the policy."""
    chat: ChatFormat | None = None
    """Made of it."""
    make_env: Callable[[], Any] | None = None
    """Makes a fresh environment."""
    tasks: TaskSets | None = None
    """Every task of the run."""
    tools: dict[str, Tool] = field(default_factory=dict[str, Tool])
    """Offered in the first prompts of a sample of tasks, by name."""
    sandbox_used: bool | None = None
    """Whether an episode opened a sandbox; None while there was none."""
    answers: list[Answer] = field(default_factory=list["Answer"])
    """What was tried on the reward code, and what it gave."""


def warn(name: str, detail: str, fix: str) -> Check:
    """A line that says what is doubtful, and what to set instead."""
    return Check(name=name, status=Status.WARN, detail=detail, fix=fix)


def fail(name: str, detail: str, fix: str) -> Check:
    """A line that says why the run cannot work, and what to set instead."""
    return Check(name=name, status=Status.FAIL, detail=detail, fix=fix)


def not_checked(name: str, found: Found) -> Check:
    """A line that needs what an earlier one could not find."""
    missing = {"chat": found.chat, "tasks": found.tasks, "environment": found.make_env}
    names = ", ".join(name for name, value in missing.items() if value is None)
    return warn(name, f"not checked: {names} failed above", "mend what failed above")
