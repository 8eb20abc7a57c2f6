"""Tasks without a label where the code that pays reads one, found before a run."""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Iterator, Sequence

from agentrl.config.plan import RolloutPlan
from agentrl.errors import AgentrlError, DataError
from agentrl.plugins.imports import resolve
from agentrl.runtime.assembly.parts import TaskSets
from agentrl.types import Task

logger = logging.getLogger(__name__)

_READS = re.compile(r"\b(?:label|ground_truth)\b")
_KNOWS_NONE = re.compile(
    r"\b(?:label|ground_truth)\s+(?:is\b|or\b)|\bif\s+(?:not\s+)?[\w.]*\b(?:label|ground_truth)\b"
)
_NAMED = 5
"""Tasks that a message names."""


def check_labels(sets: TaskSets, plan: RolloutPlan) -> None:
    """Refuse data sets in which some tasks lack the label that their environment reads.

    A data set without any label is as good as one with: then nothing is read of it.

    Args:
        sets: tasks of the run.
        plan: names the environment and the reward functions, whose source tells what they read.

    Raises:
        DataError: names the data set and its tasks without a label.
    """
    for kind, tasks in sets.by_kind().items():
        lacking = [place for place, task in enumerate(tasks) if task.label in (None, "")]
        if not lacking or len(lacking) == len(tasks):
            continue
        text = (
            f"{kind}: {len(lacking)} of {len(tasks)} tasks have no label, {_named(tasks, lacking)}"
        )
        if reader := next(_readers(plan), None):
            raise DataError(
                f"{text}, and {reader} reads it; give them one, or leave them out (an environment "
                "that knows tasks without a label asks `if task.label is None`)"
            )
        logger.warning("%s", text)


def _named(tasks: Sequence[Task], places: Sequence[int]) -> str:
    named = ", ".join(f"task {place + 1} ({tasks[place].id!r})" for place in places[:_NAMED])
    return named + (", ..." if len(places) > _NAMED else "")


def _readers(plan: RolloutPlan) -> Iterator[str]:
    """Code that reads labels and does not look whether there is one."""
    functions = plan.reward.functions.items()
    targets = {"env.target": plan.env.target} | {
        f"reward.functions.{name}": item.target for name, item in functions
    }
    for key, target in targets.items():
        try:
            source = inspect.getsource(resolve(target, base=plan.base))
        except (AgentrlError, OSError, TypeError):
            continue  # without source, as an extension or an instance
        if _READS.search(source) and not _KNOWS_NONE.search(source):
            yield f"{key} {target}"
