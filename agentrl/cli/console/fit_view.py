"""Watching a fit: a line a step, and the results on the data of `eval.datasets`."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.table import Table

from agentrl.cli.console.phase import PhaseCounts
from agentrl.cli.console.plain import QUIET_S, QuietLines
from agentrl.cli.console.report import clock
from agentrl.fit.progress import FitProgress, FitResult
from agentrl.runtime.progress import Progress
from agentrl.runtime.scores import EvalSummary, after_step

_STEP = (
    ("sft/loss", "loss", "{:.4f}"),
    ("dpo/loss", "loss", "{:.4f}"),
    ("rm/loss", "loss", "{:.4f}"),
    ("pref/accuracy", "accuracy", "{:.3f}"),
    ("rm/accuracy", "accuracy", "{:.3f}"),
    ("pref/margin", "margin", "{:.3f}"),
    ("rm/margin", "margin", "{:.3f}"),
    ("train/grad_norm", "grad_norm", "{:.3g}"),
    ("train/tokens_per_second", "tokens/s", "{:.0f}"),
    ("timing_s/step", "step_s", "{:.1f}"),
)
_EVAL = (
    "sft/nll", "sft/perplexity", "dpo/loss", "rm/loss", "pref/accuracy", "rm/accuracy",
    "pref/logp_chosen_per_token", "score",
)  # fmt: skip
"""Numbers of an evaluation that are shown; all are in metrics.jsonl."""


class FitView(QuietLines, FitProgress):
    """Lines for a terminal and for the log of a job alike."""

    def __init__(self, console: Console, *, quiet_s: float = QUIET_S) -> None:
        """Print to `console`, and the phase after `quiet_s` seconds without another line."""
        super().__init__(console, "loading model and data", quiet_s=quiet_s)

    def note(self, text: str) -> None:
        """Print the text on one line."""
        self._say(text)

    def phase(self, name: str) -> None:
        """Begin a phase: restart its clock."""
        self._phase.begin(name, 0)

    def step_done(self, step: int, steps: int, metrics: Mapping[str, float]) -> None:
        """Print one line with the step's metrics."""
        facts = [f"{label} {form.format(metrics[n])}" for n, label, form in _STEP if n in metrics]
        self._say(f"step {step}/{steps} " + " ".join(facts))

    def evaluated(self, step: int, metrics: Mapping[str, float]) -> None:
        """Print one line for each dataset."""
        for name, values in by_dataset(metrics).items():
            facts = [f"{key.partition('/')[2]} {values[key]:.4f}" for key in _EVAL if key in values]
            self._say(f"eval {name} {after_step(step)}: {', '.join(facts)}")

    def trained(self, done: int, total: int) -> None:
        """Note how many micro-batches are trained."""
        self._phase.trained(done, total)

    def rollouts(self) -> Progress:
        """Takes the progress of rollouts of an evaluation."""
        return _RolloutLines(self, self._phase)


class _RolloutLines(Progress):
    """Rollouts of an evaluation, as lines of the view of a fit."""

    def __init__(self, view: FitView, phase: PhaseCounts) -> None:
        self._view, self._phase = view, phase

    def phase(self, name: str, total: int = 0) -> None:
        self._phase.begin(name, total)

    def advance(self, rollouts: int, tokens: int) -> None:
        self._phase.advance(rollouts, tokens)

    def evaluated(self, summary: EvalSummary) -> None:
        said = ", ".join(f"pass@{k} {found.text()}" for k, found in summary.passed.items())
        self._view.note(f"eval {summary.name} {after_step(summary.step)}: {said}")

    def note(self, text: str) -> None:
        self._view.note(text)


def by_dataset(metrics: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """The values of `eval/NAME/...` by NAME, in the order in which they come."""
    found: dict[str, dict[str, float]] = {}
    for key, value in metrics.items():
        _, name, metric = key.split("/", 2)
        found.setdefault(name, {})[metric] = value
    return found


def fit_table(result: FitResult) -> Table:
    """Changes on held-out data, steps and time."""
    table = Table(box=None, show_header=False, pad_edge=False)
    before = by_dataset(result.before)
    for name, values in by_dataset(result.after).items():
        for key in _EVAL:
            if key in values and key in before.get(name, {}):
                was = before[name][key]
                table.add_row(f"{name}: {key}", f"{was:.4f} -> {values[key]:.4f}")
    table.add_row("steps", str(result.steps))
    table.add_row("wall time", clock(result.seconds))
    return table
