"""One page of MiniWoB++ in Chromium: its episode, what is done to it, and its screenshots.

Time goes on by `STEP_MS` with every action and stands still between them (`clock.js`), so the same
actions show the same pixels on a busy machine, and an episode has no limit in seconds.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.errors import EnvError
from agentrl_envs.screens.web.chromium import Chromium, ChromiumRefused, shared

WIDTH, HEIGHT = 160, 210
"""Pixels of every page of MiniWoB++ that are its task."""
_WINDOW_WIDTH, _WINDOW_HEIGHT = 500, 240
"""The window that MiniWoB++ itself opens; what pages place in its middle depends on it."""
STEP_MS = 600
"""Milliseconds that pass in the page with each action."""
_NO_LIMIT_MS = 10**9
_READY_TRIES = 30
_LOAD_S = 30.0
_CONTROL = 2
"""The modifier of the protocol for the key Control."""
KEYS = {
    "Enter": ("Enter", 13, "\r"),
    "Tab": ("Tab", 9, ""),
    "Backspace": ("Backspace", 8, ""),
    "Delete": ("Delete", 46, ""),
    "Escape": ("Escape", 27, ""),
    "Space": (" ", 32, " "),
    "ArrowLeft": ("ArrowLeft", 37, ""),
    "ArrowUp": ("ArrowUp", 38, ""),
    "ArrowRight": ("ArrowRight", 39, ""),
    "ArrowDown": ("ArrowDown", 40, ""),
    "Home": ("Home", 36, ""),
    "End": ("End", 35, ""),
    "PageUp": ("PageUp", 33, ""),
    "PageDown": ("PageDown", 34, ""),
    # No other shortcut: the clipboard is one for all pages.
    "Control+a": ("a", 65, ""),
}
"""Keys that can be pressed: name, virtual key code and text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeState:
    """The episode of a page, as its own scripts see it."""

    over: bool
    """The page has ended it, or was left."""
    reward: float = 0.0
    """The raw reward of MiniWoB++, between -1 and 1, without its price of time."""
    reason: str = ""
    """The page's own reason, where it gives one."""


