"""Examples of a fit in the terminal view: the list of an evaluation, and the answers of one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, ClassVar

from rich.text import Text
from textual.binding import Binding, BindingType

from agentrl.inspect.pages.examples import example_answer, examples_answer
from agentrl.inspect.read.reader import RunReader
from agentrl.inspect.read.safe_terminal import number, visible
from agentrl.inspect.terminal.lines import Lines
from agentrl.inspect.terminal.rollout_text import ruled_heading, wrapped
from agentrl.inspect.terminal.view import TableView, View, neighbour, reader_of

OVERLAYS = ("log_ratio", "log_prob", "ref_log_prob")
"""What tokens can be coloured by."""
_NAMES = {"log_ratio": "log-ratio", "log_prob": "policy", "ref_log_prob": "reference"}
_FULL = 1.0
"""Nats where the colour of a log-ratio is full; six times as many of a log-probability."""
_GAP = 3
"""Cells between the answers."""
_MOST_TOKENS = 20_000
_PIECE_CELLS = 14


class ExamplesView(TableView):
    """The examples of one evaluation."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left_square_bracket", "step(-1)", "evaluation before"),
        Binding("right_square_bracket", "step(1)", "evaluation after"),
        Binding("n", "dataset", "next data"),
    ]
    columns = ("example", "chosen", "rejected", "h", "scaled", "margin", "prompt", "answer")

    def __init__(self, reader: RunReader) -> None:
        super().__init__()
        self.reader = reader
        self._step: int | None = None
        self._dataset: str | None = None
        self._answer: Mapping[str, Any] = {}

    def read(self, width: int) -> Mapping[str, Any]:
        """The examples of the step."""
        return examples_answer(reader_of(self), self._dataset, self._step)

    def show(self, answer: Any) -> None:
        """One line an example."""
        self._answer, self._step, self._dataset = answer, answer["step"], answer["dataset"]
        known = [one["h"] for one in answer["examples"] if one["h"] is not None]
        title = visible(f"examples of {answer['dataset']} after step {answer['step']}", "bold")
        what = " ".join(filter(None, (answer["objective"]["kind"], answer["objective"]["loss"])))
        title.append_text(visible(f"  {what}", "dim"))
        if known:
            right = sum(h > 0 for h in known)
            title.append(f"  {right} of {len(known)} in the right order", style="dim")
        self.head(title)
        self.fill([(one["id"], _cells(one)) for one in answer["examples"]])

    def open(self, key: Any) -> View:
        """The answers of an example."""
        assert self._dataset is not None
        assert self._step is not None
        return ExampleView(reader_of(self), self._dataset, self._step, key)

    def action_step(self, by: int) -> None:
        """Go to the evaluation before or after."""
        later = neighbour(list(self._answer.get("steps", ())), self._step, by)
        if self._answer and later is not None:
            self._step = later
            self.reload()

    def action_dataset(self) -> None:
        """Go to the next data."""
        names = list(self._answer.get("datasets", ()))
        if names:
            self._dataset = names[(names.index(self._dataset) + 1) % len(names)]
            self.reload()


