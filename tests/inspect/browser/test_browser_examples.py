"""The pair view of a fit in a real browser: numbers, keys, hostile text, small and dark windows."""

from __future__ import annotations

import re
from collections.abc import Generator
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Page, expect

from agentrl.inspect.pages.examples import example_answer, examples_answer
from tests.inspect.browser.inspector_page import at, inspecting, opened, run_id, watched
from tests.inspect.browser.test_browser_access import CONTRAST, NAMELESS
from tests.inspect.fit_runs import reader_of

HOSTILE_TAGS = "<script>alert('x')</script><img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def fits(fit_run: Path) -> Generator[str]:
    with inspecting(fit_run) as address:
        yield address


@pytest.fixture
def fit(page: Page, fits: str) -> str:
    return run_id(page, fits, "fit")


def example_at(fits: str, fit: str, fit_run: Path, place: int, **more: object) -> str:
    found = examples_answer(reader_of(fit_run))["examples"][place]
    return at(fits, "example", run=fit, dataset="held", step=4, example=found["id"], **more)


def shown_number(value: float, digits: int) -> str:
    """A number as the page shows it, without a plus."""
    return ("\u2212" if value < 0 else "") + f"{abs(value):#.{digits}g}"


def test_a_run_leads_to_its_pairs_by_keys_alone(page: Page, fits: str, fit: str) -> None:
    opened(page, at(fits, "run", run=fit))
    examples = page.get_by_role("link", name="Examples")
    examples.focus()
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("Examples after step 4")
    expect(page.locator("table.examples tbody tr")).to_have_count(5)
    page.keyboard.press("[")
    expect(page.locator("h1")).to_have_text("Examples after step 2")
    page.keyboard.press("]")
    expect(page.locator("h1")).to_have_text("Examples after step 4")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page.locator(".answer")).to_have_count(2)
    expect(page.locator("h1")).to_contain_text("p1")
    page.keyboard.press("n")
    expect(page.locator("h1")).to_contain_text("p2")
    page.keyboard.press("p")
    expect(page.locator("h1")).to_contain_text("p1")
    page.keyboard.press("[")
    expect(page.locator("#crumbs")).to_contain_text("after step 2")
    page.keyboard.press("u")
    expect(page.locator("h1")).to_have_text("Examples after step 2")


def test_both_answers_stand_side_by_side_with_their_numbers(
    page: Page, fits: str, fit: str, fit_run: Path
) -> None:
    """Fails if numbers or texts are given to the other answer."""
    listed = examples_answer(reader_of(fit_run))["examples"][1]
    known = example_answer(reader_of(fit_run), "held", 4, listed["id"])
    opened(page, example_at(fits, fit, fit_run, 1))
    boxes = [page.locator(f".answer[aria-label={name}]") for name in ("chosen", "rejected")]
    left, right = (box.bounding_box() for box in boxes)
    assert left
    assert right
    assert left["y"] == right["y"]
    assert left["x"] + left["width"] <= right["x"]
    for box, answer, sums in zip(boxes, known["answers"], known["sums"], strict=True):
        text = "".join(answer["text"])
        assert text.strip()[:3] in box.locator("div.tokens").inner_text()
        expect(box.locator("dt", has_text="log-ratio").locator("+ dd")).to_have_text(
            shown_number(sums["log_ratio"], 4)
        )
        painted = box.locator(".block span:not(.untrained)")
        assert painted.count() == sum(answer["trained"])
        colours = [one.get_attribute("class") or "" for one in painted.all()]
        ratios = [value for value in answer["log_ratio"] if value is not None]
        for colour, ratio in zip(colours, ratios, strict=True):
            assert colour == "q0" or colour[0] == ("p" if ratio > 0 else "n"), (colour, ratio)
        classes = set(colours)
        assert classes <= {"q0", *(f"{sign}{level}" for sign in "pn" for level in (1, 2, 3, 4))}
        assert len(classes) > 1
    expect(page.locator(".worth dt", has_text=re.compile("^h$")).locator("+ dd")).to_have_text(
        re.compile(re.escape(shown_number(known["h"], 3)) + "$")
    )
    expect(page.locator(".worth")).to_contain_text("h by step: 0: 0")
    expect(page.locator(".head")).to_contain_text("margin")


def test_tokens_are_walked_and_coloured_by_what_is_chosen(
    page: Page, fits: str, fit: str, fit_run: Path
) -> None:
    listed = examples_answer(reader_of(fit_run))["examples"][1]
    known = example_answer(reader_of(fit_run), "held", 4, listed["id"])["answers"][1]
    opened(page, example_at(fits, fit, fit_run, 1))
    page.locator(".answer[aria-label=rejected] div.tokens").focus()
    page.keyboard.press("ArrowRight")
    said = page.locator("#token-facts")
    expect(said).to_contain_text(f"id {known['ids'][1]}")
    expect(said).to_contain_text("log-ratio")
    expect(said).to_contain_text("reference")
    for key, over in (("2", "log_prob"), ("3", "ref_log_prob"), ("1", "log_ratio")):
        page.keyboard.press(key)
        expect(page).to_have_url(re.compile(f"over={over}(&|$)"))
        expect(page.locator(f"input[value={over}]")).to_be_checked()
        expect(page.locator(".token-scale")).to_be_visible()


def test_hostile_text_of_data_is_text(page: Page, fits: str, fit: str, fit_run: Path) -> None:
    opened(page, at(fits, "examples", run=fit))
    expect(page.locator("tbody tr").first).to_contain_text("<i>odd</i> id")
    opened(page, example_at(fits, fit, fit_run, 0))
    expect(page.locator(".prompt pre")).to_contain_text(HOSTILE_TAGS)
    expect(page.locator(".prompt pre")).to_contain_text("\\e[31mred\\e[0m &amp;")
    expect(page.locator(".answer[aria-label=chosen] div.tokens")).to_contain_text("<script>")
    assert page.locator("main img, main script, main i").count() == 0


@pytest.mark.parametrize(("width", "theme"), [(1440, "light"), (420, "dark")])
def test_the_views_are_legible_named_and_fit(
    browser: Browser, fits: str, fit_run: Path, theme: str, width: int
) -> None:
    with watched(browser, color_scheme=theme) as page:
        page.set_viewport_size({"width": width, "height": 900})
        fit = run_id(page, fits, "fit")
        addresses = [
            at(fits, "run", run=fit),
            at(fits, "examples", run=fit),
            example_at(fits, fit, fit_run, 0),
            example_at(fits, fit, fit_run, 2, over="log_prob"),
        ]
        for address in addresses:
            opened(page, address)
            page.wait_for_timeout(150)
            assert page.evaluate(CONTRAST) == [], address
            assert page.evaluate(NAMELESS) == [], address
            wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
            assert wide <= 0, f"{address} is wider than the window by {wide}"


def test_an_example_that_is_not_there_is_said(page: Page, fits: str, fit: str) -> None:
    answer = page.request.get(f"{fits}api/example?run={quote(fit)}&dataset=held&step=4&example=x")
    assert answer.status == 404
    assert "valid: " in answer.json()["error"]
    page.goto(fits)