class WebPage:
    """A page in a browser context of its own; `open` makes it."""

    def __init__(self, browser: Chromium, context: str, session: str) -> None:
        self._browser = browser
        self._context = context
        self._session = session
        self._closed = False

    @classmethod
    async def open(cls, file: Path, *, seed: str, scale: int = 1) -> WebPage:
        """Load a page and begin its episode.

        Args:
            file: of the page.
            seed: draws the episode.
            scale: pixels of a screenshot for each one of the page.

        Raises:
            ConfigError: Chromium is not installed.
            EnvError: Chromium or the page does not start.
        """
        browser = await asyncio.to_thread(shared)
        made = await browser.call("Target.createBrowserContext")
        page = cls(browser, made["browserContextId"], "")
        try:
            await page._load(file, seed, scale)
        except BaseException:
            await page.close()
            raise
        return page

    async def close(self) -> None:
        """Close it with all it holds. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._browser.forget(self._session)
        if self._browser.alive:
            # It may end at the same moment, and then nothing is left to close.
            with contextlib.suppress(EnvError):
                await asyncio.shield(
                    self._browser.call(
                        "Target.disposeBrowserContext", browserContextId=self._context
                    )
                )

    async def click(self, x: float, y: float) -> None:
        """Press and release the left button of the mouse at a point of the page."""
        await self._mouse("mouseMoved", x, y)
        await self._mouse("mousePressed", x, y, clickCount=1)
        await self._mouse("mouseReleased", x, y, clickCount=1)

    async def drag(self, x: float, y: float, to_x: float, to_y: float) -> None:
        """Press the button at one point, move, and release it at another."""
        await self._mouse("mouseMoved", x, y)
        await self._mouse("mousePressed", x, y, clickCount=1)
        for part in (0.25, 0.5, 0.75, 1.0):
            at = x + (to_x - x) * part, y + (to_y - y) * part
            await self._mouse("mouseMoved", *at, buttons=1)
        await self._mouse("mouseReleased", to_x, to_y, clickCount=1)

    async def scroll(self, x: float, y: float, down: float) -> None:
        """Turn the wheel of the mouse at a point; negative goes up."""
        await self._mouse("mouseWheel", x, y, deltaX=0, deltaY=down)

    async def type(self, text: str) -> None:
        """Press the keys of a text; a line break is Enter."""
        for letter in text:
            if letter == "\n":
                await self.key("Enter")
                continue
            await self._call(
                "Input.dispatchKeyEvent",
                type="keyDown",
                key=letter,
                text=letter,
                unmodifiedText=letter,
            )
            await self._call("Input.dispatchKeyEvent", type="keyUp", key=letter)

    async def key(self, name: str) -> None:
        """Press and release one of `KEYS`."""
        key, code, text = KEYS[name]
        pressed: dict[str, Any] = {
            "key": key,
            "code": "KeyA" if name == "Control+a" else name,
            "windowsVirtualKeyCode": code,
            "modifiers": _CONTROL if name.startswith("Control+") else 0,
        }
        if text:
            await self._call("Input.dispatchKeyEvent", type="keyDown", text=text, **pressed)
        else:
            commands = ["selectAll"] if name == "Control+a" else []
            await self._call(
                "Input.dispatchKeyEvent", type="rawKeyDown", commands=commands, **pressed
            )
        await self._call("Input.dispatchKeyEvent", type="keyUp", **pressed)

    async def settle(self) -> None:
        """Wait until `STEP_MS` have passed in the page, and its images are there."""
        await self._evaluate(
            f"agentrlClock.advance({STEP_MS}); Promise.all([...document.images]"
            ".map(image => image.decode().catch(() => 0))).then(() => 0)"
        )

    async def state(self) -> EpisodeState:
        """The state of the episode now; a page that was left has lost it."""
        try:
            state = await self._evaluate(
                "window.agentrlBegun === true"
                " && [WOB_DONE_GLOBAL, WOB_RAW_REWARD_GLOBAL, String(WOB_REWARD_REASON || '')]"
            )
        except ChromiumRefused:
            state = None
        if not state:
            return EpisodeState(over=True, reward=-1.0, reason="the page was left")
        over, reward, reason = state
        return EpisodeState(over=bool(over), reward=float(reward or 0.0), reason=reason[:200])

    async def words(self) -> str:
        """The task of the episode in words."""
        return str(await self._evaluate("core.getUtterance()"))

    async def ask(self, script: str, *arguments: Any) -> Any:
        """The value of a function of JavaScript in the page, for an expert and not for a model."""
        given = ", ".join(json.dumps(argument) for argument in arguments)
        return await self._evaluate(f"({script})({given})")

    async def screenshot(self) -> bytes:
        """The page as a PNG file."""
        shot = await self._call(
            "Page.captureScreenshot",
            format="png",
            optimizeForSpeed=True,
            clip={"x": 0, "y": 0, "width": WIDTH, "height": HEIGHT, "scale": 1},
        )
        return base64.b64decode(shot["data"])

    async def _load(self, file: Path, seed: str, scale: int) -> None:
        made = await self._browser.call(
            "Target.createTarget",
            url="about:blank",
            browserContextId=self._context,
            width=_WINDOW_WIDTH,
            height=_WINDOW_HEIGHT,
        )
        attached = await self._browser.call(
            "Target.attachToTarget", targetId=made["targetId"], flatten=True
        )
        self._session = attached["sessionId"]
        await self._call("Page.enable")
        await self._call("Page.addScriptToEvaluateOnNewDocument", source=_clock())
        await self._call(
            "Emulation.setDeviceMetricsOverride",
            width=_WINDOW_WIDTH,
            height=_WINDOW_HEIGHT,
            deviceScaleFactor=scale,
            mobile=False,
        )
        # Otherwise only the page that was opened last would have a text field in focus.
        await self._call("Emulation.setFocusEmulationEnabled", enabled=True)
        await self._call("Emulation.setTimezoneOverride", timezoneId="UTC")
        loaded = self._browser.expect("Page.loadEventFired", self._session)
        await self._call("Page.navigate", url=file.as_uri())
        try:
            async with asyncio.timeout(_LOAD_S):
                await asyncio.wrap_future(loaded)
        except TimeoutError:
            raise EnvError(f"the page {file.stem} did not load within {_LOAD_S:g} s") from None
        await self._evaluate(
            f"Math.seedrandom({json.dumps(seed)}); core.EPISODE_MAX_TIME = {_NO_LIMIT_MS};"
            "core.startEpisodeReal(); window.agentrlBegun = true; 0"
        )
        for _ in range(_READY_TRIES):
            await self.settle()
            if await self._evaluate("WOB_TASK_READY"):
                return
        raise EnvError(f"the page {file.stem} does not become ready")

    async def _mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        button = "none" if kind in ("mouseMoved", "mouseWheel") else "left"
        if more.get("buttons"):
            button = "left"
        await self._call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button=button, **more)

    async def _evaluate(self, script: str) -> Any:
        answer = await self._call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            thrown = answer["exceptionDetails"]
            text = thrown.get("exception", {}).get("description") or thrown.get("text")
            raise ChromiumRefused(f"a script failed in the page: {str(text)[:300]}")
        return answer["result"].get("value")

    async def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return await self._browser.call(method, self._session, **parameters)


@functools.cache
def _clock() -> str:
    return Path(__file__).with_name("clock.js").read_text(encoding="utf-8")
