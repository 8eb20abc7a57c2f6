"""Judges with labelled answers, as `agentrl preflight` measures them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from agentrl.config import load_config
from agentrl.config.plan import Plan, plan_run
from agentrl.errors import ConfigError, DataError
from agentrl.judges.rubric import check_rubric
from agentrl.preflight.checks.facts import PreflightFacts
from agentrl.preflight.checks.judges import judges, judges_with_labels
from agentrl.preflight.plan import dry_run_plan, full_plan
from agentrl.types.finding import Finding, Status
from tests.judges.scripted_judges import CRITERIA, rubric_reply
from tests.served.scripted_server import scripted_server

CONFIG = """
model: {{path: nowhere}}
env: {{target: "nothing:Here"}}
dataset: {{source: nothing.jsonl}}
reward: {{functions: {functions}}}
"""


def run_file(folder: Path, url: str, check: str | None = "labels.jsonl") -> Plan:
    args = {"model": {"url": url, "model": "m", "tries": 1}, "criteria": CRITERIA}
    if check is not None:
        args["check"] = check
    judge = {"target": "agentrl.judges:rubric_judge", "weight": 0.5, "args": args}
    path = folder / "run.yaml"
    path.write_text(CONFIG.format(functions=json.dumps({"style": judge})))
    rows = [
        {"prompt": f"Question {i // 2}", "response": f"{4 * (i % 2)}", "score": i % 2}
        for i in range(40)
    ]
    (folder / "labels.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return plan_run(load_config(path), folder)


async def found_with(folder: Path, grade: Callable[[str], int]) -> Finding | str:
    async with scripted_server(always=rubric_reply(grade)) as server:
        return await judges(run_file(folder, server.url).rewards)


async def test_agreement_is_printed(tmp_path: Path) -> None:
    found = await found_with(tmp_path, lambda work: int(work) if work else 0)
    assert isinstance(found, str)
    assert found.startswith(
        "style: 40 answers, accuracy 1.00 [0.91, 1.00], kappa 1.00 [1.00, 1.00]"
    )
    assert found.endswith("mean score 0.50, mean label 0.50")


async def test_a_judge_that_may_be_guessing_is_a_warning(tmp_path: Path) -> None:
    found = await found_with(tmp_path, lambda work: 4)
    assert isinstance(found, Finding)
    assert found.status is Status.WARN
    assert "the agreement of style may be chance" in found.detail


async def test_answers_that_cannot_be_judged_fail(tmp_path: Path) -> None:
    async with scripted_server(always=404) as server:
        found = await judges(run_file(tmp_path, server.url).rewards)
    assert isinstance(found, Finding)
    assert found.status is Status.FAIL
    assert "style: 40 of 40 labelled answers could not be judged" in found.detail
    assert "404" in found.detail


async def test_a_missing_file_is_named(tmp_path: Path) -> None:
    rewards = run_file(tmp_path, "http://x/v1", check="label.jsonl").rewards
    with pytest.raises((DataError, ConfigError), match=r"label\.jsonl"):
        await judges(rewards)


def test_only_preflight_asks_and_only_where_there_are_labels(tmp_path: Path) -> None:
    """Fails if `--dry-run` asks a served model, which costs money."""
    run, facts = run_file(tmp_path, "http://x/v1"), PreflightFacts()
    plans = (
        full_plan(run, found=facts),
        dry_run_plan(run, found=facts, resume=False),
        full_plan(run_file(tmp_path, "http://x/v1", check=None), found=facts),
    )
    named = [[name for name, _ in plan.steps].count("judges") for plan in plans]
    assert named == [1, 0, 0]
    assert judges_with_labels(run.rollouts.reward) == {"style": "labels.jsonl"}


def test_a_check_that_is_no_file_name_is_refused() -> None:
    model = {"url": "http://x/v1", "model": "m"}
    with pytest.raises(ConfigError, match="check: got 3, expected a file of labelled answers"):
        check_rubric(model=model, criteria=CRITERIA, check=3)
