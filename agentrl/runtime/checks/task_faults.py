"""Faults of the tasks of a run, found before it: prompts over the limit, labels that lack."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from agentrl.chat import ChatFormat, build_chat
from agentrl.config.plan import Plan, RolloutPlan, TaskPlan
from agentrl.config.schema import TrainDatasetSection
from agentrl.disk.model_source import model_source
from agentrl.errors import AgentrlError, DataError, some_of
from agentrl.models.source import load_tokenizer
from agentrl.plugins.imports import resolve
from agentrl.runtime.assembly.parts import TaskSets, eval_name, load_task_sets
from agentrl.runtime.checks.label_reads import needs_label
from agentrl.types import Message, Task

logger = logging.getLogger(__name__)

_NAMED = 5
"""Tasks that a message names."""
_TRIES = 8
"""Cuts until a prompt is short enough; the template and the tokenizer move a few tokens each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Long:
    """A prompt over the limit."""

    place: int
    """Of the task in the data set, from 0."""
    task: Task
    tokens: int
    """Of the prompt, generation prompt included."""


def limit_prompts(
    sets: TaskSets, plan: RolloutPlan, tasks: TaskPlan, *, model_path: str | None = None
) -> TaskSets:
    """The tasks with no prompt over `dataset.max_prompt_tokens`, as `dataset.long_prompts` asks.

    Both keys hold for the data sets of evaluations, too: a policy is scored on prompts like those
    that it is trained on. A prompt is what the row holds, in the chat template of the policy and
    without tools: what an environment or its tools add comes on top.

    Args:
        sets: tasks of the command; a set that it does not use is empty.
        plan: of its rollouts, for the chat template.
        tasks: plan of the data sets, with the limit.
        model_path: policy that takes the place of `model.path`.

    Raises:
        DataError: there are longer ones, all of them are, or one cannot be shortened; with their
            number, the longest and the limit.
        AgentrlError: the tokenizer or the chat template cannot be had.
    """
    dataset = tasks.dataset
    if dataset.max_prompt_tokens is None:
        return sets
    every = [*sets.train, *chain(*sets.evals.values())]
    limit = _PromptLimit.open(plan, every, dataset, model_path)
    train, *notes = limit.hold(dataset.source, sets.train)
    evals: dict[str, Sequence[Task]] = {}
    for name, found in sets.evals.items():
        evals[name], note = limit.hold(f"{tasks.evals[name].source} ({eval_name(name)})", found)
        notes.append(note)
    weights = sets.weights
    if weights is not None:
        weights = {task.id: weights[task.id] for task in train}
    return replace(
        sets, train=train, evals=evals, weights=weights, notes=tuple(filter(None, notes))
    )


def scored_tasks(plan: Plan, *, model_path: str | None = None) -> TaskSets:
    """Tasks of the evaluations, or of `dataset` where there is none, within the limit of prompts.

    Raises:
        DataError, ConfigError: they cannot be read, or hold prompts over the limit.
    """
    sets = load_task_sets(plan.tasks)
    sets = replace(sets, train=()) if sets.evals else sets
    return limit_prompts(sets, plan.rollouts, plan.tasks, model_path=model_path)


def training_tasks(plan: Plan, *, model_path: str | None = None) -> TaskSets:
    """Tasks of `dataset` alone; otherwise as `scored_tasks`."""
    sets = replace(load_task_sets(plan.tasks), evals={})
    return limit_prompts(sets, plan.rollouts, plan.tasks, model_path=model_path)


