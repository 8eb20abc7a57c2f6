"""A real browser on the real inspector, showing real recorded runs.

Whatever a test does, the page may write no error into the console, ask no other origin, and open
no dialog: the fixture `page` looks at the end of each.
"""

from __future__ import annotations

import shutil
from collections.abc import Generator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.inspect.browser.inspector_page import inspecting, run_id, watched


@pytest.fixture(scope="session")
def served(recorded_run: Path, second_run: Path) -> Generator[str]:
    with inspecting(recorded_run, second_run) as address:
        yield address


@pytest.fixture(scope="module")
def browser() -> Generator[Browser]:
    # Not for the session: while Playwright is there, its event loop counts as running, and no test
    # of the same process could start one of its own. Those of a module with a browser do not.
    names = ("chromium", "chromium-browser", "google-chrome")
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        pytest.skip(f"no browser to drive: none of {', '.join(names)} is installed")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def page(browser: Browser) -> Generator[Page]:
    with watched(browser) as page:
        yield page


@pytest.fixture
def run(page: Page, served: str) -> str:
    return run_id(page, served, "recorded")
