"""A stored rollout as text for a terminal, with nothing in it that a terminal would obey.

Everything a model, a tool or a dataset wrote passes `visible`: escape sequences, control
characters and invisible or direction-changing characters are spelled out, and nothing is read as
rich markup.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence

from rich.text import Text

from agentrl.data import StoredTrajectory
from agentrl.inspect.read.safe_terminal import number, visible
from agentrl.types import ToolCall, ToolResult, Trajectory, Turn

_SHOWN_CHARS = 2000
"""Text of a turn that is shown without `--full`, half of it from each end."""
_COLOURS = {"system": "magenta", "user": "cyan", "assistant": "green", "tool": "yellow"}


def render_rollout(
    rows: Sequence[StoredTrajectory],
    *,
    title: str = "",
    full: bool = False,
    tokens: bool = False,
    decode: Callable[[Sequence[int]], str] | None = None,
) -> Iterator[Text]:
    """The lines of one rollout: what it was worth, then its rows turn by turn.

    Args:
        rows: the rows of one rollout, in order.
        title: why it is shown.
        full: whether long texts are shown whole.
        tokens: whether every token is listed with mask, log-probability and version.
        decode: token ids as text, where the run has a tokenizer.
    """
    yield from _heading(rows, title)
    for stored in rows:
        trajectory = stored.trajectory
        if len(rows) > 1:
            yield Text(f"row {trajectory.row_index + 1} of {len(rows)}", style="bold")
        yield from _prompt(trajectory, full, decode)
        for place, turn in enumerate(trajectory.turns):
            yield from _turn(place, turn, full)
            if tokens:
                yield from _tokens(trajectory, turn.start, turn.end, decode)
        if tokens and not trajectory.turns:
            yield from _tokens(trajectory, 0, len(trajectory.response_ids), decode)
    yield Text()


def _heading(rows: Sequence[StoredTrajectory], title: str) -> Iterator[Text]:
    first, last = rows[0], rows[-1].trajectory
    line = Text.assemble(("== ", "bold"), visible(first.kind), f" step {first.step}", style="bold")
    line.append(f"  {title}" if title else "")
    yield line
    yield Text.assemble(
        "task ", visible(last.task_id), "  rollout ", visible(last.rollout_id),
        "  group ", visible(last.group_id),
    )  # fmt: skip
    worth = Text.assemble("reward ", (number(last.reward), "bold"), _parts(last.reward_parts))
    worth.append(f"  score {number(last.score)}  advantage {number(first.advantage, sign=True)}")
    worth.append("  ended by ").append(last.termination.value, style="bold")
    yield worth
    if last.termination_detail:
        yield Text.assemble("  ", visible(_cut(last.termination_detail, False)))
    sampled = sum(stored.trajectory.num_action_tokens for stored in rows)
    total = sum(len(stored.trajectory.response_ids) for stored in rows)
    versions = sorted({v for stored in rows for v in stored.trajectory.policy_versions if v >= 0})
    span = "-".join(map(str, dict.fromkeys(versions[:1] + versions[-1:]))) or "-"
    yield Text(
        f"prompt {len(rows[0].trajectory.prompt_ids)} tokens, response {total} ({sampled} "
        f"sampled), weights {span}, temperature {last.temperature:g}, {last.duration_s:.1f} s",
        style="dim",
    )
    if last.extra_logs:
        yield Text.assemble("logs", _parts(last.extra_logs), style="dim")


def _parts(parts: Mapping[str, float]) -> Text:
    out = Text()
    for index, (name, value) in enumerate(parts.items()):
        out.append(", " if index else " (").append_text(visible(name)).append(f" {number(value)}")
    return out.append(")") if parts else out


def _prompt(
    trajectory: Trajectory, full: bool, decode: Callable[[Sequence[int]], str] | None
) -> Iterator[Text]:
    text = trajectory.prompt_text
    if not text and decode is not None:
        text = decode(trajectory.prompt_ids)
    yield Text(f"-- prompt ({len(trajectory.prompt_ids)} tokens)", style="bold cyan")
    yield visible(_cut(text, full)) if text else Text("(no text was stored)", style="dim")


def _turn(number_: int, turn: Turn, full: bool) -> Iterator[Text]:
    line = Text(f"-- {number_} {turn.role}", style=f"bold {_COLOURS.get(turn.role, '')}".strip())
    facts = [f"{turn.end - turn.start} tokens", f"{turn.duration_s:.2f} s"]
    if turn.finish_reason is not None:
        facts.append(turn.finish_reason.value)
    if turn.reward is not None:
        facts.append(f"reward {number(turn.reward)}")
    yield line.append(f" ({', '.join(facts)})", style="dim")
    yield visible(_cut(turn.text, full))
    for call in turn.tool_calls:
        yield _call(call, full)
    for result in turn.tool_results:
        yield _result(result, full, shown=result.text in turn.text)


def _call(call: ToolCall, full: bool) -> Text:
    line = Text.assemble("   call ", visible(call.name or "(no name)"), " ", (call.status, "bold"))
    if call.arguments:
        shown = json.dumps(dict(call.arguments), ensure_ascii=False)
        line.append(" ").append_text(visible(_cut(shown, full)))
    if call.error:
        line.append("\n     ").append_text(visible(_cut(call.error, full), style="red"))
    return line


def _result(result: ToolResult, full: bool, *, shown: bool) -> Text:
    line = Text.assemble("   result ", visible(result.name or "(no name)"), " ")
    line.append(result.status.value, style="bold").append(f" {result.duration_s:.2f} s")
    if result.truncated:
        line.append(" shortened")
    if not shown:
        line.append("\n     ").append_text(visible(_cut(result.text, full)))
    return line


def _tokens(
    trajectory: Trajectory,
    start: int,
    end: int,
    decode: Callable[[Sequence[int]], str] | None,
) -> Iterator[Text]:
    yield Text("   position      id mask  log-prob version", style="dim")
    for index in range(start, end):
        mask = trajectory.response_mask[index]
        line = Text(
            f"   {index:8d} {trajectory.response_ids[index]:7d} {mask:4d} "
            f"{trajectory.rollout_log_probs[index]:9.4f} {trajectory.policy_versions[index]:7d}",
            style="" if mask else "dim",
        )
        if decode is not None:
            piece = decode([trajectory.response_ids[index]])
            line.append("  ").append_text(visible(json.dumps(piece, ensure_ascii=False)))
        yield line


def _cut(text: str, full: bool) -> str:
    if full or len(text) <= _SHOWN_CHARS:
        return text
    half = _SHOWN_CHARS // 2
    left_out = len(text) - 2 * half
    note = f"[... {left_out} characters left out; --full shows them ...]"
    return f"{text[:half]}\n{note}\n{text[-half:]}"
