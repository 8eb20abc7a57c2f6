"""Every view at the width of a phone and of a desk: targets that can be hit, nothing off screen."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.inspect.browser.inspector_page import at, inspecting, opened, run_id, watched
from tests.inspect.browser.test_browser_examples import example_at
from tests.inspect.browser.test_browser_reading import SIDES, read_once
from tests.inspect.hacked_runs import write_hacked_run
from tests.inspect.pages.test_turn_texts import LOG, answered_rollout
from tests.inspect.synthetic import write_metrics, write_step
from tests.inspect.test_agent_requests import stored_run
from tests.inspect.test_shown_images import seen_run

pytestmark = pytest.mark.slow

LEAST = 24
"""Pixels of a target in each direction: WCAG 2.2, success criterion 2.5.8 (AA)."""

SMALL = """least => {
  const kinds = "a[href], button, input, select, textarea, summary, label:has(input), " +
    "[role=slider], [role=button], [tabindex='0']";
  // The label of a box is the target that it has.
  const targets = [...document.querySelectorAll(kinds)].map(node => node.closest("label") ?? node);
  // A link in a sentence: its height is that of the line (exception "Inline").
  const inSentence = node =>
    node.matches("a") && getComputedStyle(node).display === "inline" &&
    [...node.parentElement.childNodes].some(
      one => one.nodeType === Node.TEXT_NODE && /[\\p{L}\\p{N}]/u.test(one.textContent));
  return [...new Set(targets)].flatMap(node => {
    const { width, height, right } = node.getBoundingClientRect();
    const seen = width > 0 && height > 0 && right > 0;
    if (!seen || inSentence(node) || (width >= least && height >= least)) return [];
    const name = (node.innerText || node.getAttribute("aria-label") || "").slice(0, 40);
    return [`${node.tagName} ${name} in ${node.parentElement.className}: ${width}x${height}`];
  });
}"""

OFF_SCREEN = """() => {
  const wide = document.documentElement.clientWidth + 1;
  const hides = node => node && node !== document.body &&
    (getComputedStyle(node).overflowX !== "visible" || hides(node.parentElement));
  return [...document.querySelectorAll("body *")]
    .filter(node => node.getBoundingClientRect().right > wide && !hides(node.parentElement))
    .map(node => `${node.tagName}.${node.className} ends at ${node.getBoundingClientRect().right}`);
}"""


def written_runs(folder: Path) -> list[Path]:
    """Runs that between them have something in every view."""
    write_step(folder / "tools", [answered_rollout(f"g/{n}") for n in range(2)])
    write_metrics(folder / "tools", {"step": 1, "time": 1.0, "reward": 1.0, "score": 1.0})
    (folder / "nothing").mkdir()
    (folder / "nothing" / "metrics.jsonl").touch()
    for name, made in (
        ("pictures", seen_run(folder / "p")[0]),
        ("agent", stored_run(folder / "a")),
    ):
        shutil.move(made, folder / name)
    write_hacked_run(folder / "hacked")
    for step in range(1, 4):
        write_metrics(folder / "bare", {"step": step, "time": 1.0 * step, "reward": 0.1 * step})
    read_once(folder / "planted")
    names = ("planted", "hacked", "tools", "nothing", "bare", "pictures", "agent")
    return [folder / name for name in names]


def addresses(served: str, fit: str, fit_run: Path) -> list[str]:
    many = {"run": "planted", "kind": "train", "step": 3}
    group = {**many, "group": "many"}
    first = {"kind": "train", "step": 1, "rollout": "g/0"}
    pair = {**many, "rollout": "many/0", "b_rollout": "many/3"}
    return [
        at(served, "runs"), at(served, "runs", pick="planted|hacked"),
        at(served, "run", run="planted"), at(served, "run", run="nothing"),
        at(served, "run", run="hacked"),
        at(served, "run", run="bare"), at(served, "hacking", run="bare"),
        at(served, "step", **many), at(served, "step", run="nothing"),
        at(served, "step", run="hacked", kind="train", step=40),
        at(served, "group", **group), at(served, "group", **group, base="many/3"),
        at(served, "rollout", run="tools", **first), at(served, "rollout", run="agent", **first),
        at(served, "rollout", run="pictures", **first),
        at(served, "tokens", **many, rollout="many/3", row=0),
        at(served, "find", run="planted", q="say"),
        at(served, "find", run="planted", sql="select 1"),
        at(served, "tasks", run="planted", kind="train"),
        at(served, "task", run="planted", task="2-sum"),
        at(served, "compare", run="planted", **SIDES), at(served, "pair", **pair),
        at(served, "hacking", run="hacked"),
        at(served, "examples", run=fit), example_at(served, fit, fit_run, 0),
    ]  # fmt: skip


def test_targets_can_be_hit_and_nothing_is_off_screen(
    browser: Browser, tmp_path: Path, fit_run: Path
) -> None:
    wrong: dict[str, list[str]] = {}
    runs = written_runs(tmp_path)
    with inspecting(*runs, fit_run, options=["--labels"]) as served, watched(browser) as page:
        page.set_viewport_size({"width": 390, "height": 844})
        visited = addresses(served, run_id(page, served, "fit"), fit_run)
        for address in visited:
            opened(page, address)
            page.evaluate("document.querySelectorAll('details').forEach(one => (one.open = true))")
            for width in (390, 1280):
                page.set_viewport_size({"width": width, "height": 844})
                name = f"{address.partition('#')[2]} at {width}"
                wrong[name] = [*page.evaluate(SMALL, LEAST), *page.evaluate(OFF_SCREEN)]
            page.set_viewport_size({"width": 390, "height": 844})
        assert {name: found for name, found in wrong.items() if found} == {}
        opened(page, at(served, "no"))
        known = re.search(r"Views: (.*)\.", page.locator("main").inner_text())
        views = {re.split(r"[/?]", address.partition("#/")[2])[0] for address in visited}
        assert known
        assert views == set(known[1].split(", "))


def test_scores_are_on_the_screen_of_a_phone(browser: Browser, tmp_path: Path) -> None:
    with inspecting(read_once(tmp_path / "planted")) as served, watched(browser) as page:
        page.set_viewport_size({"width": 390, "height": 844})
        for address in (
            at(served, "runs"),
            at(served, "step", run="planted", kind="train", step=3),
            at(served, "tasks", run="planted", kind="train"),
        ):
            opened(page, address)
            head = page.get_by_role("columnheader", name=re.compile("score|after")).first
            expect(head).to_be_in_viewport(ratio=1)


def test_answers_are_open_once_and_lose_nothing(browser: Browser, tmp_path: Path) -> None:
    """Fails if what the environment answered is folded away, said twice, or cannot be had whole."""
    write_step(tmp_path / "run", [answered_rollout(f"g/{n}") for n in range(2)])
    place = {"run": "run", "kind": "train", "step": 1}
    with inspecting(tmp_path / "run") as served, watched(browser) as page:
        opened(page, at(served, "rollout", **place, rollout="g/0"))
        for text in ("total 12", "Three turns are left.", "And then", '<call>{"name":</call>'):
            expect(page.get_by_text(text, exact=True)).to_have_count(1)
            expect(page.get_by_text(text, exact=True)).to_be_visible()
        check_whole(page, "#turn-1 .result >> nth=1")
        opened(page, at(served, "group", **place, group="g"))
        # Both siblings did the same, so one column stands for both.
        for text in ("total 12", "Three turns are left."):
            expect(page.get_by_text(text, exact=True)).to_have_count(1)
        check_whole(page, ".reply >> nth=1")


def check_whole(page: Page, place: str) -> None:
    """A long answer has its end in sight, and all of it after a click."""
    box = page.locator(place)
    expect(box).to_contain_text("test_1199 passed")
    expect(box).not_to_contain_text("test_600 passed")
    box.get_by_role("button", name="Show").click()
    expect(box.locator("pre")).to_have_count(1)
    assert box.locator("pre").text_content() == LOG
