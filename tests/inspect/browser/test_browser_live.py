"""The page of a run that goes on, seen through a proxy: it follows without being loaded again."""

from __future__ import annotations

import fcntl
import json
import re
import time
from pathlib import Path

from playwright.sync_api import Browser, expect

from tests.inspect.browser.inspector_page import (
    at,
    first_group,
    inspecting,
    opened,
    proxied,
    run_id,
    watched,
)
from tests.inspect.synthetic import write_live

BASE, NAME = "/team/runs", "runs.example.org"
OPTIONS = ("--base-path", BASE, "--allow-host", NAME)
HOSTILE = "<img src=x onerror=alert(1)> \u202etask"


def test_a_running_run_is_followed_through_a_proxy(browser: Browser, run_copy: Path) -> None:
    """Fails if an address misses the base path, the state is drawn once only, or a run whose
    process has ended goes on on the page."""
    oldest = {"rollout_id": "step-5/0001-x/2", "task_id": HOSTILE, "turn": 7, "age_s": 75.0,
              "waits_for": "tool", "waits_s": 61.0, "engine": "vllm-0"}  # fmt: skip
    waits = {"model": {"count": 2, "longest_s": 4.5}, "tool": {"count": 1, "longest_s": 61.0}}
    # Younger, and so in the second place, although it waits longer.
    young = oldest | {"task_id": "young", "age_s": 62.0, "waits_s": 62.0}
    (run_copy / "result.json").unlink()
    with (
        inspecting(run_copy, options=OPTIONS) as address,
        proxied(address, BASE, NAME) as served,
        watched(browser) as page,
        (run_copy / ".lock").open("a") as lock,
    ):
        fcntl.flock(lock, fcntl.LOCK_EX)
        rollouts = {"count": 3, "waits": waits, "oldest": [young, oldest]}
        write_live(run_copy, rollouts=rollouts)
        token = re.search(r"token=\S+", address)
        assert token
        page.goto(f"{served}?{token[0]}#/runs")
        expect(page.locator("table.runs tbody tr")).to_have_count(1)
        run = run_id(page, served, "copy")
        opened(page, at(served, "run", run=run))
        now = page.get_by_role("region", name="Now")
        expect(now).to_contain_text("Rolling out step 5")
        expect(now).to_contain_text("1 of 4 rollouts")
        expect(now).to_contain_text("2 wait for the model longest 4.5 s")
        expect(now).to_contain_text("1 group waits to be trained oldest 12 s")
        expect(now.get_by_role("table", name="Engines").locator("tbody td")).to_have_text(
            ["vllm-0", "16 of 16", "4", "4"]
        )
        cells = now.get_by_role("table", name="Rollouts in flight longest").locator("tbody td")
        expect(cells.nth(0)).to_have_text("<img src=x onerror=alert(1)> \\u202etask")
        expect(cells.nth(2)).to_have_text("7")
        expect(cells.nth(4)).to_have_text("tool 61 s")
        # The run goes on, and nothing is loaded again; first without anything new to draw.
        page.evaluate("window.kept = true")
        write_live(run_copy, steps_done=6, rollouts=rollouts)
        expect(now).to_contain_text("Rolling out step 7")
        line = json.loads((run_copy / "metrics.jsonl").read_text().splitlines()[-1])
        with (run_copy / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({**line, "step": 5, "reward": 0.125}) + "\n")
        none = {"count": 0, "waits": {}, "oldest": []}
        write_live(run_copy, steps_done=5, rollouts=none, written=time.time() - 60)
        expect(now).to_contain_text("Rolling out step 6")
        expect(now).to_contain_text("The run has not written this for")
        expect(now.get_by_role("table", name="Rollouts in flight longest")).to_have_count(0)
        reward = page.get_by_role("slider", name="Reward by step")
        expect(reward).to_have_attribute("aria-valuemax", "5")
        # Its process ends without tidying up.
        fcntl.flock(lock, fcntl.LOCK_UN)
        expect(now).to_be_hidden()
        expect(page.locator("h1 .pill")).to_have_text("stopped")
        assert page.evaluate("window.kept")
        # Views that ask for more than the first screen does.
        group = first_group(page, served, run)["group_id"]
        opened(page, at(served, "group", run=run, kind="train", step=1, group=group))
        page.locator(".sibling a.strong").first.click()
        expect(page.locator(".turn").first).to_be_visible()
        export = page.locator("a[download]").first.get_attribute("href")
        assert export is not None
        assert export.startswith(f"{BASE}/api/export?")
