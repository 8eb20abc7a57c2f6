"""What an evaluation adds up to: pass@1 and pass@k with intervals over tasks."""

import io

import pytest
from rich.console import Console

from agentrl.cli.console.report import score_table
from agentrl.runtime.scores import EvalSummary
from agentrl.runtime.scoring.evaluate import summarise
from agentrl.runtime.stages import GroupReport, RolloutReport
from agentrl.types import Termination


def group(task: str, *verdicts: float | None) -> GroupReport:
    rollouts = tuple(
        RolloutReport(
            rollout_id=f"{task}/{i}",
            termination=Termination.SANDBOX_FAILED if v is None else Termination.ENV_DONE,
            detail="",
            verdict=v,
            tokens=10,
        )
        for i, v in enumerate(verdicts)
    )
    return GroupReport(group_id=task, task_id=task, rollouts=rollouts)


def held(*groups: GroupReport) -> EvalSummary:
    return summarise("held", 0, groups, n_samples=4)


def text_of(*summaries: EvalSummary) -> str:
    out = io.StringIO()
    Console(file=out, width=80).print(score_table(summaries))
    return out.getvalue()


def test_pass_at_k_is_over_tasks_and_has_an_interval() -> None:
    # Tasks pass 1 of 4, 4 of 4 and 0 of 4. Fails if rollouts are the unit, or if any() is pass@1.
    summary = held(group("a", 1, 0, 0, 0), group("b", 1, 1, 1, 1), group("c", 0, 0, 0, 0))
    assert summary.passed[1].mean == pytest.approx(1.25 / 3)
    assert summary.passed[4].mean == pytest.approx(2 / 3)
    assert 0 <= summary.passed[4].low < 2 / 3 < summary.passed[4].high <= 1
    metrics = summary.metrics()
    assert metrics["eval/held/pass@4"] == pytest.approx(2 / 3)
    assert metrics["eval/held/pass@4_low"] == summary.passed[4].low
    assert metrics["eval/held/pass@1"] == metrics["eval/held/score"]


def test_a_fraction_is_no_pass_and_failed_sandboxes_are_nobodys_failure() -> None:
    summary = held(group("a", 0.5, 0.5, None, None), group("b", 1, 0.5, None, 0.5))
    assert summary.untrusted == 3
    assert summary.score.mean == pytest.approx((0.5 + 2 / 3) / 2)
    assert summary.passed[1].mean == pytest.approx((0 + 1 / 3) / 2)
    # Three trusted rollouts of `b` are all there is, so pass@4 is what they say: 1.
    assert summary.passed[4].mean == pytest.approx(0.5)


def test_what_limits_cut_off_is_said() -> None:
    # A prompt that never fits scores 0 without a token: the table alone looks like a weak model.
    cut = RolloutReport(
        rollout_id="a/0", termination=Termination.CONTEXT_FULL, detail="", verdict=0.0, tokens=0
    )
    summary = held(GroupReport(group_id="a", task_id="a", rollouts=(cut,)), group("b", 1))
    assert "50 % of them cut off by a limit" in text_of(summary)
    assert "cut off" not in text_of(held(group("b", 1)))


def test_the_table_has_intervals_and_fits_80_columns() -> None:
    summary = held(group("a", 1, 0, 0, 0), group("b", 1, 1, 1, 1), group("c", 0, 0, 0, 0))
    text = text_of(summary)
    assert "pass@1" in text
    assert "pass@4" in text
    assert summary.passed[4].text() in text
    fractions = held(group("a", 0.5, 1, 0.5, 0), group("b", 0, 0.5, 0, None))
    both = text_of(fractions)
    for found in (fractions.score, *fractions.passed.values()):
        assert found.text() in both
    assert "1 failed" in both


def test_a_sum_of_tenths_passes_and_lost_tasks_are_counted() -> None:
    """Fails if a pass is 1.0 to the last bit, or if a mean over what is left looks like a whole."""
    tenths = sum([0.1] * 10)
    summary = held(group("a", tenths, 0), group("b", None, None), group("c", None))
    assert summary.passed[1].mean == 0.5
    assert (summary.tasks, summary.missing) == (3, 2)
    assert summary.metrics()["eval/held/missing"] == pytest.approx(2 / 3)
    assert "so 2 of 3 tasks have no score" in text_of(summary)
    whole = held(group("a", 1), group("b", 0, None))
    assert whole.metrics()["eval/held/missing"] == 0
    assert "have no score" not in text_of(whole)
    gone = summarise("held", 0, [group("a", None)], n_samples=1, tasks=4)
    assert gone.metrics() == {
        "eval/held/mean_length": 10, "eval/held/truncated": 0, "eval/held/untrusted": 1,
        "eval/held/missing": 1,
    }  # fmt: skip