class ExampleView(View):
    """One example: the prompt once, its answers side by side, a colour or a line for each token."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left_square_bracket", "step(-1)", "evaluation before"),
        Binding("right_square_bracket", "step(1)", "evaluation after"),
        Binding("n", "example(1)", "next example"),
        Binding("p", "example(-1)", "previous"),
        Binding("o", "overlay", "colour by"),
        Binding("t", "tokens", "list of tokens"),
    ]

    def __init__(self, reader: RunReader, dataset: str, step: int, example: str) -> None:
        super().__init__()
        self.reader, self._dataset, self._step, self._example = reader, dataset, step, example
        self._answer: Mapping[str, Any] = {}
        self._overlay, self._listed, self._width = 0, False, 80

    def pane(self) -> Lines:
        """A pane of lines."""
        return Lines(id="pane")

    def read(self, width: int) -> tuple[Mapping[str, Any], int]:
        """The example with all its tokens."""
        answer = example_answer(reader_of(self), self._dataset, self._step, self._example)
        return answer, width

    def show(self, answer: Any) -> None:
        """Show what it is worth above the answers."""
        self._answer, self._width = answer
        self._draw()

    def _draw(self) -> None:
        if not self._answer:
            return
        overlay = OVERLAYS[self._overlay]
        title = visible(self._example, "bold").append_text(
            visible(f"  after step {self._step}  {self._answer['source']}", "dim")
        )
        title.append(f"  coloured by {_NAMES[overlay]}", style="dim")
        self.head(title, worth_text(self._answer))
        lines = list(
            token_rows(self._answer, self._width)
            if self._listed
            else answer_rows(self._answer, self._width, overlay)
        )
        self.query_one("#pane", Lines).show_all(lines)

    def action_step(self, by: int) -> None:
        """Go to the evaluation before or after."""
        later = neighbour(list(self._answer.get("steps", ())), self._step, by)
        if self._answer and later is not None:
            self._step = later
            self.reload()

    def action_example(self, by: int) -> None:
        """Go to the next or previous example."""
        other = neighbour(list(self._answer.get("neighbours", ())), self._example, by)
        if self._answer and other is not None:
            self._example = other
            self.query_one("#pane", Lines).scroll_home(animate=False)
            self.reload()

    def action_overlay(self) -> None:
        """Colour by the next number."""
        self._overlay = (self._overlay + 1) % len(OVERLAYS)
        self._draw()

    def action_tokens(self) -> None:
        """Show a line for each token, or the texts."""
        self._listed = not self._listed
        self._draw()


def worth_text(answer: Mapping[str, Any]) -> Text:
    """Margin, label and h of an example in one line."""
    parts = [f"margin {number(answer['margin'], sign=True)}"]
    if answer["label_probability"] is not None:
        parts.append(f"label right with {number(answer['label_probability'])}")
    if answer["desirable"] is not None:
        parts.append("desirable" if answer["desirable"] else "undesirable")
    if answer["h"] is not None:
        order = "right" if answer["h"] > 0 else "wrong" if answer["h"] < 0 else "no"
        parts.append(f"h {number(answer['h'], sign=True)} ({order} order)")
    if answer["objective"]["kind"] == "dpo":
        beta = number(answer["objective"]["beta"])
        parts.append(f"beta {beta}, scaled {number(answer['scaled'], sign=True)}")
    return Text("  ".join(parts))


def answer_rows(answer: Mapping[str, Any], width: int, overlay: str) -> Iterator[Text]:
    """The prompt, and the answers beside each other with coloured tokens."""
    yield from _prompt(answer, width)
    half = _half(answer, width)
    columns = [
        [*_sums(name, sums), *_coloured(one, overlay, half)] for name, one, sums in _each(answer)
    ]
    yield from _beside(columns, half)


def token_rows(answer: Mapping[str, Any], width: int) -> Iterator[Text]:
    """The prompt, and a line with all numbers for each token of each answer."""
    yield from _prompt(answer, width)
    half = _half(answer, width)
    columns = [[*_sums(name, sums), *_listed(one)] for name, one, sums in _each(answer)]
    yield from _beside(columns, half)


def _each(answer: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any], Mapping[str, Any]]]:
    for one, sums in zip(answer["answers"], answer["sums"], strict=False):
        yield one["name"], one, sums


def _half(answer: Mapping[str, Any], width: int) -> int:
    count = max(1, len(answer["answers"]))
    return max(10, (width - _GAP * (count - 1)) // count)


def _prompt(answer: Mapping[str, Any], width: int) -> Iterator[Text]:
    yield ruled_heading("prompt", "", f"{len(answer['prompt_ids'])} tokens")
    text = answer["prompt_text"] or [f"{token} " for token in answer["prompt_ids"]]
    yield from wrapped(visible("".join(text)[:_MOST_TOKENS]), width)
    yield Text()


def _sums(name: str, sums: Mapping[str, Any]) -> Iterator[Text]:
    yield Text(
        f"{name}  {sums['tokens']} tokens",
        style="bold green" if name != "rejected" else "bold yellow",
    )
    known = (
        ("log-prob", sums["log_prob"]), ("reference", sums["ref_log_prob"]),
        ("log-ratio", sums["log_ratio"]), ("score", sums["score"]),
    )  # fmt: skip
    for label, value in known:
        if value is not None:
            yield Text(f"{label:10} {number(value, sign=label == 'log-ratio')}", style="dim")
    yield Text()


def _coloured(one: Mapping[str, Any], overlay: str, width: int) -> Iterator[Text]:
    text = Text()
    for index in range(min(len(one["ids"]), _MOST_TOKENS)):
        value = None if one[overlay] is None else one[overlay][index]
        style = _colour(value, overlay) if one["trained"][index] else "dim"
        text.append_text(Text.assemble(visible(_piece(one, index)), style=style))
    yield from wrapped(text, width)


def _listed(one: Mapping[str, Any]) -> Iterator[Text]:
    yield Text(f"{'id':>7} {'policy':>8} {'ref.':>8} {'ratio':>8}  text", style="bold")
    for index, token in enumerate(one["ids"][:_MOST_TOKENS]):
        line = Text(f"{token:>7} ")
        for name in ("log_prob", "ref_log_prob", "log_ratio"):
            value = None if one[name] is None else one[name][index]
            line.append(f"{'' if value is None else f'{value:.3f}':>8} ")
        if not one["trained"][index]:
            line.stylize("dim")
        piece = visible(_piece(one, index).replace("\n", "\\n").replace("\t", "\\t"))
        piece.truncate(_PIECE_CELLS)
        ratio = None if one["log_ratio"] is None else one["log_ratio"][index]
        yield line.append(" ").append_text(Text.assemble(piece, style=_colour(ratio, "log_ratio")))


def _piece(one: Mapping[str, Any], index: int) -> str:
    return one["text"][index] if one["text"] is not None else f"{one['ids'][index]} "


def _colour(value: float | None, overlay: str) -> str:
    """Green where a token became likelier, red where less; the deeper the less likely it is."""
    if value is None:
        return ""
    full = _FULL if overlay == "log_ratio" else 6 * _FULL
    level = round(120 * min(1.0, abs(value) / full))
    good = overlay == "log_ratio" and value > 0
    return f"on rgb(0,{level},0)" if good else f"on rgb({level},0,{level // 3})"


def _beside(columns: Sequence[Sequence[Text]], width: int) -> Iterator[Text]:
    """Columns of lines beside each other, each so many cells wide."""
    for parts in zip_longest(*columns):
        line = Text()
        for place, part in enumerate(parts):
            cell = Text() if part is None else part.copy()
            cell.truncate(width)
            line.append_text(cell)
            if place + 1 < len(parts):
                line.append(" " * (width - cell.cell_len + _GAP))
        yield line


def _cells(one: Mapping[str, Any]) -> list[Text | str]:
    values = [sums["value"] for sums in one["sums"]]
    colour = "" if not one["h"] else ("green" if one["h"] > 0 else "red")
    return [
        one["id"],
        number(values[0]),
        number(values[1] if len(values) > 1 else None),
        Text(number(one["h"], sign=True), style=colour),
        number(one["scaled"], sign=True),
        number(one["margin"], sign=True),
        _short(one["prompt"][-60:]),
        _short(one["excerpts"][0]),
    ]


def _short(text: str) -> str:
    return " ".join(text.split())[:40]
