"""Curves are smoothed, zoomed, drawn over another axis and saved, and a link shows the same."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from agentrl.disk.rollback import logged_metrics
from tests.inspect.browser.inspector_page import at, inspecting, opened, watched
from tests.inspect.synthetic import make_rollout, write_metrics, write_step


def saved_rows(page: Page) -> list[dict[str, str]]:
    with page.expect_download() as saved:
        page.get_by_role("button", name="CSV").click()
    assert saved.value.suggested_filename == "recorded.csv"
    with Path(saved.value.path()).open(newline="") as file:
        return list(csv.DictReader(file))


def test_curves_are_drawn_as_the_reader_asks_and_saved_as_they_are_drawn(
    page: Page, served: str, run: str, recorded_run: Path
) -> None:
    opened(page, at(served, "run", run=run))
    logged = logged_metrics(recorded_run / "metrics.jsonl")
    rewards = {step: line["reward"] for step, line in logged.items() if "reward" in line}
    card = page.locator(".curve-card", has_text="Reward").first
    expect(card.locator("polyline.curve")).to_have_count(1)
    page.get_by_label("Smoothing").fill("0.5")
    expect(card.locator("polyline.curve")).to_have_count(2)
    expect(card.locator("polyline.raw")).to_have_count(1)
    # Evaluations are few, and have an interval of their own.
    held = page.locator(".curve-card", has_text="Held-out score").first
    expect(held.locator("polyline.raw")).to_have_count(0)
    page.get_by_label("Horizontal axis").select_option("wall-clock")
    expect(card.locator(".tick", has_text="wall-clock")).to_have_count(1)
    page.get_by_label("Log scale").check()
    expect(card.locator(".tick", has_text="log scale")).to_have_count(1)
    rows = saved_rows(page)
    assert {int(row["step"]): float(row["reward"]) for row in rows if row["reward"]} == rewards
    assert float(rows[-1]["elapsed_s"]) == pytest.approx(logged[4]["timing_s/elapsed"])
    assert float(rows[-1]["sampled_tokens"]) == sum(
        value
        for line in logged.values()
        for name, value in line.items()
        if name.startswith("waste/tokens/")
    )
    # s = 0.5 s + 0.5 x from 0, over 1 - 0.5^n.
    raw = list(rewards.values())
    smooth = sum(0.5 ** (4 - i) * value for i, value in enumerate(raw)) / (1 - 0.5**4)
    assert float(rows[-1]["reward (smoothed 0.5)"]) == pytest.approx(smooth)
    # A drag zooms all curves, and is no click.
    chart = page.get_by_role("slider", name="Entropy by step")
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    assert box is not None
    left, width, middle = box["x"] + 48, box["width"] - 58, box["y"] + 50
    page.mouse.move(left + 0.25 * width, middle)
    page.mouse.down()
    page.mouse.move(left + 0.5 * width, middle)
    expect(chart.locator(".zooming")).to_be_visible()
    page.mouse.move(left + 0.99 * width, middle)
    page.mouse.up()
    expect(page.get_by_label("First step drawn")).not_to_have_value("0")
    expect(page).to_have_url(re.compile(r"smooth=0\.5&log=1&axis=time&from=\d+&to=4$"))
    kept = {int(row["step"]) for row in saved_rows(page)}
    assert 0 not in kept
    assert 4 in kept
    page.reload()
    expect(card.locator("polyline.raw")).to_have_count(1)
    expect(card.locator(".tick", has_text="wall-clock, log scale")).to_have_count(1)
    assert {int(row["step"]) for row in saved_rows(page)} == kept
    page.get_by_role("button", name="All steps").click()
    expect(page.get_by_label("First step drawn")).to_have_value("0")
    # Keys reach what a mouse drags.
    page.get_by_label("Last step drawn").fill("3")
    page.keyboard.press("Tab")
    expect(page).to_have_url(re.compile("from=0&to=3$"))


def test_what_never_moves_is_named_and_an_agentic_run_shows_its_tools(
    page: Page, served: str, run: str
) -> None:
    opened(page, at(served, "run", run=run))
    constants = page.locator("details.constants").first
    flat = constants.locator("li").all_inner_texts()
    assert flat, "this run has curves that never move"
    assert all(re.fullmatch(r".+ = \S+(\s%)?", text) for text in flat), flat
    for text in flat:
        name = text.partition(" = ")[0]
        expect(page.get_by_role("slider", name=f"{name} by step", exact=True)).to_have_count(0)
    # A band of the dashboard, where the policy is that which sampled.
    assert "Largest importance ratio = 1.00" in flat
    # Each turn has one call that works and one that does not.
    assert "Tool errors by tool = 50\xa0%" in flat
    turns = page.locator(".curve-card", has_text="Turns of a rollout")
    expect(turns.locator("polyline.curve")).to_have_count(1)
    expect(
        page.locator(".curve-card", has_text="How rollouts end").locator(".names")
    ).to_contain_text("env crashed infrastructure")


def test_curves_of_thousands_of_steps_are_smoothed_unless_a_link_says_otherwise(
    browser: Browser, tmp_path: Path
) -> None:
    """Fails if a card draws an area where a reader looks for a curve."""
    run = tmp_path / "long"
    write_metrics(run, *({"step": n, "time": 1.0 + n, "reward": n % 2} for n in range(1, 1_500)))
    for step in (1, 1_499):
        write_step(run, [make_rollout(f"{step}/0", [("assistant", "x")])], step)
    with inspecting(run) as served, watched(browser) as page:
        opened(page, at(served, "run", run="long"))
        card = page.locator(".curve-card", has_text="Reward").first
        expect(page.get_by_label("Smoothing")).to_have_value("0.95")
        expect(card.locator("polyline.raw")).to_have_count(1)
        page.get_by_label("Smoothing").fill("0")
        expect(card.locator("polyline.raw")).to_have_count(0)
        expect(page).to_have_url(re.compile("smooth=0$"))
        page.reload()
        expect(page.get_by_label("Smoothing")).to_have_value("0")
