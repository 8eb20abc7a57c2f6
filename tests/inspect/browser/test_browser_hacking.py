"""Is the reward hacked: the answer, rewards of a step, clusters of answers, each with its list."""

from __future__ import annotations

import re
from collections.abc import Generator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.inspect.browser.inspector_page import at, inspecting, opened, watched
from tests.inspect.browser.test_browser_access import CONTRAST, NAMELESS
from tests.inspect.hacked_runs import write_hacked_run


@pytest.fixture(scope="module")
def hacked(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    with inspecting(write_hacked_run(tmp_path_factory.mktemp("web") / "hacked")) as address:
        yield address


def test_from_the_first_screen_to_the_answer_and_to_those_who_were_paid(
    page: Page, hacked: str
) -> None:
    opened(page, at(hacked, "run", run="hacked"))
    page.get_by_role("link", name="Hacked?").click()
    answer = page.get_by_role("region", name="Answer", exact=True)
    expect(answer).to_contain_text("The reward rises and the environment's own score falls")
    expect(answer).to_contain_text("Of the parts, confidence rose most")
    expect(answer).to_contain_text("1 cluster of near-identical answers")
    expect(page.locator(".curve-card polyline.curve")).to_have_count(4)
    alike = page.get_by_role("region", name="Near-identical answers")
    # What a model wrote is text here, too.
    expect(alike).to_contain_text("<script>alert('x')</script>")
    members = alike.locator("a.strong")
    count = re.findall(r"\d+", members.inner_text())[0]
    members.click()
    expect(page.locator(".card.scroll p b")).to_have_text(f"{count} rollouts")
    expect(page.get_by_label("answer like that of rollout")).to_have_value(
        re.compile(r"^step-\d+/")
    )
    page.go_back()
    expect(alike.locator("a.strong")).to_have_text(f"{count} rollouts")
    alike.get_by_label("Steps whose answers are compared").select_option("40")
    expect(page).to_have_url(re.compile("among=40"))
    expect(alike.locator("a.strong")).to_have_text("16 rollouts")


def test_a_bar_of_the_rewards_of_a_step_leads_to_its_rollouts(page: Page, hacked: str) -> None:
    opened(page, at(hacked, "hacking", run="hacked"))
    rewards = page.get_by_role("region", name="Rewards of a step")
    expect(rewards.get_by_role("heading")).to_have_text("Rewards of train step 40")
    for step in (30, 20):
        rewards.get_by_role("link", name="previous step").click()
        expect(rewards.get_by_role("heading")).to_have_text(f"Rewards of train step {step}")
    bars = rewards.locator(".reward-bars a")
    counts = [int(text) for text in rewards.locator(".reward-bars b").all_inner_texts()]
    assert sum(counts) == 16
    assert len(counts) > 1
    bars.last.click()
    expect(page.locator(".card.scroll p b")).to_have_text(f"{counts[-1]} rollouts")
    expect(page.locator(".hits .reward").first).to_have_text("0.900")
    # The questions that are ready lead back.
    page.get_by_role("navigation", name="Questions").get_by_role(
        "link", name="same text in many tasks"
    ).click()
    questions = page.get_by_role("navigation", name="Questions")
    questions.get_by_role("link", name="paid and wrong").click()
    expect(page.locator("#find-text")).to_have_value("is:paid is:wrong sort:-reward")
    expect(page.locator(".hits .reward").first).to_have_text("0.900")
    # A count within the answer leads to exactly what it counts.
    opened(page, at(hacked, "hacking", run="hacked"))
    answer = page.get_by_role("region", name="Answer", exact=True)
    count = answer.locator("a[data-key^=count]").first
    wrong = count.inner_text().split(" of ")[0]
    count.click()
    expect(page.locator(".card.scroll p b")).to_have_text(re.compile(f"^{wrong} rollouts?$"))
    # Steps that are not stored are no error.
    opened(page, at(hacked, "find", run="hacked", kind="train", step_min=11, step_max=15))
    expect(page.locator("#main")).to_contain_text("Nothing found")


def test_a_point_of_a_curve_counts_the_rewards_of_its_step(page: Page, hacked: str) -> None:
    opened(page, at(hacked, "hacking", run="hacked"))
    chart = page.get_by_role("slider", name="Reward against score by step")
    chart.focus()
    page.keyboard.press("Home")
    for _ in range(14):
        page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    # The newest step before it of which rollouts are stored.
    expect(page.get_by_role("heading", name="Rewards of train step 10")).to_be_visible()


@pytest.mark.parametrize(("width", "theme"), [(1440, "light"), (400, "dark")])
def test_the_view_is_legible_named_and_fits(
    browser: Browser, hacked: str, theme: str, width: int
) -> None:
    with watched(browser, color_scheme=theme) as page:
        page.set_viewport_size({"width": width, "height": 900})
        opened(page, at(hacked, "hacking", run="hacked", step=20))
        expect(page.locator(".clusters > li")).to_have_count(1)
        page.wait_for_timeout(150)
        assert page.evaluate(CONTRAST) == []
        assert page.evaluate(NAMELESS) == []
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
