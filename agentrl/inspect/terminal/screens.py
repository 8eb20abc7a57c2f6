"""The screens of the terminal view that list: runs, steps, groups, siblings; and the dashboard.

Every screen reads in `read` and draws in `show`, again whenever the run has written something.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from rich.text import Text
from textual.binding import Binding, BindingType

from agentrl.errors import AgentrlError
from agentrl.inspect.pages.groups import group_answer, step_answer
from agentrl.inspect.pages.overview import run_entry, run_overview
from agentrl.inspect.read.reader import RunReader
from agentrl.inspect.read.safe_terminal import number, visible
from agentrl.inspect.read.step_list import StoredStep, step_list
from agentrl.inspect.terminal import text as words
from agentrl.inspect.terminal.examples import ExamplesView
from agentrl.inspect.terminal.hacking import HackingView
from agentrl.inspect.terminal.lines import Lines
from agentrl.inspect.terminal.rollout import RolloutView
from agentrl.inspect.terminal.tasks import TasksView
from agentrl.inspect.terminal.view import TableView, View, neighbour, reader_of

_FINDINGS = 5
"""Findings above the steps; the dashboard has all."""


class RunsView(TableView):
    """Every run below the folders that were named."""

    columns = ("run", "state", "steps", "score", "findings", "model")

    def __init__(self, readers: Sequence[RunReader]) -> None:
        super().__init__()
        self._readers = {reader.run.id: reader for reader in readers}
        self._lines: dict[str, Sequence[Text | str]] = {}

    def read(self, width: int) -> list[tuple[str, list[Text | str]]]:
        """One line a run."""
        return [(name, _run_cells(reader)) for name, reader in self._readers.items()]

    def show(self, answer: Any) -> None:
        """Findings come when they are known."""
        self.head(Text(f"{len(self._readers)} runs", style="bold"))
        self._lines = dict(answer)
        self.fill(answer)
        self.run_worker(self._diagnose, thread=True, exclusive=True)

    def _diagnose(self) -> None:
        for name, reader in self._readers.items():
            if reader.known_health() is None:
                try:
                    reader.health()
                except AgentrlError:
                    continue
                self.app.call_from_thread(self._update, name, _run_cells(reader))

    def _update(self, name: str, cells: Sequence[Text | str]) -> None:
        if name in self._lines:
            self._lines[name] = cells
            self.fill(list(self._lines.items()))

    def open(self, key: Any) -> View:
        """The steps of a run."""
        return RunView(self._readers[key])


class RunView(TableView):
    """The steps of one run below its findings."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("d", "dashboard", "dashboard"),
        Binding("e", "examples", "examples"),
        Binding("t", "tasks", "tasks"),
        Binding("x", "hacking", "hacked?"),
    ]
    columns = ("step", "kind", "groups", "rollouts", "reward", "score", "ended by")

    def __init__(self, reader: RunReader) -> None:
        super().__init__()
        self.reader = reader
        self._lines = [visible(reader.run.name, "bold")]

    def read(self, width: int) -> Sequence[StoredStep]:
        """The newest step first."""
        return step_list(reader_of(self))

    def show(self, answer: Any) -> None:
        """One line a step; findings take longer and come when they are known."""
        self.head(*self._lines, Text("looking for findings ...", style="dim"))
        self.fill([((s.kind, s.step), _step_cells(s)) for s in answer])
        self.run_worker(self._diagnose, thread=True, exclusive=True)

    def _diagnose(self) -> None:
        try:
            overview = run_overview(reader_of(self))
        except AgentrlError as error:
            self.app.call_from_thread(self.head, visible(str(error), "bold red"))
            return
        findings = words.ranked_verdicts(overview)
        title = visible(overview["name"], "bold").append(f"  {overview['state']}", style="cyan")
        lines = [title, *map(words.verdict_line, findings[:_FINDINGS])]
        if len(findings) > _FINDINGS:
            more = f"and {len(findings) - _FINDINGS} more; d shows them all"
            lines.append(Text(more, style="dim"))
        if not findings:
            lines.append(Text("no findings; d shows the dashboard", style="dim"))
        if overview["examples"]:
            count = len(overview["examples"])
            lines.append(Text(f"{count} evaluations of a fit; e shows their examples", style="dim"))
        self._lines = [*lines, *_notes(overview["notes"])]
        self.app.call_from_thread(self.head, *self._lines)

    def open(self, key: Any) -> View:
        """The groups of a step."""
        return StepView(reader_of(self), *key)

    def action_examples(self) -> None:
        """Open the examples of a fit."""
        self.app.push_screen(ExamplesView(reader_of(self)))

    def action_tasks(self) -> None:
        """Open what was learned and what was forgotten."""
        self.app.push_screen(TasksView(reader_of(self), GroupView))

    def action_hacking(self) -> None:
        """Open the answer to whether the reward is hacked."""
        self.app.push_screen(HackingView(reader_of(self), RolloutView))

    def action_dashboard(self) -> None:
        """Open curves and findings."""
        self.app.push_screen(DashboardView(reader_of(self)))