@dataclass(frozen=True, slots=True, kw_only=True)
class _PromptLimit:
    """The limit of prompts, and the treatment of longer ones."""

    chat: ChatFormat
    tokenizer: Any
    most: int
    treatment: str

    @staticmethod
    def open(
        plan: RolloutPlan,
        tasks: Sequence[Task],
        dataset: TrainDatasetSection,
        model_path: str | None,
    ) -> _PromptLimit:
        source = model_source(plan.model, path=model_path)
        tokenizer = load_tokenizer(plan.model.model_copy(update={"path": source}))
        images = None
        if any(message.images for task in tasks for message in _messages(task)):
            from agentrl.models.vision.reader import load_reader

            images = load_reader(source, tokenizer)
        return _PromptLimit(
            chat=build_chat(tokenizer, plan.chat, images=images),
            tokenizer=tokenizer,
            most=dataset.max_prompt_tokens or 0,
            treatment=dataset.long_prompts,
        )

    def hold(self, name: str, tasks: Sequence[Task]) -> tuple[Sequence[Task], str]:
        """The tasks of a data set with no longer prompt, and what was done to them in words."""
        long = _find_long(tasks, self.chat, self.most)
        if not long:
            return tasks, ""
        longest = max(one.tokens for one in long)
        text = (
            f"{len(long)} of {len(tasks)} prompts of {name} have more than "
            f"{self.most} tokens (dataset.max_prompt_tokens), the longest {longest}"
        )
        if self.treatment == "refuse":
            named = some_of(
                (f"task {one.place + 1} ({one.task.id!r}, {one.tokens})" for one in long), _NAMED
            )
            raise DataError(
                f"{text}: {named}; raise the limit, shorten them, or set dataset.long_prompts to "
                "drop or truncate_left"
            )
        if self.treatment == "truncate_left":
            cut = {one.place: _truncated(one, self.chat, self.tokenizer, self.most) for one in long}
            left = [cut.get(place, task) for place, task in enumerate(tasks)]
            return left, _warned(f"{text}; they lose tokens at their beginning")
        gone = {one.place for one in long}
        left = [task for place, task in enumerate(tasks) if place not in gone]
        if not left:
            raise DataError(f"{text}, so none is left; raise the limit")
        return left, _warned(f"{text}; they are left out, and {len(left)} are left")


def log_notes(sets: TaskSets) -> None:
    """Repeat in the log of a run what was done to its tasks before it had one."""
    for note in sets.notes:
        logger.info("%s", note)


def _warned(text: str) -> str:
    logger.warning("%s", text)
    return text


def _messages(task: Task) -> tuple[Message, ...]:
    prompt = task.prompt
    return (Message(role="user", content=prompt),) if isinstance(prompt, str) else tuple(prompt)


def _find_long(tasks: Sequence[Task], chat: ChatFormat, most: int) -> list[_Long]:
    found: list[_Long] = []
    for place, task in enumerate(tasks):
        size = len(chat.render_prompt(_messages(task)))
        if size > most:
            found.append(_Long(place=place, task=task, tokens=size))
    return found


def _truncated(long: _Long, chat: ChatFormat, tokenizer: Any, most: int) -> Task:
    """The task, whose last message of the user begins later."""
    messages = list(_messages(long.task))
    place = max((n for n, said in enumerate(messages) if said.role == "user"), default=None)
    over = long.tokens - most
    for _ in range(_TRIES):
        if place is None or messages[place].images:
            break
        ids = tokenizer.encode(messages[place].content, add_special_tokens=False)
        if over >= len(ids):
            break
        content = tokenizer.decode(ids[over:])
        messages[place] = replace(messages[place], content=content)
        over = len(chat.render_prompt(messages)) - most
        if over <= 0:
            prompt = content if isinstance(long.task.prompt, str) else tuple(messages)
            return replace(long.task, prompt=prompt)
    raise DataError(
        f"the prompt of task {long.place + 1} ({long.task.id!r}) has {long.tokens} tokens and "
        f"cannot be cut to dataset.max_prompt_tokens ({most}): the last message of the user is too "
        "short for that, or holds images; raise the limit, or set dataset.long_prompts: drop"
    )


def check_labels(sets: TaskSets, plan: RolloutPlan) -> None:
    """Refuse data sets in which some tasks lack a label that their environment surely needs.

    Where it may do without, there is a warning. A data set without any label is as good as one
    with: then nothing is read of it. An empty text is a label.

    Args:
        sets: tasks of the run.
        plan: names the environment and the reward functions, whose source tells what they read.

    Raises:
        DataError: names the data set and its tasks without a label.
    """
    for kind, tasks in sets.by_kind().items():
        lacking = [place for place, task in enumerate(tasks) if task.label is None]
        if not lacking or len(lacking) == len(tasks):
            continue
        text = (
            f"{kind}: {len(lacking)} of {len(tasks)} tasks have no label, {_named(tasks, lacking)}"
        )
        if reader := next(_readers(plan), None):
            raise DataError(f"{text}, and {reader} needs it; give them one, or leave them out")
        logger.warning("%s", text)


def _named(tasks: Sequence[Task], places: Sequence[int]) -> str:
    return some_of((f"task {place + 1} ({tasks[place].id!r})" for place in places), _NAMED)


def _readers(plan: RolloutPlan) -> Iterator[str]:
    """Code that cannot do without a label."""
    functions = plan.reward.functions.items()
    targets = {"env.target": plan.env.target} | {
        f"reward.functions.{name}": item.target for name, item in functions
    }
    for key, target in targets.items():
        try:
            found = resolve(target, base=plan.base)
        except AgentrlError:
            continue  # reported where it is needed
        if needs_label(found):
            yield f"{key} {target}"
