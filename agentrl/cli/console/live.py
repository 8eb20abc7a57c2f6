"""Watching a run: a live view in a terminal, plain lines anywhere else."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence

from rich.console import Console, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from agentrl.cli.console.facts import step_facts
from agentrl.cli.console.findings import STYLES
from agentrl.cli.console.phase import PhaseCounts
from agentrl.cli.console.plain import PlainView
from agentrl.cli.console.report import clock
from agentrl.cli.console.run_page import RunPage
from agentrl.cli.console.start import open_console, show_warnings
from agentrl.health.measures.curves import percent
from agentrl.health.records import Verdict
from agentrl.inspect.read.safe_terminal import visible
from agentrl.runtime.progress import Progress, RunPlan
from agentrl.runtime.scores import EvalSummary
from agentrl.serving.records import EngineState, EngineStats
from agentrl.types.finding import Status

_BARS = "_.-=*#"
_TREND = 24


@contextlib.contextmanager
def watch(console: Console, page: RunPage | None = None) -> Iterator[Progress]:
    """The view that fits the console, and warnings on the same one while it is open.

    Args:
        console: to print to.
        page: of a run that trains; the view says where it is.
    """
    if not console.is_interactive:
        with PlainView(console, page).open() as plain:
            yield plain
        return
    view = LiveView(page)
    with Live(
        get_renderable=view.render, console=console, refresh_per_second=4, transient=True
    ) as live:
        view.attach(live.console)
        show_warnings(live.console)
        try:
            yield view
        finally:
            show_warnings(open_console(stderr=True))


class LiveView(Progress):
    """A panel that is redrawn in place; notes scroll above it."""

    def __init__(self, page: RunPage | None = None) -> None:
        """Show nothing yet; `page` is where the run is shown in a browser."""
        self._page = page
        self._console: Console | None = None
        self._plan: RunPlan | None = None
        self._began = time.monotonic()
        self._phase = PhaseCounts("loading")
        self._step, self._metrics = 0, {}
        self._rewards: deque[float] = deque(maxlen=_TREND)
        self._scores: dict[str, list[EvalSummary]] = {}
        self._durations: deque[float] = deque(maxlen=8)
        self._eval_s = 0.0
        self._engines: dict[str, EngineStats] = {}
        self._findings: list[Verdict] = []
        self._looked = False

    def attach(self, console: Console) -> None:
        """Print notes to this console; they appear above the panel."""
        self._console = console

    def started(self, plan: RunPlan) -> None:
        """Remember the plan to show."""
        self._plan = plan
        self._step = plan.done
        if self._page is not None:
            self._page.open(plan.run_dir, self.note)

    def phase(self, name: str, total: int = 0) -> None:
        """Begin a phase: restart its clock and its counts."""
        if self._phase.name.startswith("eval") and not self._durations:
            self._eval_s += self._phase.seconds
        self._phase.begin(name, total)

    def advance(self, rollouts: int, tokens: int) -> None:
        """Count rollouts and tokens of the phase."""
        self._phase.advance(rollouts, tokens)

    def trained(self, done: int, total: int) -> None:
        """Show how many micro-batches are trained."""
        self._phase.trained(done, total)

    def evaluated(self, summary: EvalSummary) -> None:
        """Keep the score of a dataset."""
        self._scores.setdefault(summary.name, []).append(summary)

    def step_done(self, step: int, metrics: Mapping[str, float]) -> None:
        """Keep the metrics of the step."""
        self._step, self._metrics = step, dict(metrics)
        self._durations.append(metrics.get("timing_s/step", 0.0))
        if "reward" in metrics:
            self._rewards.append(metrics["reward"])

    def verdicts(self, verdicts: Sequence[Verdict]) -> None:
        """Keep the verdicts that warn or fail."""
        self._findings = [v for v in verdicts if v.status in (Status.WARN, Status.FAIL)]
        self._looked = True

    def engines(self, stats: Mapping[str, EngineStats]) -> None:
        """Keep the state of every engine."""
        self._engines = dict(stats)

    def note(self, text: str) -> None:
        """Print the text above the panel."""
        if self._console is not None:
            self._console.print(visible(text))

    def render(self) -> RenderableType:
        """Draw the panel as it is now; called a few times a second."""
        table = Table.grid(padding=(0, 2))
        table.add_column(style="dim", no_wrap=True)
        table.add_column()
        if self._plan is None:
            table.add_row("loading", f"model, data, sandbox ... {clock(self._phase.seconds)}")
            return Panel(table, title="agentrl", title_align="left")
        table.add_row("run", _progress_row(self._share(), self._time_text()))
        table.add_row("now", Text(self._phase.text()))
        trains = self._plan.steps > 0
        if trains:
            table.add_row("reward", self._reward_text())
        for name, summaries in self._scores.items():
            points = [
                f"{item.score.mean:.3f}" + (f" @{item.step}" if trains else "")
                for item in summaries[-4:]
            ]
            table.add_row(Text(f"score {name}"), Text("  ".join(points)))
        facts = [fact for fact in step_facts(self._metrics) if not fact.startswith("reward")]
        if facts:
            table.add_row("last step", "  ".join(facts))
        if self._looked:
            table.add_row("health", self._health_text())
        for name, engine in self._engines.items():
            table.add_row(Text(name), Text(engine_text(engine)))
        table.add_row("model", Text(self._plan.model))
        table.add_row("sandbox", Text(self._plan.sandbox))
        return Panel(
            table, title=Text(f"agentrl: {self._plan.run_dir}"), title_align="left", expand=True
        )

    def _share(self) -> float:
        """Part of the run that is done, by steps or by the clock, whichever ends it first."""
        assert self._plan is not None
        steps = self._step / self._plan.steps if self._plan.steps else 0.0
        if self._plan.max_minutes:
            steps = max(steps, (time.monotonic() - self._began) / 60 / self._plan.max_minutes)
        return min(1.0, steps)

    def _time_text(self) -> str:
        assert self._plan is not None
        elapsed = time.monotonic() - self._began
        left = None
        if self._durations:
            step_s = sum(self._durations) / len(self._durations)
            # The evaluation after training takes about what the one before it took.
            left = step_s * (self._plan.steps - self._step) + self._eval_s
        if self._plan.max_minutes:
            rest = max(0.0, self._plan.max_minutes * 60 - elapsed)
            left = rest if left is None else min(left, rest)
        limit = f" of {clock(self._plan.max_minutes * 60)}" if self._plan.max_minutes else ""
        steps = f"{self._step} of {self._plan.steps} steps, " if self._plan.steps else ""
        text = f"{steps}{clock(elapsed)}{limit} elapsed"
        return text + (f", {clock(left)} left" if left is not None else "")

    def _health_text(self) -> Text:
        if not self._findings:
            return Text("nothing found")
        worst = sorted(self._findings, key=lambda item: item.status is not Status.FAIL)
        return Text("\n").join(
            visible(f"{item.status}: {item.detail}", STYLES[item.status]) for item in worst[:4]
        )

    def _reward_text(self) -> str:
        if not self._rewards:
            return "not yet"
        return f"{self._rewards[-1]:.3f}  {trend(self._rewards)}"


def trend(values: deque[float] | list[float]) -> str:
    """A line of marks, low to high, scaled to the values.

    Example:
        >>> trend([0.0, 0.5, 1.0])
        '_-#'
    """
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    return "".join(_BARS[int((value - low) / span * (len(_BARS) - 1) + 0.5)] for value in values)


def engine_text(engine: EngineStats) -> str:
    """As in `3 in flight, 98.1 % sticky, 71.4 % cached, weights 4`."""
    text = (
        f"{engine.in_flight} in flight, {percent(engine.sticky_share)} sticky, "
        f"{percent(engine.cached_share)} cached, weights {engine.version}"
    )
    if engine.state is EngineState.ACTIVE:
        return text
    return f"{engine.state}: {engine.why}; {text}" if engine.why else f"{engine.state}; {text}"


def _progress_row(share: float, text: str) -> Table:
    row = Table.grid(padding=(0, 2))
    row.add_row(ProgressBar(total=1.0, completed=share, width=32), text)
    return row
