"""What a watcher sees: a panel in a terminal, lines elsewhere, a table at the end."""

import io
import threading
import time
from pathlib import Path

from rich.console import Console

from agentrl.cli.console.live import LiveView, trend, watch
from agentrl.cli.console.plain import PlainView
from agentrl.cli.console.report import clock, result_table
from agentrl.health.records import Verdict
from agentrl.metrics.intervals import mean_interval
from agentrl.runtime.progress import RunPlan
from agentrl.runtime.records import RunResult
from agentrl.runtime.scores import Comparison, EvalSummary
from agentrl.types.finding import Status

PLAN = RunPlan(
    run_dir=Path("runs/[odd]"),
    steps=10,
    done=0,
    max_minutes=8.0,
    model="tiny [x]",
    sandbox="bubblewrap",
    tasks=5,
    rollouts_per_step=6,
)


def score(step: int, *values: float) -> EvalSummary:
    return EvalSummary(
        name="held",
        step=step,
        score=mean_interval(values),
        passed={1: mean_interval(values), 4: mean_interval([1.0] * len(values))},
        k=4,
        rollouts=4 * len(values),
        untrusted=1,
        mean_tokens=10.0,
        truncated=0.0,
        by_task={str(i): value for i, value in enumerate(values)},
    )


def console(*, terminal: bool) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=100, highlight=False)


def shown(view: LiveView) -> str:
    out = Console(file=io.StringIO(), width=100)
    out.print(view.render())
    return out.file.getvalue()  # type: ignore[attr-defined]


def test_the_live_view_shows_where_the_run_stands() -> None:
    view = LiveView()
    assert "loading" in shown(view)
    view.started(PLAN)
    view.evaluated(score(0, 0.1, 0.3))
    view.phase("rollout", 6)
    view.advance(2, 400)
    text = shown(view)
    assert "0 of 10 steps, 0:00 of 8:00 elapsed" in text
    assert "%" not in text
    assert "rollouts 2 of 6" in text
    assert "0.200 @0" in text
    assert "runs/[odd]" in text
    view.phase("train")
    view.trained(3, 7)
    assert "micro-batch 3 of 7" in shown(view)
    view.step_done(1, {"reward": 0.25, "completions/mean_length": 81.0, "rollout/dropped": 2.0})
    view.step_done(2, {"reward": 0.5, "completions/mean_length": 80.0})
    text = shown(view)
    assert "2 of 10 steps" in text
    assert "0.500  _#" in text
    assert "length 80" in text
    assert "left" in text


def test_notes_and_odd_names_survive_the_live_view() -> None:
    out = console(terminal=True)
    with watch(out) as view:
        view.started(PLAN)
        view.note("a note with [brackets]")
    assert "a note with [brackets]" in out.file.getvalue()  # type: ignore[attr-defined]


def test_without_a_terminal_there_is_a_line_a_step() -> None:
    out = console(terminal=False)
    with watch(out) as view:
        assert isinstance(view, PlainView)
        view.started(PLAN)
        view.step_done(3, {"reward": 0.25, "timing_s/step": 12.0})
        view.evaluated(score(3, 0.5, 0.75))
    lines = out.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert "step 3/10 reward 0.250 step_s 12.0" in lines
    assert any(line.startswith("eval held after step 3: 0.62 [") for line in lines)
    assert "\x1b" not in out.file.getvalue()  # type: ignore[attr-defined]


class _Lines(io.StringIO):
    """A log that says when it got its n-th line."""

    def __init__(self, lines: int) -> None:
        super().__init__()
        self.complete = threading.Event()
        self._missing = lines

    def write(self, text: str) -> int:
        self._missing -= text.count("\n")
        if self._missing <= 0:
            self.complete.set()
        return super().write(text)


def test_a_log_says_the_phase_after_a_silence() -> None:
    """Fails if a step of half a minute leaves a log silent, or the view goes on after its end."""
    log = _Lines(3)
    with PlainView(Console(file=log, width=100), quiet_s=0.01).open() as view:
        view.phase("rollout", 64)
        view.advance(24, 1200)
        assert log.complete.wait(120)
    assert "rollout, 0:00, rollouts 24 of 64" in log.getvalue()
    assert not [thread for thread in threading.enumerate() if thread.name == "plain-view"]


def test_a_long_phase_is_said_at_doubling_intervals() -> None:
    """Fails if a phase of hours is a line each ten seconds, or if the next one is as rare."""
    log = _Lines(5)
    view = PlainView(Console(file=log, width=100), quiet_s=0.05)
    began = time.monotonic()
    with view.open():
        assert log.complete.wait(120)
        assert time.monotonic() - began >= 0.05 + 0.1 + 0.2 + 0.4 + 0.8
        view.note("a step")
    assert view._quiet_s == 0.05


def test_the_summary_says_what_was_learned_and_where_to_look() -> None:
    out = Console(file=io.StringIO(), width=80)
    result = RunResult(
        run_dir=Path("runs/one"),
        steps=20,
        reason="all steps done",
        comparisons=(
            Comparison(
                name="held_out",
                before=score(0, 0.1, 0.2, 0.3),
                after=score(20, 0.5, 0.7, 0.6),
            ),
        ),
        elapsed_s=605.0,
    )
    out.print(result_table(result))
    text = out.file.getvalue()  # type: ignore[attr-defined]
    row = next(line for line in text.splitlines() if "held_out" in line)
    expected = "held_out (3) 0.20 [-0.05, 0.45] 0.60 [0.35, 0.85] +0.40 [+0.15, +0.65]"
    assert " ".join(row.split()) == expected
    assert "10:05" in text
    assert "agentrl traj show runs/one" in text
    assert "2 rollouts" in text


def test_small_things() -> None:
    assert clock(3723) == "1:02:03"
    assert trend([1.0, 1.0]) == "__"


def test_the_panel_shows_what_the_detectors_say() -> None:
    """Fails if findings are lost, or what came from a trajectory can steer the terminal."""
    view = LiveView()
    view.started(PLAN)
    assert "health" not in shown(view)
    fine = Verdict(name="kl_too_large", status=Status.OK, detail="kl is small")
    view.verdicts([fine])
    assert "nothing found" in shown(view)
    warning = Verdict(name="reward_flat", status=Status.WARN, detail="flat [bold]")
    failure = Verdict(name="tool_errors", status=Status.FAIL, detail="\x1b[2J of \x07 task")
    view.verdicts([fine, warning, failure])
    text = shown(view)
    assert text.index("fail: ") < text.index("warn: flat [bold]")
    assert "\x1b[2J" not in text
    assert "kl is small" not in text
