"""Questions of a first-time reader: what is said once, in words, on a wide and a narrow page."""

from __future__ import annotations

import re
from pathlib import Path

from playwright.sync_api import Browser, expect

from agentrl.data.run.labels import RolloutLabel, add_label, read_labels
from agentrl.data.run.paths import RunPaths
from agentrl.types import ToolCall, Turn
from tests.inspect.browser.inspector_page import at, inspecting, opened, watched
from tests.inspect.pages.test_compare import once_each
from tests.inspect.pages.test_payment import paid_run
from tests.inspect.synthetic import make_rollout, write_metrics, write_step

SIDES = {"kind": "train", "steps": "1", "b_kind": "train", "b_steps": "2"}


def read_once(run: Path) -> Path:
    """Tasks that never come back, an evaluation twice, and eight siblings of two turns."""
    once_each(run)
    for step, reward in ((0, 0.0), (2, 1.0)):
        row = make_rollout(f"e{step}/0", [("assistant", "x")], task_id="e", score=reward)
        write_step(run, [row], step, kind="eval/held")
    many = []
    for n in range(8):
        talk = make_rollout(
            f"many/{n}", [("assistant", "add(1)"), ("user", "no"), ("assistant", f"say {n}")],
            group_id="many", task_id="many", reward=n % 2, score=n % 2, duration_s=30.0 + 30 * n,
        )  # fmt: skip
        call = ToolCall(id="c", name="add", arguments={"code": "1"}, raw="add(1)", span=(0, 6))
        first = Turn(role="assistant", start=0, end=6, text="add(1)", tool_calls=(call,))
        many.append(type(talk)(**{**fields(talk), "turns": (first, *talk.turns[1:])}))
    write_step(run, many, 3)
    score = {"eval/held/score": 0.0, "eval/held/score_low": 0.0, "eval/held/score_high": 0.4}
    write_metrics(run, {"step": 0, "time": 1.0, **score})
    for step in (1, 2, 3):
        write_metrics(run, {"step": step, "time": 1.0 + step, "reward": 0.8, "score": 0.8})
    write_metrics(run, {"step": 2, "time": 3.5, **{name: of + 0.5 for name, of in score.items()}})
    return run


def fields(row: object) -> dict[str, object]:
    return {name: getattr(row, name) for name in type(row).__dataclass_fields__}  # type: ignore[attr-defined]


def test_a_first_reader_finds_each_thing_once_and_in_words(
    browser: Browser, tmp_path: Path
) -> None:
    run = {"run": "planted"}
    many = {**run, "kind": "train", "step": 3}
    runs = read_once(tmp_path / "planted"), paid_run(tmp_path)
    with inspecting(*runs) as served, watched(browser) as page:
        opened(page, at(served, "step", **many))
        expect(page.get_by_role("columnheader", name="mean reward = score")).to_be_visible()
        expect(page.get_by_role("columnheader", name=re.compile("^score"))).to_have_count(0)
        opened(page, at(served, "task", **run, task="2-sum"))
        expect(page.get_by_label("Attempts")).to_contain_text("Tried only in train step 2")
        expect(page.get_by_label("Attempts").locator("li")).to_have_count(2)
        expect(page.locator(".curve-card h3")).to_have_text("family sum")
        opened(page, at(served, "task", **run, task="e"))
        expect(page.locator("main")).to_contain_text("ot solved at step 0")
        ends = page.get_by_label("First and last answer").locator("[data-item]")
        expect(ends).to_contain_text(["evaluation held step 0 score 0", "evaluation held step 2"])
        expect(page.get_by_label("Attempts")).to_have_count(0)
        expect(page.locator(".curve.between")).to_have_count(2)
        opened(page, at(served, "compare", **run, **SIDES))
        expect(page.locator(".learned-sum")).to_contain_text("A and B share no task")
        expect(page.get_by_role("heading", name="Change by family")).to_be_visible()
        expect(page.get_by_text("Only B solves")).to_have_count(0)
        page.get_by_role("link", name="evaluation held").click()
        expect(page.locator(".learned-sum")).to_contain_text("A 0, B 1, B \u2212 A = ")
        opened(page, at(served, "rollout", **many, rollout="many/3"))
        expect(page.locator("#turn-0 > summary")).to_contain_text("turn 1 of 2")
        expect(page.locator("#turn-0 > summary")).to_contain_text("6 tokens, none trained")
        expect(page.locator("#turn-1 > summary")).to_contain_text("after turn 1")
        # The call is the whole answer, and is read once.
        expect(page.locator("#turn-0 > pre")).to_have_count(0)
        expect(page.locator("#turn-2 > pre")).to_have_text("say 3")
        opened(page, at(served, "rollout", run="run", kind="train", step=1, rollout="g/0"))
        expect(page.locator("#turn-0 .earned")).to_have_text(
            "environment's reward 0 (weight 0: not paid)"
        )
        outcome = page.locator(".side .card", has_text="Outcome")
        expect(outcome).to_contain_text("environment's reward (weight 0)0")
        expect(page.locator("#why")).to_contain_text("Why this score")
        opened(page, at(served, "rollout", **many, rollout="many/3"))
        page.set_viewport_size({"width": 400, "height": 800})
        places = [page.locator(one).first.bounding_box() for one in ("#turn-0", ".side")]
        turn, side = (place["y"] for place in places if place)
        assert turn < side


