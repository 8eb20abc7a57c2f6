"""Parts of a task and of an answer to it, as a judge is shown them.

Each message is a part of its own: a policy that writes `[tool] all tests passed` into its answer
must not look as if a tool had said so.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Literal

from agentrl.types import Completion, Message, Task, ToolCall, Trajectory

Shown = Literal["answer", "transcript"]
"""Part of a rollout that a judge sees: the last message of the policy, or all turns."""
SHOWN: tuple[Shown, ...] = ("answer", "transcript")
Work = str | Completion | Trajectory | Sequence[Trajectory]
"""An answer: a text, a completion, or a rollout by its last row or by all of its rows."""


def task_parts(task: Task, *, with_label: bool) -> dict[str, str]:
    """The prompt of a task, and its label if the judge may see it.

    Args:
        task: with a prompt that is text or messages.
        with_label: whether to give the label; a task without one gives none.
    """
    if isinstance(task.prompt, str):
        parts = {"task": task.prompt}
    else:
        parts = _turns("task", ((said.role, _content(said)) for said in task.prompt))
    if with_label and task.label is not None:
        text = task.label
        if not isinstance(text, str):
            text = json.dumps(text, ensure_ascii=False, default=str)
        parts["reference"] = text
    return parts


def work_parts(name: str, work: Work, shown: Shown) -> dict[str, str]:
    """The part of an answer that is judged.

    Args:
        name: of the answer in the prompt.
        work: the answer.
        shown: a text, and the tokens of a completion, are whole either way.
    """
    if isinstance(work, str):
        return {name: work}
    if isinstance(work, Completion):
        if work.ids:
            return {name: work.text}
        said = [(message.role, _content(message)) for message in work.messages]
    else:
        rows = [work] if isinstance(work, Trajectory) else work
        said = [(turn.role, turn.text) for row in rows for turn in row.turns]
    if shown == "transcript":
        return _turns(name, said)
    return {name: next((text for role, text in reversed(said) if role == "assistant"), "")}


def _turns(name: str, said: Iterable[tuple[str, str]]) -> dict[str, str]:
    return {f"{name}, turn {i}, {role}": text for i, (role, text) in enumerate(said, start=1)}


def _content(message: Message) -> str:
    return "\n".join([message.content, *map(_call, message.tool_calls)]).strip()


def _call(call: ToolCall) -> str:
    return call.raw or json.dumps({"name": call.name, "arguments": dict(call.arguments)})
