"""Images in the place of their labels, on the served page and in an exported file."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Browser, Page, expect

from agentrl.data import TrajectoryStore
from agentrl.inspect.export.files import export_rollouts
from agentrl.inspect.export.formats import ExportFormat
from tests.inspect.browser.inspector_page import at, inspecting, opened, watched
from tests.inspect.test_explanations import reader_of
from tests.inspect.test_shown_images import seen_run


def check(page: Page, digests: list[str]) -> None:
    """The prompt has one image, the feedback one and a note for the file that is gone."""
    prompt, feedback = page.locator(".role-prompt"), page.locator("#turn-1")
    expect(prompt.locator("pre").first).to_have_text("Look: ")
    for image in (prompt.locator("img"), feedback.locator("img")):
        image.scroll_into_view_if_needed()
        expect(image).to_have_js_property("naturalWidth", 60)
    figures = feedback.locator("figure")
    expect(figures.nth(0)).to_have_attribute("title", f"{digests[1]} at token 5")
    expect(figures.nth(0)).to_contain_text("image 2: 60x40, 2 tokens, 2 features")
    expect(figures.nth(1)).to_contain_text("its file is not in the run")
    expect(feedback.locator("pre").last).to_have_text("?")


def test_images_stand_where_the_model_saw_them(browser: Browser, tmp_path: Path) -> None:
    run, images = seen_run(tmp_path)
    reader = reader_of(run)
    digests = [image.digest for image in images]
    place = {"kind": "train", "step": 1, "rollout": "g/0"}
    with inspecting(run) as served, watched(browser) as page:
        opened(page, at(served, "rollout", run="run", **place))
        check(page, digests)
        opened(page, at(served, "group", run="run", kind="train", step=1, group="g"))
        for shown in (page.locator(".card.prompt"), page.locator(".reply")):
            expect(shown.locator("img")).to_have_count(1)
            expect(shown).not_to_contain_text("[image")
    file = tmp_path / "shared.html"
    export_rollouts(file, ExportFormat.HTML, TrajectoryStore(run / "trajectories").read(), reader)
    with watched(browser) as page:
        opened(page, at(file.as_uri(), "rollout", run=reader.run.id, **place))
        check(page, digests)