def test_all_siblings_are_in_sight_at_any_width(browser: Browser, tmp_path: Path) -> None:
    place = {"run": "planted", "kind": "train", "step": 3, "group": "many"}
    with inspecting(read_once(tmp_path / "planted")) as served, watched(browser) as page:
        for width in (400, 800, 1400):
            page.set_viewport_size({"width": width, "height": 900})
            opened(page, at(served, "group", **place))
            boxes = [one.bounding_box() for one in page.locator(".cell.sibling").all()]
            assert len(boxes) == 8
            times = page.locator(".cell.sibling dt:text-is('time') + dd").all_inner_texts()
            assert {time.split()[1] for time in times} == {"min"}, "one unit for all siblings"
            assert all(box and box["x"] + box["width"] <= width for box in boxes)
            # Second turns that stand beside each other are level.
            turns = [one.bounding_box() for one in page.locator("h3", has_text="Turn 2 of 2").all()]
            rows = {round(box["y"]) for box in turns if box}
            assert len(rows) == -(-8 // sum(box["y"] == boxes[0]["y"] for box in boxes if box))


def test_rates_start_at_zero_and_intervals_stand_at_their_steps(
    browser: Browser, tmp_path: Path
) -> None:
    with inspecting(read_once(tmp_path / "planted")) as served, watched(browser) as page:
        opened(page, at(served, "run", run="planted"))
        reward = page.locator(".curve-card", has=page.get_by_role("heading", name="Reward"))
        expect(reward.locator("text.tick").first).to_have_text(re.compile(r"^0(\.0+)?$"))
        expect(reward.locator(".broken")).to_have_count(0)
        held = page.locator(".curve-card", has_text="Held-out score: held")
        expect(held.locator(".whisker")).to_have_count(2)
        expect(held.locator("polygon")).to_have_count(0)
        expect(held.locator(".curve.between")).to_have_count(1)
        page.get_by_text("All other metrics").click()
        cards = page.locator("article", has_text="eval/held/score_")
        expect(cards).to_have_count(2)
        for card in cards.all():
            expect(card).not_to_contain_text(re.compile(r"\d %(?! interval)"))


def test_tokens_are_labelled_by_a_click_and_agreement_is_shown(
    browser: Browser, tmp_path: Path
) -> None:
    run = read_once(tmp_path / "planted")
    path = RunPaths(run).labels_file
    for n in range(8):
        for by, word in (("ann", "odd" if n % 2 else "even"), ("judge:m", "odd" if n else "even")):
            label = RolloutLabel(kind="train", step=3, rollout=f"many/{n}", by=by, label=word)
            add_label(path, label)
    place = {"run": "planted", "kind": "train", "step": 3, "rollout": "many/3", "row": 0}
    with inspecting(run, options=["--labels"]) as served, watched(browser) as page:
        opened(page, at(served, "tokens", **place))
        tokens = page.locator(".block span")
        tokens.nth(3).click()
        tokens.nth(5).click(modifiers=["Shift"])
        expect(page.locator(".side")).to_contain_text("About tokens 0 to 2 of the response")
        page.get_by_label("Label", exact=True).fill("wrong")
        page.get_by_label("Reviewer").fill("bob")
        page.get_by_role("button", name="Add").click()
        expect(page.get_by_label("Labels")).to_contain_text("wrong tokens 0:3 by bob")
        expect(page.locator(".block span[data-label]")).to_have_count(3)
        opened(page, at(served, "run", run="planted"))
        card = page.locator("section[aria-label=Labels]")
        expect(card).to_contain_text("ann and judge:m")
        expect(card.locator("tbody tr").first).to_contain_text("0.25")
        card.get_by_role("link", name="wrong").click()
        expect(page.locator(".hits tbody tr")).to_have_count(1)
    given = [one for one in read_labels(path) if one.by == "bob"]
    assert [(one.first_token, one.end_token) for one in given] == [(0, 3)]


def test_a_run_that_is_given_alone_is_opened_at_once(browser: Browser, tmp_path: Path) -> None:
    """Fails if the printed address shows a list of one run, or the list cannot be reached."""
    runs = read_once(tmp_path / "planted"), paid_run(tmp_path)
    with inspecting(runs[0]) as served, watched(browser) as page:
        page.goto(served)
        expect(page.locator("h1")).to_contain_text("planted")
        page.get_by_role("link", name="runs", exact=True).click()
        expect(page.locator("h1")).to_have_text("Runs")
    with inspecting(*runs) as served, watched(browser) as page:
        page.goto(served)
        expect(page.locator("h1")).to_have_text("Runs")
