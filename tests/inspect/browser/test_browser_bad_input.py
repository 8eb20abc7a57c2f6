"""What a run may hold to harm its reader, or to be shown badly: none of it gets through."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from playwright.sync_api import Browser, Page, expect

import agentrl.inspect
from agentrl.disk.rollback import logged_metrics
from tests.inspect.browser.inspector_page import at, inspecting, opened, rollout_of, run_id, watched

pytestmark = pytest.mark.slow

STATIC = Path(agentrl.inspect.__file__).parent / "static"
HOSTILE_TAGS = "<script>alert('x')</script><img src=x onerror=alert(1)>"
VIEWS = ("runs", "run", "step", "group", "rollout", "tokens", "examples", "example", "find")


def test_hostile_text_is_shown_as_the_text_it_is(page: Page, served: str, run: str) -> None:
    opened(page, at(served, "find", run=run, q="<script>"))
    expect(page.locator(".snippet mark").first).to_have_text("<script>")
    page.locator(".hits a.strong").first.click()
    expect(page.locator(".result").first).to_contain_text(HOSTILE_TAGS)
    # An escape that would colour a terminal is spelled out.
    expect(page.locator(".result").first).to_contain_text("\\e[31mred\\e[0m &amp;")
    page.get_by_role("link", name="Tokens", exact=True).click()
    expect(page.locator("div.tokens")).to_contain_text("<script>")
    assert page.locator("main img, main script, main b > i").count() == 0


def with_long_line(run: Path, length: int) -> str:
    """Puts a line of `length` characters into the first rollout of step 1; its id."""
    path = run / "trajectories" / "train" / "step_000001.parquet"
    table = pq.read_table(path)
    rows = table.to_pylist()
    # With what turns the reading direction, and what a page could mistake for its end.
    rows[0]["turns"][0]["text"] = "\u202e</pre></script>" + "x" * length
    # Written as runs write: a dictionary of such a word could stand for gigabytes.
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), path, use_dictionary=False)
    return rows[0]["rollout_id"]


def test_a_line_of_ten_million_characters_is_shown_in_parts(
    browser: Browser, run_copy: Path
) -> None:
    rollout = with_long_line(run_copy, 10_000_000)
    with inspecting(run_copy) as served, watched(browser) as page:
        run = run_id(page, served, "copy")
        opened(page, at(served, "rollout", run=run, kind="train", step=1, rollout=rollout))
        text = page.locator("#turn-0 > .long > pre")
        expect(text).to_contain_text("\\u202e</pre></script>xxx")
        assert len(text.inner_text()) < 10_000
        page.get_by_role("button", name="Show 200,000 more").first.click()
        expect(page.locator(".more").first).to_contain_text("208,000 of 1,000,0")


def test_the_page_never_makes_markup_of_text_nor_names_another_host() -> None:
    # What the page is made of could turn a string into markup or code in these ways only.
    forbidden = re.compile(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc"
        r"|DOMParser|createContextualFragment"
    )
    kinds = {".js", ".html", ".css", ".svg"}
    files = [path for path in STATIC.rglob("*") if path.suffix in kinds]
    assert {path.stem for path in files if path.parent.name == "views"} >= set(VIEWS)
    for path in files:
        text = path.read_text()
        assert not forbidden.search(text), path
        hosts = set(re.findall(r"https?://([^/\"']+)", text))
        assert hosts <= {"www.w3.org"}, path


def test_an_infrastructure_failure_says_what_happened(page: Page, served: str, run: str) -> None:
    place = rollout_of(page, served, run, lambda one: one["termination"] == "env_crashed")
    opened(page, f"{served}#/rollout?{place}")
    expect(page.locator(".head")).to_contain_text("the scoring service is gone <b>really</b>")


def test_a_run_that_is_written_is_drawn_anew_and_keeps_what_was_opened(
    browser: Browser, run_copy: Path
) -> None:
    with inspecting(run_copy) as served, watched(browser) as page:
        run = run_id(page, served, "copy")
        opened(page, at(served, "run", run=run))
        page.locator("summary", has_text="Config").click()
        chart = page.get_by_role("slider", name="Reward by step")
        expect(chart).to_have_attribute("aria-valuemax", "4")
        page.wait_for_timeout(2500)
        # What a reader has selected is not taken away.
        page.locator(".glance b").first.select_text()
        line = logged_metrics(run_copy / "metrics.jsonl")[4]
        with (run_copy / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({**line, "step": 5}) + "\n" + '{"step": 6, "rew')
        expect(page.locator("#live")).to_contain_text("there is more")
        expect(chart).to_have_attribute("aria-valuemax", "4")
        page.evaluate("getSelection().removeAllRanges()")
        expect(chart).to_have_attribute("aria-valuemax", "5")
        expect(page.locator("table.config")).to_be_visible()


def test_what_is_missing_is_said_and_a_way_out_offered(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "config.yaml").write_text("run: {name: begun}\n")
    (tmp_path / "begun" / "metrics.jsonl").write_text("")
    context = browser.new_context()
    with inspecting(tmp_path) as served:
        page = context.new_page()
        opened(page, at(served, "run", run="nowhere"))
        expect(page.locator(".empty")).to_contain_text("nowhere")
        page.get_by_role("link", name="One level up").click()
        expect(page).to_have_url(re.compile("#/runs$"))
        page.get_by_role("link", name="begun").first.click()
        expect(page.locator(".empty")).to_contain_text("No step yet")
        page.keyboard.press("/")
        page.get_by_role("link", name="SQL").click()
        page.get_by_role("textbox", name="SQL").fill("COPY metrics TO '/tmp/metrics.csv'")
        page.get_by_role("button", name="Ask", exact=True).click()
        expect(page.locator(".error")).to_contain_text("a run is only read")
        opened(page, served + "#/nonsense")
        expect(page.locator(".empty")).to_contain_text('no view "nonsense"')
        opened(page, at(served, "run", run="begun"))
        shutil.rmtree(tmp_path / "begun")
        expect(page.locator("#alert")).to_contain_text("is gone")
        expect(page.locator(".empty")).to_contain_text("No step yet")
        opened(page, served + "#/runs")
    # The server has ended: what was drawn stays, and the page says why nothing new comes.
    expect(page.locator("#alert")).to_contain_text("does not answer")
    expect(page.locator("h1")).to_have_text("Runs")
    context.close()
