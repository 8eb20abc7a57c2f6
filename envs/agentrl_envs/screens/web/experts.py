"""Scripted experts for some pages of MiniWoB++: they read the page's source, which no model sees.

An expert is a coroutine that acts on a page through a `PageExpert`, which writes down each action
as the tool call that a model would make.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from agentrl.types import ToolCall, ToolResult
from agentrl_envs.screens.web.page import HEIGHT, WIDTH, WebPage

_FIND = """(selector, text, width, height) => {
  const parts = [0.5, 0.1, 0.3, 0.7, 0.9];
  for (const element of document.querySelectorAll(selector)) {
    const own = element.textContent.replace(/\\s+/g, ' ').trim();
    // A link over two lines has a middle that is not on it.
    const box = element.getClientRects()[0];
    if (!box || (text !== null && own !== text)) {
      continue;
    }
    // Some lie below others or partly outside of the page: take a point that is really on it.
    for (const down of parts) {
      for (const right of parts) {
        const x = Math.floor(box.left + box.width * right);
        const y = Math.floor(box.top + box.height * down);
        if (x >= 0 && x < width && y >= 0 && y < height
            && element.contains(document.elementFromPoint(x, y))) {
          return [x, y];
        }
      }
    }
  }
  return null;
}"""
_TEXTS = """selector => [...document.querySelectorAll(selector)]
  .map(element => element.textContent.replace(/\\s+/g, ' ').trim())"""
_QUOTED = re.compile(r'"([^"]*)"')


class ExpertStuck(Exception):
    """The page does not show what the expert looks for: some episodes cannot be solved."""


class PageExpert:
    """The hands of an expert on one page."""

    def __init__(
        self,
        page: WebPage,
        act: Callable[[Callable[[WebPage], Awaitable[None]]], Awaitable[ToolResult]],
        scale: int,
    ) -> None:
        """Take the page, what does an action on it, and the pixels for each one of the page."""
        self.page = page
        self.calls: list[ToolCall] = []
        """What was done, as a model would call it."""
        self._act = act
        self._scale = scale

    async def words(self) -> str:
        """The task in words."""
        return await self.page.words()

    async def quoted(self) -> list[str]:
        """The parts of the task that stand between quotation marks."""
        return _QUOTED.findall(await self.words())

    async def texts(self, selector: str) -> list[str]:
        """The texts of all elements, without their line breaks."""
        return await self.page.ask(_TEXTS, selector)

    async def find(self, selector: str, text: str | None = None) -> tuple[int, int] | None:
        """A point of the first element that can be clicked on, in pixels of the screenshot."""
        found = await self.page.ask(_FIND, selector, text, WIDTH, HEIGHT)
        return None if found is None else (found[0] * self._scale, found[1] * self._scale)

    async def click(self, selector: str, text: str | None = None) -> None:
        """Click on the first element that can be.

        Raises:
            ExpertStuck: there is none.
        """
        at = await self.find(selector, text)
        if at is None:
            raise ExpertStuck(f"no {selector!r} with the text {text!r} can be clicked on")
        x, y = at
        self._write("click", x=x, y=y)
        await self._act(lambda page: page.click(x / self._scale, y / self._scale))

    async def type(self, text: str) -> None:
        """Type a text into the field in focus."""
        self._write("type", text=text)
        await self._act(lambda page: page.type(text))

    def _write(self, name: str, **arguments: Any) -> None:
        self.calls.append(ToolCall(id="", name=name, arguments=arguments, raw=""))


Expert = Callable[[PageExpert], Awaitable[None]]


def _clicks(*selectors: str) -> Expert:
    """Click on one element after the other."""

    async def expert(page: PageExpert) -> None:
        for selector in selectors:
            await page.click(selector)

    return expert


def _click_quoted(selector: str) -> Expert:
    """Click on the element whose text the task quotes."""

    async def expert(page: PageExpert) -> None:
        await page.click(selector, (await page.quoted())[0])

    return expert


def _type_quoted(*fields: str) -> Expert:
    """Type what the task quotes, in this order, into fields, and submit."""

    async def expert(page: PageExpert) -> None:
        quoted = await page.quoted()
        for number, field in enumerate(fields):
            await page.click(field)
            await page.type(quoted[min(number, len(quoted) - 1)])
        await page.click("#subbtn")

    return expert


async def _tab(page: PageExpert) -> None:
    number = (await page.words()).rstrip(".")[-1]
    await page.click(f'a[href="#tabs-{number}"]')


async def _dialog_button(page: PageExpert) -> None:
    (label,) = await page.quoted()
    if label == "x":
        await page.click(".ui-dialog-titlebar button")
    else:
        await page.click(".ui-dialog-buttonset button", label)


async def _select(page: PageExpert) -> None:
    words = (await page.words()).removeprefix("Select ").removesuffix(" and click Submit.")
    for name in words.split(", "):
        if name != "nothing":
            await page.click("label", name)
    await page.click("#subbtn")


async def _search(page: PageExpert, heads: str) -> None:
    """Open one part after the other until the link is shown."""
    (label,) = await page.quoted()
    for head in await page.texts(heads):
        if await page.find(".alink", label) is None:
            await page.click(heads, head)
    await page.click(".alink", label)


async def _search_tabs(page: PageExpert) -> None:
    await _search(page, ".ui-tabs-nav a")


async def _search_sections(page: PageExpert) -> None:
    await _search(page, "h3")


async def _read_table(page: PageExpert) -> None:
    cells = await page.texts("#tab td")
    table = dict(zip(cells[::2], cells[1::2], strict=True))
    # Two labels ask for two values; without them the task names the one.
    labels = await page.texts("#ll1, #ll2")
    asked = [label.removesuffix(":") for label in labels] or re.findall(
        "value of (.+) into", await page.words()
    )
    fields = ["#tt1", "#tt2"] if labels else ["#tt"]
    for field, name in zip(fields, asked, strict=True):
        await page.click(field)
        await page.type(table[name])
    await page.click("#subbtn")


async def _arithmetic(page: PageExpert) -> None:
    (problem,) = await page.texts("#math-problem")
    found = re.match(r"(\d+) ?([-+x]) ?(\d+)", problem)
    assert found is not None
    left, right = int(found[1]), int(found[3])
    await page.click("#math-answer")
    await page.type(str({"+": left + right, "-": left - right, "x": left * right}[found[2]]))
    await page.click("#subbtn")


EXPERTS: Mapping[str, Expert] = {
    "click-test": _clicks("#subbtn"),
    "click-test-2": _clicks("#subbtn"),
    "click-button": _click_quoted("#area button"),
    "click-dialog": _clicks(".ui-dialog-titlebar button"),
    "focus-text": _clicks("#tt"),
    "click-link": _click_quoted(".alink"),
    "click-tab": _tab,
    "click-dialog-2": _dialog_button,
    "click-button-sequence": _clicks("#subbtn", "#subbtn2"),
    "enter-text": _type_quoted("#tt"),
    "enter-text-dynamic": _type_quoted("#tt"),
    "click-option": _select,
    "click-checkboxes": _select,
    "enter-password": _type_quoted("#password", "#verify"),
    "login-user": _type_quoted("#username", "#password"),
    "click-collapsible": _clicks("h3", "#subbtn"),
    "click-tab-2": _search_tabs,
    "click-collapsible-2": _search_sections,
    "read-table": _read_table,
    "read-table-2": _read_table,
    "simple-arithmetic": _arithmetic,
}
"""Experts by page."""