class DashboardView(View):
    """Curves, findings with what to do, where time and tokens went."""

    def __init__(self, reader: RunReader) -> None:
        super().__init__()
        self.reader = reader

    def pane(self) -> Lines:
        """A pane of lines."""
        return Lines(id="pane")

    def read(self, width: int) -> tuple[str, list[Text]]:
        """All of the first screen, as lines."""
        overview = run_overview(reader_of(self))
        width = max(40, width)
        timing = {name: curve for name, curve in overview["timing"].items() if name != "step"}
        lines = [*words.dashboard_lines(overview, width), Text()]
        lines += [*words.verdict_lines(overview, width), Text()]
        lines += words.share_lines("Seconds of the last step", timing, width)
        for what, shares in overview["waste"].items():
            lines += words.share_lines(f"Fate of the last step's {what}", shares, width)
        return overview["name"], lines

    def show(self, answer: Any) -> None:
        """All lines at once."""
        name, lines = answer
        self.head(visible(name, "bold").append("  dashboard", style="dim"))
        self.query_one("#pane", Lines).show_all(lines)


class StepView(TableView):
    """The groups of one step."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left_square_bracket", "step(-1)", "step before"),
        Binding("right_square_bracket", "step(1)", "step after"),
    ]
    columns = ("task", "n", "reward", "std", "score", "tokens", "ended by")

    def __init__(self, reader: RunReader, kind: str, step: int) -> None:
        super().__init__()
        self.reader, self._kind, self._step = reader, kind, step
        self._steps: list[int] = []

    def read(self, width: int) -> Mapping[str, Any]:
        """Fill the table with the groups."""
        return step_answer(reader_of(self), self._kind, self._step)

    def show(self, answer: Any) -> None:
        """One line a group."""
        self._steps = list(answer["steps"])
        groups = answer["groups"]
        flat = sum(group["zero_advantage"] for group in groups)
        title = visible(f"{self._kind} step {self._step}", "bold")
        self.head(title.append(f"  {len(groups)} groups, {flat} with zero advantage", style="dim"))
        self.fill([(group["group_id"], _group_cells(group)) for group in groups])

    def open(self, key: Any) -> View:
        """The siblings of a group."""
        return GroupView(reader_of(self), self._kind, self._step, key)

    def action_step(self, by: int) -> None:
        """Go to the step before or after."""
        later = neighbour(self._steps, self._step, by)
        if later is not None:
            self._step = later
            self.reload()


class GroupView(TableView):
    """The siblings of one group."""

    columns = ("reward", "score", "advantage", "turns", "tokens", "s", "ended by", "first words")

    def __init__(self, reader: RunReader, kind: str, step: int, group: str) -> None:
        super().__init__()
        self.reader, self._kind, self._step, self._group = reader, kind, step, group

    def read(self, width: int) -> Mapping[str, Any]:
        """Fill the table with the siblings."""
        return group_answer(reader_of(self), self._kind, self._step, self._group)

    def show(self, answer: Any) -> None:
        """One line a sibling, with what it did after they part."""
        title = visible(answer["task_id"], "bold")
        title.append_text(visible(f"  {self._kind} step {self._step}", "dim"))
        parting = answer["divergence"]
        where = "all did the same"
        turn = char = 0
        if parting is not None:
            turn, char = parting["turn"], parting["char"]
            name = parting["name"] or "a text before turn 1"
            where = f"they part in {name} at character {char} (token {parting['token']})"
        self.head(title, Text(where, style="dim"))
        self.fill([(s["rollout_id"], _sibling_cells(s, turn, char)) for s in answer["siblings"]])

    def open(self, key: Any) -> View:
        """The view of the rollout of a row."""
        return RolloutView(reader_of(self), self._kind, self._step, key)


def _notes(notes: Sequence[str]) -> list[Text]:
    return [visible(f"left out {note}", "yellow") for note in notes[:2]]


def _run_cells(reader: RunReader) -> list[Text | str]:
    entry = run_entry(reader)
    verdicts = entry["verdicts"]
    findings = Text("...", style="dim")
    if verdicts is not None:
        findings = Text(f"{verdicts['fail']} fail ", style="red" if verdicts["fail"] else "dim")
        findings.append(f"{verdicts['warn']} warn", style="yellow" if verdicts["warn"] else "dim")
    before, after = entry["score_before"], entry["score_after"]
    score = "" if before is None else f"{number(before)} -> {number(after)}"
    planned = entry["planned_steps"]
    steps = str(entry["steps"])
    if planned is not None and planned > entry["steps"]:
        steps += f" of {planned}"
    return [entry["id"], entry["state"], steps, score, findings, entry["model"]]


def _step_cells(step: StoredStep) -> list[str]:
    return [
        str(step.step),
        step.kind,
        str(step.groups),
        str(step.rollouts),
        number(step.reward),
        number(step.score),
        _counted(step.terminations),
    ]


def _group_cells(group: Mapping[str, Any]) -> list[Text | str]:
    dull = "dim" if group["zero_advantage"] else ""
    return [
        visible(group["task_id"], dull),
        str(group["n"]),
        number(group["reward_mean"]),
        number(group["reward_std"]),
        number(group["score_mean"]),
        str(group["tokens"]),
        _counted(group["terminations"]),
    ]


def _sibling_cells(sibling: Mapping[str, Any], turn: int, char: int) -> list[Text | str]:
    actions = sibling["actions"]
    text = next((action["text"] for action in actions if action["turn"] >= turn), "")
    words_ = " ".join(text[char : char + 400].split())[:100]
    advantage = sibling["advantage"]
    colour = "" if not advantage else ("green" if advantage > 0 else "red")
    return [
        number(sibling["reward"]),
        number(sibling["score"]),
        Text(number(advantage, sign=True), style=colour),
        str(sibling["turns"]),
        str(sibling["action_tokens"]),
        f"{sibling['duration_s'] or math.nan:.1f}",
        sibling["termination"],
        words_,
    ]


def _counted(counts: Mapping[str, int]) -> str:
    ordered = sorted(counts.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {count}" for name, count in ordered)
