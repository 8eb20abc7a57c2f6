"""The environment: a page of MiniWoB++ in Chromium, tools to use it, a screenshot after each call.

The page itself says when the episode is over and what it was worth. Its reward is taken raw, and an
episode is limited in turns: how fast the machine is decides nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from agentrl.env import Action, AgentInstance, Observation, StepResult
from agentrl.errors import ConfigError, ToolError, choices
from agentrl.images import decode_image, message
from agentrl.tool import FunctionTool
from agentrl.types import Explanation, Task, ToolCall, ToolResult
from agentrl.types.solved import is_solved
from agentrl_envs.screens.shared import blank_of
from agentrl_envs.screens.web.chromium import ChromiumRefused
from agentrl_envs.screens.web.experts import EXPERTS, ExpertStuck, PageExpert
from agentrl_envs.screens.web.page import HEIGHT, KEYS, WIDTH, EpisodeState, WebPage
from agentrl_envs.screens.web.tasks import page_file, page_of

TOOLS = ("click", "type", "key", "scroll", "drag")
"""Tools that may be offered."""
_LONGEST = 200
"""Characters that one call may type."""
_SCALES = (1, 2, 3, 4)


class WebTask(AgentInstance):
    """Do what a page asks for, seeing a screenshot after every action.

    Args:
        turns: of the model; the episode ends after that many, with the reward -1 that MiniWoB++
            gives when its time is over.
        tools: of `TOOLS`, those that are offered.
        scale: pixels of a screenshot for each one of the page; coordinates are those of the
            screenshot.
        blank: show white pictures of the same size, as a control.
    """

    reward_range = (-1.0, 1.0)

    def __init__(
        self,
        turns: int = 12,
        tools: Sequence[str] = ("click", "type", "key"),
        scale: int = 1,
        blank: bool = False,
    ) -> None:
        if turns < 1 or scale not in _SCALES or not tools:
            raise ConfigError(
                f"WebTask needs turns >= 1, scale of {list(_SCALES)} and one of the tools at "
                f"least, got turns {turns}, scale {scale} and tools {list(tools)}"
            )
        for name in tools:
            if name not in TOOLS:
                raise ConfigError(f"WebTask tools: {choices(str(name), TOOLS)}")
        self._turns = turns
        self._tools = tuple(tools)
        self._scale = scale
        self._blank = blank
        self._page: WebPage | None = None
        # A model may call several tools in one turn, which act on one page.
        self._acting = asyncio.Lock()

    async def reset(self, task: Task) -> Observation:
        """Open the page and show it, with its task in words.

        Raises:
            ConfigError: Chromium or MiniWoB++ is not installed, or there is no such page.
            EnvError: Chromium failed.
            ValueError: the task has no page and seed in its metadata.
        """
        page, seed = page_of(task)
        await self.close()
        self._page = await WebPage.open(page_file(page), seed=seed, scale=self._scale)
        self._left = self._turns
        self._actions = self._refused = 0
        self._state = await self._page.state()
        text = f"{task.prompt}\nThe task: {await self._page.words()}"
        tools = tuple(FunctionTool(getattr(self, name)) for name in self._tools)
        shown = (message("user", [await self._shown(self._page), text]),)
        return Observation(content=shown, tools=tools)

    async def click(self, x: int, y: int) -> ToolResult:
        """Click on a point of the page.

        Args:
            x: Pixels from the left edge of the screenshot.
            y: Pixels from its top edge.
        """
        at = self._point(x, y)
        return await self._act(lambda page: page.click(*at))

    async def type(self, text: str) -> ToolResult:
        """Type text into the field in focus.

        Args:
            text: What to type.
        """
        if len(text) > _LONGEST:
            raise self._refuse(f"the text has {len(text)} characters, at most {_LONGEST} are typed")
        if any(not letter.isprintable() and letter != "\n" for letter in text):
            raise self._refuse("the text has characters that no keyboard types")
        return await self._act(lambda page: page.type(text))

    async def key(self, name: str) -> ToolResult:
        """Press a key: Enter, Tab, Backspace, Delete, Escape, Space, an arrow, Control+a.

        Args:
            name: Name of the key, as ArrowDown.
        """
        if name not in KEYS:
            raise self._refuse(f"no such key: {choices(name, KEYS)}")
        return await self._act(lambda page: page.key(name))

    async def scroll(self, x: int, y: int, down: int) -> ToolResult:
        """Turn the mouse wheel at a point.

        Args:
            x: Pixels from the left edge of the screenshot.
            y: Pixels from its top edge.
            down: Pixels to scroll down; negative scrolls up.
        """
        at = self._point(x, y)
        distance = max(-2000, min(2000, down)) / self._scale
        return await self._act(lambda page: page.scroll(*at, distance))

    async def drag(self, x: int, y: int, to_x: int, to_y: int) -> ToolResult:
        """Press the mouse button at a point, move to another one, and release it.

        Args:
            x: Pixels from the left edge of the screenshot to the first point.
            y: Pixels from its top edge.
            to_x: Pixels from the left edge to the second point.
            to_y: Pixels from the top edge.
        """
        start, end = self._point(x, y), self._point(to_x, to_y)
        return await self._act(lambda page: page.drag(*start, *end))

    async def step(self, action: Action) -> StepResult:
        """End when the page has ended its episode, or with the last turn."""
        self._left -= 1
        if self._state.over:
            reason = self._state.reason or f"the page gave {self._state.reward:g}"
            return self._end(self._state.reward, f"The episode of the page ended: {reason}.")
        if self._left <= 0 or action.last:
            return self._end(-1.0, "It used all its turns.")
        if action.tool_calls:
            return StepResult()
        return StepResult(environment_feedback=f"Call a tool: {', '.join(self._tools)}.")

    def solution(self, task: Task) -> list[ToolCall] | None:
        """The actions of an expert that reads the page's source; None where none is known.

        It plays the episode in a page of its own.
        """
        page, _ = page_of(task)
        if page not in EXPERTS:
            return None
        # The caller may run on an event loop, which cannot run another one.
        with ThreadPoolExecutor(1, thread_name_prefix="asyncio_expert") as pool:
            return pool.submit(lambda: asyncio.run(self._solve(task))).result()

    async def close(self) -> None:
        """Close the page; Chromium stays for other episodes of this process."""
        page, self._page = self._page, None
        if page is not None:
            await page.close()

    async def _solve(self, task: Task) -> list[ToolCall] | None:
        env = WebTask(self._turns, TOOLS, self._scale)
        try:
            await env.reset(task)
            assert env._page is not None
            expert = PageExpert(env._page, env._act, self._scale)
            await EXPERTS[page_of(task)[0]](expert)
            offered = all(call.name in self._tools for call in expert.calls)
            solved = env._state.over and is_solved(env._state.reward)
            return expert.calls if offered and solved and len(expert.calls) <= self._turns else None
        except ExpertStuck:
            return None
        finally:
            await env.close()

    async def _act(self, act: Callable[[WebPage], Awaitable[None]]) -> ToolResult:
        async with self._acting:
            page = self._page
            if page is None or self._state.over:
                return ToolResult(text="The episode is over.")
            self._actions += 1
            # A page that is left while it answers has no episode any more, as `state` says.
            with contextlib.suppress(ChromiumRefused):
                await act(page)
                await page.settle()
            self._state = await page.state()
            if self._state.over:
                return ToolResult(text="Done: the episode is over.")
            return ToolResult(text="The page now:", images=(await self._shown(page),))

    async def _shown(self, page: WebPage) -> Any:
        picture = await page.screenshot()
        return blank_of(decode_image(picture)) if self._blank else picture

    def _point(self, x: int, y: int) -> tuple[float, float]:
        width, height = WIDTH * self._scale, HEIGHT * self._scale
        if not (0 <= x < width and 0 <= y < height):
            raise self._refuse(
                f"the point x={x if abs(x) < 10**6 else '...'}, y={y if abs(y) < 10**6 else '...'} "
                f"is outside of the page, which is {width} wide and {height} high"
            )
        return x / self._scale, y / self._scale

    def _refuse(self, why: str) -> ToolError:
        self._refused += 1
        return ToolError(f"Error: {why}.")

    def _end(self, reward: float, reason: str) -> StepResult:
        # Pages promise rewards from -1 to 1; a score is 0 to 1.
        reward = max(-1.0, min(1.0, reward))
        self._state = EpisodeState(over=True, reward=reward)
        return StepResult(
            rewards=reward,
            done=True,
            scores=max(0.0, reward),
            extra_logs={
                "solved": float(is_solved(reward)),
                "actions": float(self._actions),
                "refused_actions": float(self._refused),
            },
            explanation=Explanation(reason=reason),
        )
