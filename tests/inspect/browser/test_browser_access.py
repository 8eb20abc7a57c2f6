"""Every view with a keyboard, a screen reader, a narrow window, and in the dark."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Page, Route, expect

import agentrl.inspect
from tests.inspect.browser.inspector_page import (
    at,
    first_group,
    opened,
    rollout_of,
    run_id,
    watched,
)

pytestmark = pytest.mark.slow

STATIC = Path(agentrl.inspect.__file__).parent / "static"

# Contrast of every visible text with what lies behind it, after WCAG 2.2, success criterion 1.4.3.
CONTRAST = """() => {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = 1;
  const pen = canvas.getContext("2d", { willReadFrequently: true });
  const rgba = (color) => {
    pen.clearRect(0, 0, 1, 1);
    pen.fillStyle = color;
    pen.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = pen.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = (a, b) => [0, 1, 2].map((i) => a[i] * a[3] + b[i] * (1 - a[3])).concat(1);
  const bright = (color) => {
    const [r, g, b] = color.slice(0, 3).map((v) => {
      v /= 255;
      return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const bad = [];
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const node = texts.currentNode.parentElement;
    if (!texts.currentNode.textContent.trim() || !node.checkVisibility()) continue;
    if (node.closest("noscript, [aria-disabled], .skip, option")) continue;
    const chain = [];
    for (let one = node; one; one = one.parentElement) chain.unshift(one);
    let back = [255, 255, 255, 1];
    for (const one of chain) back = over(rgba(getComputedStyle(one).backgroundColor), back);
    const style = getComputedStyle(node);
    const fore = over(rgba(node instanceof SVGElement ? style.fill : style.color), back);
    const [light, dark] = [bright(fore), bright(back)].sort((a, b) => b - a);
    const ratio = (light + 0.05) / (dark + 0.05);
    const name = `${ratio.toFixed(2)} ${node.className} ${node.textContent}`;
    if (ratio < 4.5) bad.push(name.slice(0, 80));
  }
  return bad;
}"""


NAMELESS = """() => [...document.querySelectorAll(
    "button, a[href], input, select, textarea, [role=slider], [role=img], summary")]
  .filter((one) => one.checkVisibility())
  .filter((one) => !(one.getAttribute("aria-label") || one.textContent.trim() || one.title ||
    one.closest("label") || one.labels?.length))
  .map((one) => one.outerHTML.slice(0, 120))"""


@pytest.mark.parametrize(("width", "theme"), [(1440, "light"), (420, "dark")])
def test_every_view_is_legible_named_and_fits(
    browser: Browser, served: str, theme: str, width: int
) -> None:
    with watched(browser, color_scheme=theme) as page:
        page.set_viewport_size({"width": width, "height": 900})
        run = run_id(page, served, "recorded")
        place = rollout_of(page, served, run, lambda one: bool(one["advantage"]))
        group = first_group(page, served, run)["group_id"]
        steps = {"run": run, "kind": "train", "step": 1}
        addresses = [
            at(served, "runs", pick=run),
            at(served, "run", run=run),
            at(served, "step", **steps),
            at(served, "group", **steps, group=group, base=group + "/0"),
            f"{served}#/rollout?{place}",
            *(f"{served}#/tokens?{place}&over={over}" for over in ("why", "gap", "log_prob")),
            at(served, "tasks", run=run),
            at(served, "task", run=run, task="train/1"),
            at(served, "compare", run=run, kind="train", steps="1-2", b_steps="3-4"),
            f"{served}#/pair?{place}&b_step=1&b_rollout={quote(group + '/1', safe='')}",
            at(served, "hacking", run=run),
            at(served, "find", run=run, q="ran"),
            at(served, "find", run=run) + "&sql=SELECT%201",
        ]
        for address in addresses:
            opened(page, address)
            page.wait_for_timeout(150)
            assert page.evaluate(CONTRAST) == [], address
            assert page.evaluate(NAMELESS) == [], address
            wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
            assert wide <= 0, f"{address} is wider than the window by {wide}"


def test_keys_reach_items_theme_and_help(page: Page, served: str, run: str) -> None:
    opened(page, at(served, "step", run=run, kind="train", step=1))
    page.keyboard.press("j")
    page.keyboard.press("j")
    second = page.locator(".groups a.strong").nth(1)
    expect(second).to_be_focused()
    page.keyboard.press("k")
    expect(page.locator(".groups a.strong").first).to_be_focused()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("the step after")
    page.keyboard.press("Escape")
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.keyboard.press("d")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != dark
    chosen = page.evaluate("document.documentElement.dataset.theme")
    page.reload()
    expect(page.locator("html")).to_have_attribute("data-theme", chosen)
    page.locator(".groups a.strong").first.focus()
    page.keyboard.press("Enter")
    expect(page.locator(".siblings")).to_be_visible()
    page.keyboard.press("u")
    expect(page.locator("h1")).to_have_text("Step 1")


def test_keys_reach_the_charts_and_copy_the_link(page: Page, served: str, run: str) -> None:
    opened(page, at(served, "run", run=run))
    charts = page.locator(".chart[role=slider]")
    answers = page.locator("#main .glance button").count()
    findings = page.locator("#main .finding").count()
    for _ in range(answers + findings + 1):
        page.keyboard.press("j")
    expect(charts.first).to_be_focused()
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.keyboard.press("c")
    expect(page.locator("#copy")).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == page.url
    assert page.title() == "recorded - agentrl"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_an_exported_page_needs_nothing_and_is_legible(
    browser: Browser, served: str, tmp_path: Path, theme: str
) -> None:
    """Fails if the file asks for anything, or if its own policy refuses its script or a style."""
    with watched(browser, color_scheme=theme) as page:
        run = run_id(page, served, "recorded")
        place = rollout_of(page, served, run, lambda one: bool(one["advantage"]))
        answer = page.request.get(f"{served}api/export?{place}&format=html")
        (tmp_path / "page.html").write_bytes(answer.body())
        address = (tmp_path / "page.html").as_uri()
        page.goto(address)
        expect(page.locator("tbody tr")).to_have_count(1)
        assert page.evaluate(CONTRAST) == []
        page.locator("tbody a").click()
        expect(page.locator(".turn.role-assistant").first).to_be_visible()
        for details in page.locator("details").all():
            details.evaluate("one => one.open = true")
        assert page.evaluate(CONTRAST) == []
        links = page.locator("#main a[href], #crumbs a[href]").evaluate_all(
            "all => all.map(one => one.getAttribute('href'))"
        )
        assert {link.split("?")[0] for link in links} <= {"#/runs", "#/rollout", "#/tokens"}
        page.keyboard.press("t")
        expect(page.locator(".tokens .block span").first).to_be_visible()
        for overlay in page.locator("input[name=overlay]").all():
            overlay.evaluate("one => one.click()")  # what is seen of it is its label
            assert page.evaluate(CONTRAST) == [], overlay.get_attribute("value")
        page.keyboard.press("r")
        expect(page.locator("tbody tr")).to_have_count(1)
        page.goto(address + "#/step?run=recorded")
        expect(page.locator("#main")).to_contain_text("There is no view")


def test_an_ending_that_only_the_table_knows_is_named_and_marked(
    page: Page, served: str, run: str
) -> None:
    """Fails if the page has a list of endings of its own."""
    table = page.request.get(f"{served}api/endings").json()
    renamed = {"toy_ending" if name == "env_done" else name: rule for name, rule in table.items()}
    renamed["toy_ending"] |= {"mark": "fault", "meaning": "A toy broke."}
    page.route("**/api/endings", lambda route: route.fulfill(json=renamed))

    def other(route: Route) -> None:
        route.fulfill(body=route.fetch().text().replace("env_done", "toy_ending"))

    page.route("**/api/rollout*", other)
    page.route("**/api/step*", other)
    place = rollout_of(page, served, run, lambda one: one["termination"] == "env_done")
    opened(page, f"{served}#/rollout?{place}")
    pill = page.locator("h1 .pill")
    expect(pill).to_have_text("toy ending")
    expect(pill).to_have_class(re.compile("fail"))
    expect(pill).to_have_attribute("title", "A toy broke.")
    opened(page, at(served, "step", run=run, kind="train", step=1))
    expect(page.locator("i.fail").first).to_be_attached()
    opened(page, at(served, "find", run=run))
    expect(page.locator("select[name=termination] option[value=toy_ending]")).to_be_attached()


def test_a_chart_is_read_and_opened_with_the_keyboard(page: Page, served: str, run: str) -> None:
    opened(page, at(served, "run", run=run))
    chart = page.get_by_role("slider", name="Reward by step")
    chart.focus()
    page.keyboard.press("Home")
    expect(chart).to_have_attribute("aria-valuenow", "1")
    page.keyboard.press("ArrowRight")
    expect(chart).to_have_attribute("aria-valuetext", re.compile(r"^step 2: 0\.\d+"))
    # The cursor is on every other chart, too.
    assert page.locator(".chart .cursor[visibility=visible]").count() > 5
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("Step 2")


def test_a_difference_gives_back_both_texts(page: Page, served: str) -> None:
    opened(page, served + "#/runs")
    wrong = page.evaluate(
        """async () => {
          const { diff } = await import("/static/diff.js");
          let state = 7;
          const next = (n) => (state = (state * 48271) % 2147483647) % n;
          const text = () => Array.from({ length: next(14) }, () => "ab c\\n.1"[next(7)]).join("");
          const side = (parts, not) => parts.filter(([k]) => k !== not).map(([, t]) => t).join("");
          const wrong = [];
          for (let i = 0; i < 2000; i++) {
            const [a, b] = [text(), text()];
            const parts = diff(a, b);
            if (side(parts, "new") !== a || side(parts, "gone") !== b) wrong.push([a, b, parts]);
          }
          const small = diff("keep this word", "keep that word");
          return [wrong, small];
        }"""
    )
    assert wrong[0] == []
    assert wrong[1] == [["same", "keep "], ["gone", "this"], ["new", "that"], ["same", " word"]]


def test_a_spike_survives_when_there_are_more_steps_than_pixels(page: Page, served: str) -> None:
    opened(page, served + "#/runs")
    drawn = page.evaluate(
        """async () => {
          const { points } = await import("/static/scale.js");
          const steps = Array.from({ length: 50_000 }, (_, i) => i);
          const values = steps.map((i) => (i === 31_234 ? 9 : i === 40_001 ? null : 1));
          return points(steps, values, 300);
        }"""
    )
    assert len(drawn) <= 600
    assert [31_234, 9] in drawn


def test_axes_have_two_marks_at_least_that_differ(page: Page, served: str) -> None:
    opened(page, served + "#/runs")
    marks = page.evaluate(
        """async () => {
          const { ticks, tickTexts } = await import("/static/scale.js");
          const ranges = [[5.5, 5.58], [24, 30], [-3, 4], [0, 1e-7], [99.9, 100.1], [-0.4, 0.9]];
          return [...ranges.map(([low, high]) => tickTexts(ticks(low, high, 3))),
                  tickTexts([0, -2.5, -5])];
        }"""
    )
    for texts in marks:
        assert 2 <= len(set(texts)) == len(texts) <= 6, texts


def test_all_modules_of_the_page_are_asked_for_at_once() -> None:
    modules = {str(path.relative_to(STATIC)) for path in STATIC.rglob("*.js")}
    named = set(
        re.findall(r'(?:href|src)="/static/([^"]+[.]js)"', (STATIC / "index.html").read_text())
    )
    assert named == modules - {"exported.js", "views/contents.js"}
