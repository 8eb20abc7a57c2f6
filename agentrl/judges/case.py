"""One case of a judge: works on a task, quoted below its instructions, and the one verdict on them.

instructions   system message, in which the mark of the case cannot stand
case           task and works, each fenced with the mark (`quote`)
last words     behind the case, so that nothing in a work has the last word
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, TypedDict, TypeVar

from agentrl.judges import quote
from agentrl.judges.material import Shown, Work, task_parts, work_parts
from agentrl.served import ServedModel, ServedSettings
from agentrl.types import Task

Verdict = TypeVar("Verdict")

MAX_CHARS = 24_000
"""Default of `max_chars` where a case has one or two works."""


class CaseOptions(TypedDict, total=False):
    """Options that every kind of judge has."""

    show: Shown
    """Part of a rollout that is judged: `answer` unless given."""
    with_label: bool
    """Whether the judge sees the label of the task: no unless given."""
    max_chars: int
    """Most characters of each work, and as many of the task; of longer ones the middle is left
    out."""
    where: str
    """Key of the run file, for messages."""


def options_of(args: Mapping[str, Any]) -> CaseOptions:
    """The options among the arguments of a run file."""
    return {
        "show": args["show"],
        "with_label": bool(args["with_label"]),
        "max_chars": args["max_chars"],
        "where": "model",
    }


class CaseJudge:
    """Asks a served model for a verdict on the works of a case; each kind of judge sets which."""

    def __init__(
        self,
        settings: ServedSettings,
        instructions: str,
        *,
        show: Shown = "answer",
        with_label: bool = False,
        max_chars: int = MAX_CHARS,
        where: str = "",
    ) -> None:
        """Set who judges, by which instructions; nothing is asked yet.

        Args:
            settings: of the model.
            instructions: the system message.
            show, with_label, max_chars, where: see `CaseOptions`.

        Raises:
            ConfigError: the variable with the key is not set.
        """
        self.model = ServedModel(settings, where=where)
        self.show: Shown = show
        self._with_label = with_label
        self._max_chars = max_chars
        self._instructions = instructions
        self._reader = settings.model

    async def ask(
        self,
        task: Task,
        works: Mapping[str, Work],
        *,
        last: str,
        read: Callable[[str, str], Verdict],
        schema: dict[str, Any],
    ) -> Verdict:
        """The verdict on works, shown by name in this order.

        Args:
            task: that they answer.
            works: by their name in the prompt.
            last: words behind the case.
            read: reads the verdict from what the model says and the mark of the case.
            schema: of the verdict.

        Raises:
            ServedModelError: the model could not be asked, or gave no verdict of this case.
        """
        asked = task_parts(task, with_label=self._with_label)
        shown = (work_parts(name, work, self.show) for name, work in works.items())
        text, mark = quote.quoted((asked, *shown), self._max_chars, model=self._reader)
        messages = [
            {"role": "system", "content": self._instructions},
            {"role": "user", "content": text + last},
        ]
        return await self.model.ask(messages, lambda said: read(said, mark), schema=schema)


async def all_verdicts(asking: Iterable[Coroutine[Any, Any, Verdict]]) -> list[Verdict]:
    """The verdicts of several cases, in order, asked at the same time.

    Raises:
        ServedModelError: of the first case that failed, once all have ended.
    """
    found = await asyncio.gather(*asking, return_exceptions=True)
    for verdict in found:
        if isinstance(verdict, BaseException):
            raise verdict
    return [verdict for verdict in found if not isinstance(verdict, BaseException)]


def verdict_schema(properties: Mapping[str, Any]) -> dict[str, Any]:
    """JSON schema of a verdict: the mark of its case, then these fields in this order."""
    return closed_object({quote.MARK_KEY: {"type": "string"}, **properties})


def closed_object(properties: Mapping[str, Any]) -> dict[str, Any]:
    """JSON schema of an object with exactly these fields."""
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }
