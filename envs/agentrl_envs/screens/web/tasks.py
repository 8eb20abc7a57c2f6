"""Tasks on the pages of MiniWoB++: which pages there are, and episodes of them by seed.

The pages are files of the package `miniwob`. Its Python part, which drives a browser through
Selenium, is not imported and need not be installed with what it asks for.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path

from agentrl.errors import ConfigError, choices
from agentrl.types import Task
from agentrl_envs.screens.shared import check_tasks

_MODULE = "agentrl_envs.screens.web"
LEVELS: Mapping[int, tuple[str, ...]] = {
    1: ("click-test", "click-test-2", "click-button", "click-dialog", "focus-text"),
    2: ("click-link", "click-tab", "click-dialog-2", "click-button-sequence", "enter-text"),
    3: ("click-option", "click-checkboxes", "enter-password", "login-user", "click-collapsible"),
    4: ("click-tab-2", "click-collapsible-2", "read-table", "read-table-2", "simple-arithmetic"),
}
"""Pages by difficulty: one click, the right one of several, several actions, things to find."""
_PROMPT = "You use a web page by its screenshot. Call one tool each turn; you see the page again."


@functools.cache
def pages_folder() -> Path:
    """The folder with the pages of MiniWoB++.

    Raises:
        ConfigError: the package is not installed.
    """
    spec = importlib.util.find_spec("miniwob")
    if spec is None or spec.origin is None:
        raise ConfigError(
            "agentrl_envs.screens.web plays the pages of the package 'miniwob', which is not "
            "installed; install it with: pip install --no-deps miniwob==1.1.0"
        )
    return Path(spec.origin).parent / "html" / "miniwob"


def page_file(page: str) -> Path:
    """The file of a page.

    Raises:
        ConfigError: there is none of this name.
    """
    names = {path.stem: path for path in pages_folder().glob("*.html")}
    if page not in names:
        raise ConfigError(f"{_MODULE} pages: {choices(page, names)}")
    return names[page]


def page_of(task: Task) -> tuple[str, str]:
    """The page of a task and the seed of its episode.

    Raises:
        ValueError: they are not in its metadata.
    """
    page, seed = task.metadata.get("page"), task.metadata.get("seed")
    if not isinstance(page, str) or not isinstance(seed, str):
        raise ValueError(
            f"task {task.id!r}: WebTask needs a page and a seed in its metadata, got {page!r} and "
            f"{seed!r}; take tasks of {_MODULE}:make_tasks"
        )
    return page, seed


def make_tasks(
    split: str = "train",
    n: int = 256,
    seed: int = 0,
    levels: Sequence[int] = (1,),
    pages: Sequence[str] = (),
) -> list[Task]:
    """Episodes of pages; the same arguments give the same ones.

    Args:
        split: any name; two of them share no episode but by chance.
        n: how many, over the pages in turn.
        seed: draws them.
        levels: of `LEVELS`; the pages of all of them are taken.
        pages: names of pages instead, any of MiniWoB++ (not of FlightWoB).

    Raises:
        ConfigError: an unknown level or page, n below 1, or MiniWoB++ is not installed.
    """
    check_tasks(_MODULE, n=n, levels=levels, known=LEVELS)
    chosen = list(pages) or [page for level in levels for page in LEVELS[level]]
    for page in chosen:
        page_file(page)
    tasks = []
    for index in range(n):
        page = chosen[index % len(chosen)]
        tasks.append(
            Task(
                id=f"web-{split}-{seed}-{page}-{index}",
                prompt=_PROMPT,
                metadata={"family": page, "page": page, "seed": f"{seed}/{split}/{page}/{index}"},
                split=split,
            )
        )
    return tasks
