"""Time of a run: events are logged once, and the next step is expected to be a long one."""

from __future__ import annotations

import io

from rich.console import Console

from agentrl.cli.console.plain import PlainView
from agentrl.metrics.intervals import Interval
from agentrl.metrics.run_clock import RunClock, expected_s
from agentrl.runtime.progress import RunPlan
from agentrl.runtime.scores import EvalSummary


def test_the_last_checkpoint_is_expected_again_and_stands_beside_no_step() -> None:
    """Fails if a checkpoint is in the metrics of later steps, or the first one is expected."""
    clock = RunClock(None, elapsed_s=0.0, step_s=0.0, now=lambda: 0.0)
    for step in range(1, 7):
        if step in (3, 5):
            clock.note_checkpoint(float(step))
        assert clock.note_step(1.0, fresh=True).result().keys() == {
            "timing_s/step",
            "timing_s/elapsed",
        }
    assert clock.checkpoint_s == 5.0


def test_no_step_begins_that_could_be_as_long_as_those_before() -> None:
    """Fails if one short step makes room for a long one, the evaluation and the checkpoint."""
    now = [0.0]
    clock = RunClock(5.0, elapsed_s=0.0, step_s=0.0, now=lambda: now[0])
    for seconds in (60.0, 60.0, 10.0):
        now[0] += seconds
        clock.note_step(seconds, fresh=True)
    clock.note_checkpoint(10.0)
    now[0] = 165.0
    assert not clock.is_up(evaluation_s=45.0)
    now[0] = 175.0  # 60 + 45 + 10 seconds would end in time, a quarter more only after 315 s
    assert clock.is_up(evaluation_s=45.0)


def test_an_evaluation_is_expected_to_take_what_the_longest_took_or_more() -> None:
    """Fails if the last one alone is expected, or one that grows to take as long as the last."""
    assert expected_s([]) == 0
    assert expected_s([30.0]) == 30
    assert expected_s([30.0, 10.0]) == 30
    assert expected_s([10.0, 30.0]) == 30
    assert expected_s([10.0, 20.0, 30.0]) == 40
    assert expected_s([30.0, 10.0, 20.0]) == 30
    assert expected_s([99.0, 1, 1, 1, 1, 1]) == 1


def test_a_run_that_trains_nothing_is_not_said_to_have_steps(tmp_path) -> None:
    """Fails if `agentrl eval` speaks of 0 rollouts a step and of a score after step 0."""
    text = io.StringIO()
    progress = PlainView(Console(file=text, width=200))
    progress.started(
        RunPlan(run_dir=tmp_path, steps=0, done=0, max_minutes=None, model="m", sandbox="s",
                tasks=8, rollouts_per_step=0)
    )  # fmt: skip
    score = Interval(mean=0.5, low=0.4, high=0.6, n=8)
    progress.evaluated(
        EvalSummary(name="held", step=0, score=score, passed={}, k=1, rollouts=8, untrusted=0,
                    tasks=8, mean_tokens=1.0, truncated=0.0, by_task={})
    )  # fmt: skip
    assert "8 tasks\n" in text.getvalue()
    assert "eval held: 0.50 [0.40, 0.60]" in text.getvalue()
    assert "step" not in text.getvalue().replace(str(tmp_path), "")
