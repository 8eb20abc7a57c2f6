"""`docs/defaults.md`: every default, bound, name and number of ours on the page is the real one."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from agentrl.config import leaves
from agentrl.config.algorithm import AlgorithmSection
from agentrl.config.explain import OTHER_NAMES
from agentrl.config.keys import sections_at
from agentrl.config.presets import IS_BOUNDS, PRESETS
from agentrl.estimators import ESTIMATORS, GroupRewards
from agentrl.preflight.checks import choice, setup

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "defaults.md").read_text()


def table(heading: str) -> list[list[str]]:
    """Cells of the rows of the table below a heading of the page."""
    part = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in part.splitlines() if line.startswith("|")]
    assert len(rows) > 3, heading
    return rows[2:]


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_every_default_is_that_of_the_schema() -> None:
    known = {key.name: key.default for key in leaves()}
    rows = table("Defaults")
    assert {row[0].strip("`"): row[1].strip("`") for row in rows} == {
        name: known.get(name) for row in rows for name in quoted(row[0])
    }
    assert len(rows) >= 15
    assert all(len(row) == 4 and row[3] for row in rows)


def test_every_block_is_that_of_the_preset() -> None:
    rows = table("Blocks by preset")
    assert {name.strip("`") for name, *_ in rows} == set(PRESETS)
    for name, *cells in rows:
        blocks = PRESETS[name.strip("`")]
        place = "loss" if blocks["use_kl_loss"] else "reward"
        assert cells == [
            f"{place}, {blocks['kl_estimator']}",
            f"{blocks['eps_clip_low']:g}, {blocks['eps_clip_high']:g}",
            f"`{blocks['loss_agg_mode']}`",
            "yes" if blocks["whiten_advantages"] else "no",
        ], name
        own = "recompute" if name == "`tis_reinforce`" else "rollout"
        assert blocks["old_log_probs"] == own


def test_every_correction_has_the_bounds_of_the_page() -> None:
    for name in IS_BOUNDS:
        section = AlgorithmSection(is_correction_type=name)  # type: ignore[arg-type]
        assert section.resolved(horizon=1).old_log_probs == "recompute"
    found = {row[0].strip("`"): row[1] for row in table("Corrections for the sampler")}
    assert found == {name: f"{low:g}, {high:g}" for name, (low, high) in IS_BOUNDS.items()}
    assert f"a product of {math.exp(1000 * 0.01):.0f}," in PAGE
    assert f"a mean of {math.exp(0.01):.2f}:" in PAGE


@pytest.mark.parametrize("row", table("Names"), ids=lambda row: row[1].strip("`"))
def test_every_name_leads_to_the_key_of_the_page(row: list[str]) -> None:
    names, (key,) = quoted(row[0]), quoted(row[1])
    assert names
    assert {OTHER_NAMES[name][0][0] for name in names} == {key}


@pytest.mark.parametrize("row", table("Not there"), ids=lambda row: row[0].strip("`"))
def test_every_kind_is_there_or_not(row: list[str]) -> None:
    *section, _ = row[0].strip("`").split(".")
    kinds = {name for kind in sections_at(section) for name in kind.kinds()}  # type: ignore[attr-defined]
    assert kinds == set(quoted(row[1]))
    assert not kinds & set(quoted(row[2]))


def test_numbers_of_rules_are_those_of_preflight() -> None:
    page = PAGE.partition("## When to choose which")[2].partition("\n## ")[0]
    low, high = choice.TEACHING
    for text in (
        f"under {choice.LARGE_BATCH} rollouts in it",
        f"from {choice.LARGE_BATCH} rollouts a step on",
        f"over {100 * choice.FLAT:.0f} % of groups are flat",
        f"the tasks from {low} to {high}",
        f"one advantage for {choice.MANY_TURNS} turns or more",
        f"the mean of 12 is off by {1 / math.sqrt(12):.2f} standard deviations",
        f"asks for groups of {setup.GROUP}",
    ):
        assert text in page, text
    assert "`[0.05, 0.2]`" in PAGE
    assert yaml.safe_load("[0.05, 0.2]") == list(setup.KL_WINDOW)


def test_the_example_of_a_spread_is_what_the_estimators_give() -> None:
    def weight(name: str, solved: int) -> float:
        turns = tuple((float(i < solved),) for i in range(8))
        group = GroupRewards(turn_rewards=turns, to_go=turns, turn_tokens=((1,),) * 8)
        return sum(
            abs(turn) for each in ESTIMATORS.find(name).function(group) for turn in _of(each)
        )

    plain, divided = (weight(name, 1) / weight(name, 4) for name in ("dr_grpo", "group_norm"))
    assert f"one success of eight has {100 * plain:.0f} % of the weight of four of eight" in PAGE
    assert f"Divided it has {100 * divided:.0f} %" in PAGE


def _of(advantages: Any) -> Sequence[float]:
    return advantages if isinstance(advantages, Sequence) else [advantages]
