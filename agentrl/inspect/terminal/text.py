"""Lines of text of the terminal view: pure functions from answers to `rich.Text`.

Everything a run wrote passes `visible`, and nothing is read as markup.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from rich.text import Text

from agentrl.inspect.read.safe_terminal import number, visible
from agentrl.inspect.terminal.request_text import request_lines
from agentrl.inspect.terminal.rollout_text import (
    explanation_lines,
    row_lines,
    row_title,
    ruled_heading,
    wrapped,
)

STATUS_COLOURS = {"fail": "bold red", "warn": "yellow", "ok": "green", "unknown": "dim"}
OVERLAYS = ("why", "surprise", "gap", "entropy", "advantage", "ratio", "loss")
"""What the text of a token can be coloured by."""

_TEXT_CHARS = 20_000
"""Shown of one text of a rollout."""
_PIECE_CELLS = 16
"""Room for the text of a token; more than most need."""
_BARS = "\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"
_FULL = {"surprise": 6.0, "gap": 0.2, "entropy": 3.0, "advantage": 2.0, "ratio": 0.2, "loss": 0.01}
"""Where the colour of an overlay is full."""
_SIGNED = ("advantage", "loss")
_COLUMN = {"surprise": "rollout_log_prob"}


def sparkline(values: Sequence[float], width: int) -> str:
    """A curve as bars, as wide as `width`; of many values each bar is a mean.

    Example:
        >>> sparkline([0.0, 0.5, 1.0], 3)
        '\\u2581\\u2584\\u2588'
    """
    if not values or width < 1:
        return ""
    count = min(width, len(values))
    edges = [round(step * len(values) / count) for step in range(count + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(means), max(means)
    span = high - low
    if not math.isfinite(span) or span <= 0:
        return _BARS[0] * count
    return "".join(_BARS[int((value - low) / span * (len(_BARS) - 1))] for value in means)


def ranked_verdicts(overview: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Findings in the order of their causes, each followed by its consequences."""
    by_name = {verdict["detector"]: verdict for verdict in overview["verdicts"]}
    names = [name for one in overview["causes"] for name in (one["detector"], *one["follows"])]
    return [by_name[name] for name in names]


def verdict_lines(overview: Mapping[str, Any], width: int) -> Iterator[Text]:
    """Causes with evidence, consequences and commands, then what to change; what is fine as one
    line."""
    by_name = {verdict["detector"]: verdict for verdict in overview["verdicts"]}
    for cause in overview["causes"]:
        yield verdict_line(by_name[cause["detector"]])
        for evidence in by_name[cause["detector"]]["evidence"]:
            yield from _hanging("    ", visible(evidence["text"]), width)
        for name in cause["follows"]:
            yield from _hanging("    so ", verdict_line(by_name[name]), width)
        if cause["command"]:
            yield from _hanging("    ", visible(cause["command"], "cyan"), width)
    for lever in overview["levers"]:
        change = Text.assemble(("set ", "bold"), visible(f"{lever['key']}: {lever['value']}"))
        yield from _hanging("    ", change.append("  ").append_text(visible(lever["why"])), width)
    fine = [one["detector"] for one in overview["verdicts"] if one["status"] in ("ok", "unknown")]
    if fine:
        yield from _hanging("", visible(f"nothing found by: {', '.join(fine)}", "dim"), width)


def verdict_line(verdict: Mapping[str, Any]) -> Text:
    """One finding in one line."""
    line = Text(f"{verdict['status']:>5}  ", style=STATUS_COLOURS.get(verdict["status"], ""))
    line.append_text(visible(verdict["title"]))
    if verdict["first_step"] is not None:
        line.append(f"  (since step {verdict['first_step']})", style="dim")
    return line


def dashboard_lines(overview: Mapping[str, Any], width: int) -> Iterator[Text]:
    """The minimum dashboard as bars with the newest value and where it is healthy."""
    bars = max(8, min(48, width - 62))
    for band in overview["dashboard"]:
        curve = overview["metrics"].get(band["metric"])
        if not curve or not curve["values"]:
            continue
        last = curve["values"][-1]
        red = _outside(last, band["red"])
        style = "bold red" if red else ("" if not _outside(last, band["healthy"]) else "yellow")
        line = visible(f"{band['label'][:30]:30} ")
        line.append(f"{sparkline(curve['values'], bars):{bars}} ", style="blue")
        line.append(f"{number(last):>10}", style=style)
        healthy = _span(band["healthy"])
        yield line.append(f"  healthy {healthy}" if healthy else "", style="dim")


def share_lines(title: str, shares: Mapping[str, Mapping[str, Any]], width: int) -> Iterator[Text]:
    """The newest value of several curves as shares of their sum, biggest first."""
    newest = {name: curve["values"][-1] for name, curve in shares.items() if curve["values"]}
    whole = sum(value for value in newest.values() if value > 0)
    if whole <= 0:
        return
    yield Text(title, style="bold")
    for name, value in sorted(newest.items(), key=lambda item: -item[1]):
        if value > 0:
            line = visible(f"  {name[:22]:22} ")
            line.append("\u2588" * max(1, round(value / whole * min(40, width - 50))), style="blue")
            yield line.append(f" {number(value / whole)}  ({number(value)})", style="dim")


