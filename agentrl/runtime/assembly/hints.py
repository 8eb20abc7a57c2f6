"""Prompts with a hint, for a run whose teacher is the policy itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from agentrl.batch.records import IntArray, RowKey
from agentrl.chat import ChatFormat, build_chat
from agentrl.chat.hint import prompt_ends, with_hint
from agentrl.config.distill import HintTeacher, hint_columns
from agentrl.config.plan import TaskPlan, TrainerPlan
from agentrl.config.schema import ChatSection
from agentrl.data import load_tasks
from agentrl.disk.model_source import model_source
from agentrl.errors import ConfigError, DataError
from agentrl.models.source import load_tokenizer
from agentrl.runtime.assembly.teacher import teacher_section
from agentrl.types import Task, TrajectoryGroup

if TYPE_CHECKING:
    from agentrl.batch import StepBatch
    from agentrl.train.distill.records import TeacherPrompts

_KEY = "algorithm.distill.teacher.hint"


def hint_section(plan: TrainerPlan) -> HintTeacher | None:
    """The section of a teacher with a hint; None where the run has no such teacher."""
    distill = teacher_section(plan)
    teacher = None if distill is None else distill.teacher
    return teacher if isinstance(teacher, HintTeacher) else None


def hint_text(hint: str, task: Task) -> str:
    """The hint of one task.

    Example:
        >>> hint_text("It is {label}.", Task(id="1", prompt="2 + 2?", label=4))
        'It is 4.'

    Raises:
        DataError: the task lacks a column that the hint names, has nothing there, or something
            that cannot be written as the hint asks.
    """
    columns = {"label": task.label, **task.metadata}
    for name in hint_columns(hint):
        if columns.get(name) in (None, ""):
            got = "nothing" if name in columns else "no such column"
            raise DataError(
                f"{_KEY} names {name!r}, but task {task.id} has {got} there; its columns are "
                f"{', '.join(sorted(columns))}: name one that every task has, or leave the task out"
            )
    try:
        return hint.format(**{name: columns[name] for name in hint_columns(hint)})
    except (ValueError, TypeError, KeyError) as error:
        raise DataError(
            f"{_KEY} {hint!r} cannot be filled in for task {task.id}: {type(error).__name__}: "
            f"{error}; name columns without a format, as {{solution}}"
        ) from None


def check_hints(section: HintTeacher, tasks: Iterable[Task]) -> int:
    """Fill the hint in for every task, so that none is found lacking in the middle of a run.

    Returns:
        Characters of the longest one.

    Raises:
        DataError: as `hint_text`.
    """
    return max((len(hint_text(section.hint, task)) for task in tasks), default=0)


class HintedPrompts:
    """Puts hints into the prompts of trained rows."""

    def __init__(self, section: HintTeacher, chat: ChatFormat, tasks: Iterable[Task]) -> None:
        """Take the tasks; hints are made when a row asks for one.

        Args:
            section: the hint.
            chat: format of the policy's prompts.
            tasks: those that rows may be of.

        Raises:
            ConfigError: a chat format that messages cannot be added to.
        """
        self._chat, self._hint = chat, section.hint
        self._tasks = {task.id: task for task in tasks}
        if not prompt_ends(chat):
            raise ConfigError(
                f"{_KEY} cannot be put into messages of the chat format {chat.name!r}, which "
                "quotes them; take a teacher of kind checkpoint or served"
            )

    def added_to(self, batch: StepBatch, groups: Sequence[TrajectoryGroup]) -> StepBatch:
        """The batch with a prompt for every row that an update computes.

        Args:
            batch: of the step.
            groups: its rollouts.

        Raises:
            DataError: a row of a task that is not among those of the run, or as `hint_text`.
            ChatError: a prompt that a hint cannot be put into.
        """
        wanted = {
            key for update in batch.updates for micro in update.micro_batches for key in micro.rows
        }
        return replace(batch, teacher_prompts=self._of(wanted, groups))

    def _of(self, wanted: set[RowKey], groups: Sequence[TrajectoryGroup]) -> TeacherPrompts:
        known: dict[tuple[str, tuple[int, ...]], IntArray] = {}
        prompts: dict[RowKey, IntArray] = {}
        for row in (row for group in groups for row in group.trajectories):
            key = RowKey.of(row)
            if key not in wanted:
                continue
            task = self._tasks.get(row.task_id)
            if task is None:
                raise DataError(
                    f"row {key} is of task {row.task_id}, which is not among the "
                    f"{len(self._tasks)} tasks of the dataset, so it has no hint"
                )
            place = (row.task_id, row.prompt_ids)
            if place not in known:
                ids = with_hint(self._chat, row.prompt_ids, hint_text(self._hint, task))
                known[place] = np.array(ids, dtype=np.int64)
            prompts[key] = known[place]
        return prompts


def open_hints(trainer: TrainerPlan, tasks: TaskPlan, chat: ChatSection) -> HintedPrompts | None:
    """Writer of hints into prompts; None where the run has no such teacher.

    Args:
        trainer: of the run.
        tasks: those that rows may be of.
        chat: format of the policy's prompts.

    Raises:
        ConfigError, DataError: as `HintedPrompts`, or tasks that cannot be read.
    """

    section = hint_section(trainer)
    if section is None:
        return None
    # Pass rates that were measured later would leave out other tasks than the run began with.
    everything = tasks.dataset.model_copy(update={"difficulty": None})
    source = model_source(trainer.model)
    tokenizer = load_tokenizer(trainer.model.model_copy(update={"path": source}))
    return HintedPrompts(
        section, build_chat(tokenizer, chat), load_tasks(everything, base=tasks.base)
    )
