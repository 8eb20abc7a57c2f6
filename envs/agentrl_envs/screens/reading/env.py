"""The environment: a chart or table in a picture, a tool to see parts of it, a tool to answer.

On the higher levels the print is too small to be read in the first picture; `zoom` shows a part of
it as large as it was drawn. The first answer ends the episode, so nothing is gained by trying.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence

from agentrl.env import Action, AgentInstance, Observation, StepResult
from agentrl.errors import ConfigError, ToolError
from agentrl.images import message
from agentrl.tool import FunctionTool
from agentrl.types import Explanation, Task, ToolCall, ToolResult
from agentrl_envs.screens.reading.draw import (
    HEIGHT,
    WIDTH,
    parts_to_read,
    shown_picture,
    zoomed_picture,
)
from agentrl_envs.screens.reading.sheets import LEVELS, Sheet, draw_sheet
from agentrl_envs.screens.shared import blank_of, check_tasks, draw_tasks, drawn_level

_MODULE = "agentrl_envs.screens.reading"
_NUMBER = re.compile(r"[+-]?\d{1,9}(?:\.0{1,9})?", re.ASCII)
_LONGEST = 40
"""Characters of an answer; a longer one is wrong."""


class ReadingTask(AgentInstance):
    """Answer one question about a chart or table that is only in the picture.

    Args:
        turns: of the model; the episode ends after that many.
        blank: show white pictures of the same size, as a control: nothing can be learned then.
    """

    reward_range = (0.0, 1.0)

    def __init__(self, turns: int = 8, blank: bool = False) -> None:
        if turns < 1:
            raise ConfigError(f"ReadingTask needs turns >= 1, got {turns}")
        self._turns = turns
        self._blank = blank

    async def reset(self, task: Task) -> Observation:
        """Show the picture and the question.

        Raises:
            ValueError: the task has no level and seed in its metadata.
        """
        self._sheet = _sheet_of(task)
        self._left = self._turns
        self._answer: str | None = None
        self._zooms = 0
        picture = await asyncio.to_thread(shown_picture, self._sheet)
        shown = blank_of(picture) if self._blank else picture
        tools = (FunctionTool(self.zoom), FunctionTool(self.answer))
        return Observation(content=(message("user", [shown, str(task.prompt)]),), tools=tools)

    async def zoom(self, x: int, y: int, w: int, h: int) -> ToolResult:
        """Show a part of the picture, enlarged.

        Args:
            x: Pixels from the left edge of the first picture to the part.
            y: Pixels from its top edge to the part.
            w: Width of the part in pixels.
            h: Height of the part in pixels.
        """
        if not (0 <= x < WIDTH and 0 <= y < HEIGHT and 0 < w <= WIDTH - x and 0 < h <= HEIGHT - y):
            raise ToolError(
                f"Error: the part x={_short(x)}, y={_short(y)}, w={_short(w)}, h={_short(h)} is "
                f"not inside of the picture, which is {WIDTH} wide and {HEIGHT} high."
            )
        self._zooms += 1
        picture = await asyncio.to_thread(zoomed_picture, self._sheet, x, y, w, h)
        shown = blank_of(picture) if self._blank else picture
        return ToolResult(text=f"x={x}, y={y}, w={w}, h={h}:", images=(shown,))

    async def answer(self, value: str) -> ToolResult:
        """Give the answer, a number or a name. The first one counts.

        Args:
            value: The number or the name alone.
        """
        if self._answer is None:
            self._answer = value
        return ToolResult(text="Answered.")

    async def step(self, action: Action) -> StepResult:
        """End with the first answer; go on while the model zooms."""
        self._left -= 1
        if self._answer is not None:
            solved = is_answer(self._answer, self._sheet.answer)
            return self._end(solved, f"It answered {self._answer[:_LONGEST]!r}.")
        if self._left <= 0 or action.last:
            return self._end(False, "It gave no answer.")
        if action.tool_calls:
            return StepResult()
        return StepResult(environment_feedback="Call zoom to see more, or answer.")

    def solution(self, task: Task) -> list[ToolCall]:
        """Zooms into what the question is about, where it is small, and the answer."""
        sheet = _sheet_of(task)
        calls = [("zoom", dict(zip("xywh", part, strict=True))) for part in parts_to_read(sheet)]
        return [
            ToolCall(id="", name=name, arguments=arguments, raw="")
            for name, arguments in [*calls, ("answer", {"value": sheet.answer})]
        ]

    def _end(self, solved: bool, reason: str) -> StepResult:
        return StepResult(
            rewards=float(solved),
            done=True,
            scores=float(solved),
            extra_logs={
                "solved": float(solved),
                "answered": float(self._answer is not None),
                "zooms": float(self._zooms),
            },
            explanation=Explanation(reference=self._sheet.answer, reason=reason),
        )


def is_answer(said: str, right: str) -> bool:
    """True for the right number or name, and nothing beside it.

    Example:
        >>> is_answer(" 35.0 ", "35"), is_answer("35 or 40", "35"), is_answer("ada", "Ada")
        (True, False, True)
    """
    if len(said) > _LONGEST:
        return False
    word = said.strip().strip(".'\"")
    if _NUMBER.fullmatch(word) and _NUMBER.fullmatch(right):
        return float(word) == float(right)
    return word.lower() == right.lower()


def make_tasks(
    split: str = "train", n: int = 256, seed: int = 0, levels: Sequence[int] = (1,)
) -> list[Task]:
    """Draw charts and tables with questions; the same arguments give the same ones everywhere.

    Args:
        split: any name; two of them share no sheet but by chance.
        n: how many, over the levels in turn.
        seed: draws them.
        levels: of `LEVELS`.

    Raises:
        ConfigError: an unknown level, or n below 1.
    """
    check_tasks(_MODULE, n=n, levels=levels, known=LEVELS)
    return draw_tasks("reading", _asked, split=split, n=n, seed=seed, levels=levels)


def _asked(level: int, seed: str) -> tuple[str, str]:
    sheet = draw_sheet(level=level, seed=seed)
    return f"{sheet.question} Answer with the number or the name alone.", sheet.answer


def _sheet_of(task: Task) -> Sheet:
    level, seed = drawn_level(task, _MODULE, LEVELS)
    return draw_sheet(level=level, seed=seed)


def _short(number: int) -> str:
    return str(number) if abs(number) < 10**6 else "(a huge number)"