def rollout_lines(answer: Mapping[str, Any], width: int) -> Iterator[Text]:
    """A rollout turn by turn, as lines no wider than `width` cells."""
    more = "agentrl traj show --full has them"
    for text in request_lines(answer["requests"]):
        yield from wrapped(text, width)
    for row in answer["rows"]:
        if len(answer["rows"]) > 1:
            yield row_title(row["row_index"], len(answer["rows"]), row["reason"])
        for text in row_lines(row, most_chars=_TEXT_CHARS, more=more, heading=ruled_heading):
            yield from wrapped(text, width)
    if answer["detail"]:
        yield ruled_heading("end", "", answer["termination"])
        yield from wrapped(visible(answer["detail"][:_TEXT_CHARS], "red"), width)
    for part in answer["explanation"]:
        for text in explanation_lines(part, _TEXT_CHARS, more, ruled_heading):
            yield from wrapped(text, width)
    if answer.get("patch"):
        yield ruled_heading("patch", "", "")
        for line in answer["patch"].splitlines()[:2000]:
            colour = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1], "")
            yield from wrapped(visible(line, colour), width)


def token_head() -> Text:
    """Names of the columns of `token_line`."""
    names = f"{'pos':>6} {'id':>7} {'weights':>7} {'sampler':>8} {'trainer':>8} {'gap':>8}"
    names += f" {'entropy':>7} {'advant.':>8} {'ratio':>7} {'clip':>4} {'loss':>9}  "
    names += f"{'text':{_PIECE_CELLS}} why"
    return Text(names, style="bold")


def token_line(tokens: Mapping[str, Any], index: int, overlay: str) -> Text:
    """One token with all its numbers; its text is coloured by the overlay."""
    at = index - tokens["n_prompt"]
    position = str(at) if at >= 0 else "prompt"
    line = Text(f"{position:>6} {tokens['ids'][index]:>7} ")
    line.append(f"{_whole(tokens, 'version', index):>7} ")
    for name, width, digits in (
        ("rollout_log_prob", 8, 4), ("old_log_prob", 8, 4), ("gap", 8, 4), ("entropy", 7, 3),
        ("advantage", 8, 3), ("ratio", 7, 3),
    ):  # fmt: skip
        value = _value(tokens, name, index)
        line.append(f"{'' if value is None else f'{value:.{digits}f}':>{width}} ")
    loss = _value(tokens, "loss", index)
    line.append(f"{_whole(tokens, 'clip', index):>4} {'' if loss is None else f'{loss:.2e}':>9}  ")
    if not tokens["mask"][index]:
        line.stylize("dim")
    text = tokens["text"][index] if tokens["text"] else ""
    shown = visible(text.replace("\n", "\\n").replace("\t", "\\t"))
    line.append_text(Text.assemble(shown, style=_colour(tokens, index, overlay)))
    line.append(" " * (_PIECE_CELLS - shown.cell_len))
    why = tokens["why"]["legend"][tokens["why"]["codes"][index]]
    return line.append(" ").append_text(visible(why, "dim italic"))


def _hanging(indent: str, text: Text, width: int) -> Iterator[Text]:
    for line in wrapped(text, width - len(indent)):
        yield Text(indent).append_text(line)


def _value(tokens: Mapping[str, Any], name: str, index: int) -> float | None:
    column = tokens[name]
    if column is None:
        return None
    value = column[index]
    return None if value is None or not math.isfinite(value) else float(value)


def _whole(tokens: Mapping[str, Any], name: str, index: int) -> str:
    value = _value(tokens, name, index)
    return "" if value is None else f"{value:.0f}"


def _colour(tokens: Mapping[str, Any], index: int, overlay: str) -> str:
    if overlay == "why":
        why = tokens["why"]["legend"][tokens["why"]["codes"][index]]
        return "green" if why == "trained" else ("red" if tokens["mask"][index] else "dim")
    value = _value(tokens, _COLUMN.get(overlay, overlay), index)
    if value is None:
        return "dim"
    # A token of the sampler's own choice has a ratio of 1.
    value -= overlay == "ratio"
    level = round(120 * min(1.0, abs(value) / _FULL[overlay]))
    good = overlay in _SIGNED and value > 0
    return f"on rgb(0,{level},0)" if good else f"on rgb({level},0,{level // 3})"


def _outside(value: float, span: Sequence[float | None] | None) -> bool:
    """Whether a value is outside of a healthy span; a red span is met from its own side."""
    if not span:
        return False
    low, high = span
    return (low is not None and value < low) or (high is not None and value > high)


def _span(span: Sequence[float | None]) -> str:
    low, high = span
    if low is None and high is None:
        return ""
    if low is None or high is None:
        return f"up to {number(high)}" if low is None else f"from {number(low)}"
    return f"{number(low)} to {number(high)}"
