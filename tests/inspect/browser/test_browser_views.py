"""Every view is reached and does what it is for: from a curve down to a token and back."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Page, expect

from agentrl.types import AgentRequest, Explanation, Role
from tests.inspect.browser.inspector_page import (
    at,
    fact,
    first_group,
    inspecting,
    opened,
    rollout_of,
    watched,
)
from tests.inspect.conftest import HOSTILE
from tests.inspect.hacked_runs import write_hacked_run
from tests.inspect.synthetic import make_rollout, write_metrics, write_step

pytestmark = pytest.mark.slow


def test_from_a_point_of_a_curve_down_to_a_token_and_back(
    page: Page, served: str, run: str
) -> None:
    opened(page, at(served, "run", run=run))
    chart = page.get_by_role("slider", name="Tokens per second by step")
    chart.scroll_into_view_if_needed()
    scrolled = page.evaluate("scrollY")
    assert scrolled > 200
    box = chart.bounding_box()
    assert box is not None
    chart.click(position={"x": box["width"] / 3, "y": 50})
    expect(page.locator("h1")).to_have_text("Step 2")
    page.locator(".groups a.strong").first.click()
    expect(page.locator(".siblings .sibling")).to_have_count(4)
    page.locator(".sibling a.strong").first.click()
    expect(page.locator(".turn.role-assistant").first).to_be_visible()
    page.get_by_role("link", name="Tokens", exact=True).click()
    expect(page.locator(".block span[data-here]")).to_have_count(1)
    for view in ("rollout", "group", "step", "run"):
        page.go_back()
        expect(page.locator("#main")).to_have_attribute("data-ready", re.compile(f"^#/{view}[?]"))
    # Some frames later, when the charts have their size.
    page.wait_for_function("scrolled => Math.abs(scrollY - scrolled) <= 3", arg=scrolled)


def test_the_first_screen_shows_curves_findings_time_and_a_ledger_that_adds_up_to_1(
    page: Page, served: str, run: str
) -> None:
    opened(page, at(served, "run", run=run))
    for heading in (
        "Findings",
        "Dashboard",
        "Time by stage",
        "Throughput",
        "Compute",
        "Memory",
        "Waste ledger",
    ):
        expect(page.get_by_role("heading", name=heading)).to_be_visible()
    answers = page.get_by_role("region", name="At a glance").get_by_role("button")
    for number, asked in enumerate(("learning", "healthy", "hacked", "time", "trained on")):
        expect(answers.nth(number)).to_contain_text(asked)
        if asked != "hacked":
            assert re.search(r"\d", answers.nth(number).inner_text()), asked
    answers.nth(2).click()
    expect(page.locator("h1")).to_have_text("Is the reward hacked?")
    page.go_back()
    page.get_by_role("link", name=re.compile("^Open one that was paid")).click()
    expect(page.get_by_role("heading", name="Outcome", exact=True)).to_be_visible()
    page.go_back()
    page.get_by_role("link", name="Compare both").click()
    expect(page.locator("h1")).to_have_text("Compare")
    page.go_back()
    reward = page.locator(".curve-card", has_text="Reward").first
    expect(reward.locator("polyline.curve")).to_have_count(1)
    entropy = page.locator(".curve-card", has_text="Entropy").first
    bounds = entropy.locator("summary")
    expect(bounds).to_have_text("healthy 0.05 to 3, flag below 0.05 or above 6")
    bounds.click()
    expect(entropy).to_contain_text("mode collapse")
    page.locator("summary", has_text="All other metrics").click()
    page.get_by_label("Metrics by name").fill("num_turns")
    expect(page.locator(".curve-card.plain p").last).to_have_text("Assistant turns of a rollout.")
    assert page.locator(".chart rect.healthy").count() > 3
    assert page.locator(".chart rect.red").count() > 0
    shares = page.locator(".share", has_text="trained").first.locator("li b").all_inner_texts()
    assert sum(float(text.removesuffix("\xa0%")) for text in shares) == pytest.approx(100, abs=0.5)


def test_a_finding_opens_with_its_evidence_and_what_to_change(page: Page, tmp_path: Path) -> None:
    with inspecting(write_hacked_run(tmp_path / "hacked")) as address:
        opened(page, at(address, "run", run="hacked"))
        finding = page.locator(".finding", has=page.locator(".pill.warn, .pill.fail")).first
        finding.locator("summary").click()
        expect(finding.get_by_role("heading", name="Evidence")).to_be_visible()
        expect(page.get_by_role("heading", name="What to change in the run file")).to_be_visible()
        keys = page.locator(".changes code").all_inner_texts()
        assert len({text.partition(":")[0] for text in keys}) == len(keys), "one value a key"


def test_what_was_learned_leads_to_tasks_their_steps_and_pairs_of_rollouts(
    page: Page, served: str, run: str
) -> None:
    opened(page, at(served, "run", run=run))
    learned = page.get_by_role("region", name="What did it learn, what did it forget?")
    expect(learned).to_contain_text("First against last evaluation of held")
    # Three tasks are too few to say for certain that something changed, not what it came from.
    expect(learned.locator(".learned-why h3")).to_have_text(
        re.compile(r"^Why did the score of held (rise|fall) by [\d.]+\? \(It may be chance\.\)$")
    )
    cause = learned.get_by_role("row", name=re.compile("^a wrong answer"))
    expect(cause.get_by_role("link", name=re.compile("failed \u2192 solved: "))).to_be_visible()
    count = cause.get_by_title("These rollouts").first
    told = re.search(r"(\d+) of", count.inner_text())
    count.click()
    expect(page.locator("h1")).to_have_text("Find")
    expect(page.locator("table.hits tbody tr")).to_have_count(int(told[1]) if told else -1)
    expect(page.get_by_label("failed by", exact=True)).to_have_value(re.compile("^a wrong answer"))
    page.go_back()
    changed = re.findall(r"(\d+) tasks? (?:gained|lost|unchanged)", learned.inner_text())
    assert sum(map(int, changed)) == 3
    learned.get_by_role("link", name="All tasks").click()
    rows = page.locator("table.tasks tbody tr")
    expect(rows).to_have_count(3)
    told = page.get_by_role("region", name="Change over all tasks")
    expect(told).to_contain_text("over 3 tasks")
    changes = "td:nth-child(4)"
    numbers = [text.replace("\u2212", "-") for text in rows.locator(changes).all_inner_texts()]
    assert [float(text) for text in numbers] == sorted(map(float, numbers), reverse=True)
    page.get_by_role("link", name="Lost most").click()
    expect(page).to_have_url(re.compile("sort=loss"))
    page.get_by_label("rollouts", exact=True).select_option("train")
    expect(page.get_by_label("level", exact=True)).to_have_count(1)
    page.get_by_label("level", exact=True).select_option("level:2")
    drawn = page.locator("#main")
    expect(drawn).to_have_attribute("data-ready", re.compile("label=level%3A2"))
    page.get_by_label("Part of a task's id").fill("TRAIN/")
    page.keyboard.press("Enter")
    expect(drawn).to_have_attribute("data-ready", re.compile("label=level%3A2.*q=TRAIN"))
    names = rows.locator("a.strong").all_inner_texts()
    assert names
    assert set(names) <= {"train/2", "train/5", "train/8"}
    page.locator(".score-columns .at-step").first.click()
    expect(page.locator(".siblings .sibling")).to_have_count(4)
    task = page.locator("h1").inner_text()
    page.get_by_role("link", name="All steps of this task").click()
    expect(page.locator("h1")).to_have_text(task)
    expect(page.locator("table.tasks tbody tr").first).to_contain_text(re.compile(r"train step \d"))


def test_two_runs_are_compared_down_to_two_rollouts_side_by_side(page: Page, served: str) -> None:
    opened(page, served + "#/runs")
    page.get_by_label("Compare recorded").check()
    page.get_by_label("Compare second").check()
    page.get_by_role("link", name="Compare their rollouts").click()
    table = page.locator("table.compared").first
    expect(table.get_by_role("cell", name=re.compile(r"score$"))).to_be_visible()
    for name in ("tokens", "turns", "tool calls", "calls broken by a tool error"):
        expect(table.get_by_role("cell", name=name, exact=True)).to_be_visible()
    expect(page.locator(".sub")).to_contain_text("B second, evaluation held step 4: 6 rollouts")
    page.get_by_label("rollouts of B").select_option("train")
    expect(page.locator(".sub")).to_contain_text("B second, train step 4")
    page.get_by_label("step from of B").select_option("1")
    expect(page.locator(".sub")).to_contain_text("B second, train steps 1 to 4")
    page.get_by_role("button", name="Swap A and B").click()
    expect(page.locator(".sub")).to_contain_text("A second, train steps 1 to 4")
    expect(page.locator(".sub")).to_contain_text("B recorded, evaluation held step 4")
    ours = page.request.get(f"{served}api/step?run=recorded&kind=eval/held&step=4").json()
    group = ours["groups"][0]["group_id"]
    a, b = f"{group}/0", f"{group}/1"
    opened(page, at(served, "pair", run="recorded", kind="eval/held", step=4, rollout=a,
                    b_run="second", b_rollout=b))  # fmt: skip
    for name, text in (("A", "recorded, evaluation held step 4"), ("B", "second, evaluation")):
        expect(page.get_by_role("region", name=f"Rollout {name}")).to_contain_text(text)
    theirs = page.request.get(
        f"{served}api/rollout?run=second&kind=eval/held&step=4&rollout={quote(b)}"
    ).json()
    tokens = page.get_by_role("region", name="Rollout B").locator("dt:text-is('tokens') + dd")
    expect(tokens).to_have_text(str(theirs["action_tokens"]))
    expect(page.locator(".beside .turn")).not_to_have_count(0)
    page.get_by_role("link", name="Plain texts").click()
    expect(page.get_by_text("how B differs from A")).to_have_count(0)


def test_runs_are_drawn_side_by_side_on_the_same_axes(page: Page, served: str) -> None:
    opened(page, served + "#/runs")
    expect(page.locator("table.runs tbody tr")).to_have_count(2)
    page.get_by_label("Compare recorded").check()
    expect(page.locator(".curve-card").first).to_be_visible()
    page.get_by_label("Compare second").check()
    reward = page.locator(".curve-card", has_text="Reward").first
    expect(reward.locator("polyline.curve")).to_have_count(2)
    assert "pick=" in page.url
    page.reload()
    expect(page.locator(".curve-card", has_text="Reward").first.locator("polyline")).to_have_count(
        2
    )
    expect(page.locator(".curve-card", has_text="Reward").first.locator(".names b")).to_have_text(
        [re.compile(r"\d"), re.compile(r"\d")]
    )
    told = page.locator("details[data-key=differences]")
    if told.get_attribute("open") is None:
        told.locator("summary").click()
    expect(told.locator("tr", has_text="run.seed")).to_contain_text("5")


def test_a_step_lists_its_groups_and_sorts_them(page: Page, served: str, run: str) -> None:
    opened(page, at(served, "step", run=run, kind="train", step=1))
    rewards = page.locator(".groups td:nth-child(3)")
    page.get_by_role("button", name="mean reward").click()
    down = [float(text) for text in rewards.all_inner_texts()]
    page.get_by_role("button", name="mean reward").click()
    up = [float(text) for text in rewards.all_inner_texts()]
    assert len(down) > 1
    assert down == sorted(down, reverse=True)
    assert up == sorted(up)
    page.keyboard.press("]")
    expect(page.locator("h1")).to_have_text("Step 2")
    page.get_by_label("Kind of rollouts").select_option("eval/held")
    expect(page.locator("#crumbs")).to_contain_text("evaluation held step 2")


def test_siblings_show_where_they_part_and_how_they_differ(
    page: Page, served: str, run: str
) -> None:
    group = first_group(page, served, run)["group_id"]
    opened(page, at(served, "group", run=run, kind="train", step=1, group=group))
    expect(page.get_by_role("region", name="Outcomes")).to_contain_text("of 4 siblings")
    second = page.locator(".sibling").nth(1)
    name = second.locator("a.strong").inner_text()
    second.get_by_role("link", name="compare").click()
    expect(page.locator(".sibling.base")).to_contain_text(name)
    expect(page.locator("ins, del").first).to_be_visible()
    page.keyboard.press("b")
    expect(page.locator(".sibling.base")).to_have_count(0)


def test_a_rollout_shows_calls_their_results_and_where_else_its_task_was_tried(
    page: Page, served: str, run: str
) -> None:
    place = rollout_of(page, served, run, lambda one: one["termination"] == "env_done")
    opened(page, f"{served}#/rollout?{place}")
    call = page.locator(".call").first
    expect(call).to_contain_text("python")
    expect(call.locator(".arguments")).to_contain_text("code")
    results = page.locator(".result")
    expect(results.locator(".pill", has_text="ok").first).to_be_visible()
    expect(results.locator(".pill", has_text="error").first).to_be_visible()
    before = page.url
    slider = page.get_by_label("The same task across the training")
    slider.focus()
    page.keyboard.press("End" if slider.input_value() == "0" else "Home")
    expect(page).not_to_have_url(before)
    # A menu that is opened before the other rollout is drawn goes with the page before it.
    shown = f"#{page.url.partition('#')[2]}"
    expect(page.locator("#main")).to_have_attribute("data-ready", shown)
    expect(page.locator(".turn").first).to_be_visible()
    with page.expect_download() as download:
        page.locator(".menu summary").click()
        page.get_by_role("link", name="JSONL").click()
    assert Path(download.value.path()).stat().st_size > 100


def tokens_page(page: Page, served: str, run: str) -> Page:
    place = rollout_of(page, served, run, lambda one: bool(one["advantage"]))
    opened(page, f"{served}#/tokens?{place}")
    expect(page.locator(".block span[data-here]")).to_have_count(1)
    return page


def test_every_overlay_is_switched_and_every_number_of_a_token_shown(
    page: Page, served: str, run: str
) -> None:
    tokens_page(page, served, run)
    expect(page.locator(".head .sub")).to_have_text(
        re.compile(r"\d+ prompt tokens\d+ response tokens\d+ of them trained")
    )
    for name in ("sampler log-prob", "trainer log-prob", "trainer - sampler",
                 "entropy", "advantage", "importance ratio", "sampler correction", "loss",
                 "reference log-prob"):  # fmt: skip
        assert re.search(r"\d", fact(page, name).inner_text()), name
    expect(fact(page, "reason")).to_have_text("trained")
    expect(page.locator("#token-facts .verdict")).to_have_text(
        re.compile(r"^TrainedProbability (rais|lower)ed, ratio [\d.]+, (not clipped|clipped at)")
    )
    expect(fact(page, "policy version")).to_have_text(re.compile(r"step \d"))
    switches = page.locator(".switches").filter(has_text="Entropy").locator("input")
    ids = [one.get_attribute("value") for one in switches.all()]
    assert ids == ["why", "rollout_log_prob", "old_log_prob", "gap", "entropy",
                   "advantage", "ratio", "correction", "loss", "version"]  # fmt: skip
    for number, overlay in enumerate(ids[:9], start=1):
        page.keyboard.press(str(number))
        expect(page).to_have_url(re.compile(f"over={overlay}"))
        here = page.locator(".block span[data-here]")
        assert here.get_attribute("class"), overlay
        expect(page.locator(".token-scale, .token-key")).to_be_visible()


def test_tokens_are_walked_with_the_keyboard_and_shown_as_ids(
    page: Page, served: str, run: str
) -> None:
    tokens_page(page, served, run)
    expect(fact(page, "position")).to_have_text("0 of the response")
    first = fact(page, "id").inner_text()
    page.locator("div.tokens").focus()
    page.keyboard.press("ArrowRight")
    expect(fact(page, "position")).to_have_text("1 of the response")
    page.keyboard.press("ArrowLeft")
    page.locator(".switches label", has_text="Ids").click()
    expect(page.locator(".block span[data-here]")).to_have_text(first + " ")
    page.locator(".switches label", has_text="Both").click()
    expect(page.locator(".block span[data-here]")).to_have_attribute("data-id", first)
    address = page.url
    assert "ids=both" in address
    page.goto("about:blank")
    page.goto(address)
    expect(page.locator(".with-ids")).to_be_visible()


def test_why_a_token_was_not_trained_is_said(page: Page, served: str, run: str) -> None:
    place = rollout_of(page, served, run, lambda one: one["termination"] == "max_tokens")
    opened(page, f"{served}#/tokens?{place}")
    expect(fact(page, "reason")).to_have_text("truncated: masked")
    expect(page.locator("#token-facts .verdict")).to_contain_text("the config masks those")
    expect(page.locator(".token-bar .token-key")).to_contain_text("environment or chat template")
    expect(page.locator(".token-bar .token-key")).to_contain_text(re.compile(r"= \d+ tokens"))


def test_find_by_text_and_filters_and_keep_the_link(page: Page, served: str, run: str) -> None:
    opened(page, at(served, "run", run=run))
    page.keyboard.press("/")
    expect(page.locator("#find-text")).to_be_focused()
    page.keyboard.type("ran a")
    page.keyboard.press("Enter")
    expect(page.locator(".hits mark").first).to_have_text("ran a")
    expect(page.locator(".hits tbody tr")).to_have_count(50)
    page.get_by_label("ended by").select_option("max_tokens")
    expect(page).to_have_url(re.compile("termination=max_tokens"))
    expect(page.locator(".hits .pill").first).to_have_text("max tokens")
    page.get_by_role("button", name="Save this link").click()
    asked = page.url
    page.keyboard.press("u")
    expect(page.locator("h1")).to_contain_text("recorded")
    opened(page, at(served, "find", run=run))
    page.locator(".saved a").click()
    expect(page).to_have_url(asked)
    page.locator(".hits a.strong").first.click()
    expect(page.locator(".turn").first).to_be_visible()


def test_sql_is_answered_and_its_rollouts_are_linked(page: Page, served: str, run: str) -> None:
    opened(page, at(served, "find", run=run) + "&sql=")
    box = page.get_by_role("textbox", name="SQL")
    box.fill("SELECT kind, step, rollout_id, reward FROM trajectories WHERE kind = 'train'")
    page.keyboard.press("Control+Enter")
    expect(page.locator("tbody a").first).to_be_visible()
    page.locator("tbody a").first.click()
    expect(page.locator(".turn").first).to_be_visible()
    page.go_back()
    expect(box).to_have_value(re.compile("^SELECT kind"))


def planted(folder: Path) -> Path:
    """Two siblings with reasons for their rewards and hostile text, and one of 217 turns."""
    run = folder / "planted"
    code = [f"line {number}" for number in range(30)]
    changed = "\n".join([*code[:12], "line twelve", *code[13:]])
    why = Explanation(
        reference="36", tests="passed a\nFAILED b", grader_output=HOSTILE, reason="35"
    )

    def talk(text: str) -> list[tuple[Role, str]]:
        return [("assistant", text), ("tool", HOSTILE), ("assistant", "done"), ("user", "no more")]

    long = [*talk("\n".join(code)) * 54, ("assistant", "the end")]
    rows = [
        make_rollout("g/0", talk("\n".join(code)), reward=0.0, score=0.0, explanation=why),
        make_rollout("g/1", talk(changed), explanation=Explanation(reference="36", reason="fine")),
        make_rollout("h/0", long, group_id="h", task_id="long", explanation=why),
    ]
    write_step(run, rows)
    write_metrics(run, {"step": 1, "time": 1.0})
    return run


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_reasons_answers_and_siblings_are_read_on_a_wide_and_a_narrow_page(
    browser: Browser, tmp_path: Path, scheme: str
) -> None:
    place = {"run": "planted", "kind": "train", "step": 1}
    with inspecting(planted(tmp_path)) as served, watched(browser, color_scheme=scheme) as page:
        opened(page, at(served, "group", **place, group="g"))
        expect(page.locator(".card.prompt pre")).to_be_visible()
        assert page.locator(".sibling a.strong").all_inner_texts() == ["Sibling 1", "Sibling 0"]
        expect(page.locator(".reply.role-tool").first).to_contain_text("<script>")
        expect(page.locator(".reply.role-user").first).to_contain_text("no more")
        expect(page.locator("#main")).to_contain_text("Reference answer")
        expect(page.locator(".cell.why").last).to_contain_text("FAILED b")
        page.get_by_role("button", name="Collapse all").click()
        expect(page.locator(".reply").first).to_be_hidden()
        page.keyboard.press("e")
        expect(page.locator(".reply").first).to_be_visible()
        page.get_by_role("link", name="Best and worst side by side").click()
        pair = page.locator(".split").first
        differs = pair.locator(".differs")
        expect(differs).to_have_count(1)
        assert differs.locator("pre").all_inner_texts() == ["line twelve", "line 12"]
        expect(pair.locator("details > summary").first).to_have_text("9 equal lines")
        boxes = [one.bounding_box() for one in differs.locator("pre").all()]
        assert boxes[0] is not None
        assert boxes[1] is not None
        assert boxes[0]["y"] == boxes[1]["y"], "lines stand level"
        views = (
            ("group", {"group": "g"}),
            ("rollout", {"rollout": "g/0"}),
            ("rollout", {"rollout": "h/0"}),
            ("pair", {"rollout": "g/1", "b_rollout": "g/0"}),
        )
        page.set_viewport_size({"width": 400, "height": 800})
        for view, more in views:
            opened(page, at(served, view, **place, **more))
            assert page.evaluate("document.documentElement.scrollWidth") <= 400, view


def test_a_long_rollout_has_an_outline_to_jump_from(browser: Browser, tmp_path: Path) -> None:
    place = {"run": "planted", "kind": "train", "step": 1, "rollout": "h/0"}
    with inspecting(planted(tmp_path)) as served, watched(browser) as page:
        opened(page, at(served, "rollout", **place))
        expect(page.locator(".turn.role-prompt pre")).to_be_visible()
        expect(page.locator("#why")).to_contain_text("grader output")
        expect(page.locator(".outline li")).to_have_count(217)
        page.keyboard.press("x")
        # The 101st turn of the model is the 201st of all.
        turn = page.locator("#turn-200")
        expect(turn.locator("pre")).to_be_hidden()
        page.get_by_label("Go to turn").fill("101")
        page.keyboard.press("Enter")
        expect(turn).to_be_in_viewport()
        expect(turn.locator("pre")).to_be_visible()
        expect(turn.locator("summary").first).to_be_focused()
        expect(turn.locator("summary").first).to_contain_text("turn 101 of 109")
        expect(page.locator("#turn-201 > summary")).to_contain_text("after turn 101")
        page.keyboard.press("f")
        expect(page.locator("#turn-201")).to_be_in_viewport()
        page.get_by_role("button", name="Why this reward").click()
        expect(page.locator("#why")).to_be_in_viewport()


def test_requests_of_an_agent_are_a_tree_that_leads_to_their_turns(
    browser: Browser, tmp_path: Path
) -> None:
    run = tmp_path / "asked"
    requests = (
        AgentRequest(kind="title", untrained="side_call", sampled_tokens=3, asked=HOSTILE),
        AgentRequest(row=0, turn=0, sampled_tokens=4, said=HOSTILE, retries=2),
        AgentRequest(behind=1, row=0, turn=2, sampled_tokens=9),
        AgentRequest(behind=1, branch="edited", row=1, turn=0, sampled_tokens=2),
        AgentRequest(behind=2, refused=f"limit: {HOSTILE}"),
    )
    first = [("assistant", "a\n" * 90), ("tool", "b"), ("assistant", "c")]
    rows = [
        make_rollout("g/0", first, requests=requests),  # type: ignore[arg-type]
        make_rollout("g/0", [("assistant", "d")], row_index=1),
        make_rollout("g/1", [("assistant", "e")]),
    ]
    write_step(run, rows)
    write_metrics(run, {"step": 1, "time": 1.0})
    place = {"run": "asked", "kind": "train", "step": 1}
    with inspecting(run) as served, watched(browser) as page:
        opened(page, at(served, "rollout", **place, rollout="g/0"))
        lines = page.locator(".requests li")
        numbers = lines.evaluate_all("all => all.map((one) => one.dataset.number)")
        assert numbers == ["0", "1", "3", "2", "4"]
        expect(lines.nth(0)).to_contain_text("not trained: side calls are not trained on")
        expect(lines.nth(1)).to_contain_text("asked 2 more times")
        expect(lines.nth(2)).to_contain_text("branch of #1: a message before it was changed")
        expect(lines.nth(4)).to_contain_text("refused: limit: <script>")
        expect(page.locator(".row-title").last).to_contain_text("a message before it was changed")
        indents = lines.evaluate_all("all => all.map((one) => getComputedStyle(one).marginLeft)")
        assert indents == ["0px", "0px", "20px", "0px", "20px"]
        page.get_by_role("button", name="row 1, turn 0").click()
        expect(page.locator("#turn-1-0")).to_be_in_viewport()
        opened(page, at(served, "rollout", **place, rollout="g/1"))
        expect(page.locator(".requests")).to_have_count(0)
