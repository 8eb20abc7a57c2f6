"""The files of `agentrl rm report`: the diagram in numbers, the page with hostile names in it."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from agentrl.fit.rating.probe_scores import ProbeResult
from agentrl.fit.rating.reliability_plot import reliability_svg
from agentrl.fit.rating.report_page import report_page
from agentrl.fit.rating.report_text import report_markdown
from agentrl.fit.rating.reward_report import RewardReport
from agentrl.reward.calibration import Calibration, calibration_report, measure_calibration
from agentrl.reward.scale import RewardScale

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "<script>alert(1)</script>\" onload='x' & | \udcff"


def calibration(count: int = 60) -> Calibration:
    """Right in two of three pairs, and the surer the more often."""
    logits = [0.1 * (n + 1) * (-1 if n % 3 == 0 and n < count // 2 else 1) for n in range(count)]
    return measure_calibration(logits, None)


def report() -> RewardReport:
    chosen = [0.1 * n for n in range(40)]
    rejected = [1.9] * 40
    found = calibration_report(
        chosen, rejected, chosen_lengths=[3.0] * 40, rejected_lengths=[3.0 + n for n in range(40)],
        temperature=2.0, sources=[HOSTILE, "b"] * 20,
    )  # fmt: skip
    probe = ProbeResult(
        meaning="empty", pairs=4, below=0.75, below_low=0.3, below_high=0.95, mean_drop=0.5
    )
    return RewardReport(
        model=HOSTILE, data=HOSTILE, calibrated_on=HOSTILE, temperature_problem="",
        temperature_prior=HOSTILE,
        left_out={HOSTILE: 2}, calibration=found, probes={"empty": probe}, not_probed=1,
        whitened_on=HOSTILE, scale=RewardScale(temperature=2.0, mean=0.5, std=1.5),
        scale_problem="",
    )  # fmt: skip


def points(root: ElementTree.Element, tag: str) -> list[tuple[float, float]]:
    """Places of the markers of one shape, that of the legend left out."""
    found = []
    for group in root.iter(f"{SVG}g"):
        for node in group.findall(f"{SVG}{tag}"):
            if tag == "circle":
                found.append((float(node.attrib["cx"]), float(node.attrib["cy"])))
            else:
                found.append((float(node.attrib["x"]) + 4, float(node.attrib["y"]) + 4))
    return found


def test_the_diagram_has_a_point_for_every_bin_where_it_belongs() -> None:
    """Fails if an axis is turned round or its ends are wrong, or both curves show one set."""
    before = calibration()
    after = replace(before, table=tuple(replace(b, mean_p=0.75) for b in before.table))
    root = ElementTree.fromstring(reliability_svg(before, after))
    circles, squares = points(root, "circle"), points(root, "rect")
    assert len(circles) == len(squares) == len(before.table)
    x_of = {0.5: 64.0, 1.0: 540.0}
    for (x, y), each in zip(circles, before.table, strict=True):
        assert x == pytest.approx(
            x_of[0.5] + (each.mean_p - 0.5) / 0.5 * (x_of[1.0] - x_of[0.5]), abs=0.06
        )
        assert 84 - 0.1 <= y <= 384 + 0.1
    assert {round(x) for x, _ in squares} == {302}, "0.75 is in the middle"
    best = max(before.table, key=lambda b: b.share_right)
    assert circles[before.table.index(best)][1] == min(y for _, y in circles)
    texts = [node.text for node in root.iter(f"{SVG}text")]
    assert any(f"ECE {before.ece:.3f}" in (text or "") for text in texts)


def test_without_a_temperature_there_is_one_curve() -> None:
    root = ElementTree.fromstring(reliability_svg(calibration(), None))
    assert points(root, "rect") == []
    assert len(points(root, "circle")) == 15


def test_one_pair_is_a_diagram_too() -> None:
    one = measure_calibration([2.0], None)
    root = ElementTree.fromstring(reliability_svg(one, one))
    assert len(points(root, "circle")) == 1


class Tags(HTMLParser):
    """Names of tags and attributes, and the text between."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_shows_all_of_it_and_hostile_names_are_text() -> None:
    """Fails if a name becomes markup, or the page may ask for anything."""
    found = report()
    page = report_page(found, reliability_svg(found.calibration.overall.before, None))
    page.encode()
    tags = Tags()
    tags.feed(page)
    assert not {"script", "img", "link", "iframe", "object"} & set(tags.tags)
    names = [name for name, _ in tags.attributes]
    assert not [name for name in names if name.startswith("on") or name in ("style", "src", "href")]
    assert "http" not in re.sub(r"http://www\.w3\.org/2000/svg|http-equiv", "", page)
    assert tags.text.count("<script>alert(1)</script>") >= 5
    policy = next(value for name, value in tags.attributes if value and "default-src" in value)
    assert "default-src 'none'" in policy
    assert "svg" in tags.tags
    for said in ("Calibration", "Probes", "temperature 2, mean 0.5", "1 pairs had no text"):
        assert said in tags.text


def test_markdown_and_page_have_the_same_cells() -> None:
    found = report()
    tags = Tags()
    tags.feed(report_page(found, ""))
    rows = [line for line in report_markdown(found).splitlines() if line.startswith("| ")]
    assert len(rows) == tags.tags.count("tr")
    assert f"{found.calibration.overall.after.accuracy:.3f}" in tags.text
