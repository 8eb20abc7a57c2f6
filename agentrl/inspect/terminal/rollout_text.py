"""A rollout as lines for a terminal: for `agentrl traj show` and for the terminal view.

Everything that a model, a tool or a dataset wrote passes `visible`, so escape sequences and
characters that do not print are spelled out, and nothing is read as rich markup. Rows are mappings
as in the inspector's answers; `stored_row` makes one of a record.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from agentrl.data import StoredTrajectory
from agentrl.inspect.pages.explanation import explanation_parts
from agentrl.inspect.pages.images import numbered, prompt_with_images
from agentrl.inspect.read.request_tree import request_tree, row_reasons
from agentrl.inspect.read.safe_terminal import number, visible
from agentrl.inspect.read.turn_numbers import repeated_turns, turn_names
from agentrl.inspect.terminal.columns import REWARD_AND_SCORE
from agentrl.inspect.terminal.request_text import request_lines
from agentrl.types import Trajectory

Decode = Callable[[Sequence[int]], str]
Heading = Callable[[str, str, str], Text]
"""The line above a text, of its role, the name of its turn (empty for none) and its facts."""

_ROLE_COLOURS = {
    "system": "magenta",
    "user": "cyan",
    "prompt": "cyan",
    "assistant": "green",
    "tool": "yellow",
}
_PLAIN = Console(width=80, force_terminal=False)


def stored_rows(trajectories: Sequence[Trajectory]) -> list[dict[str, Any]]:
    """The rows of a rollout as the mappings that `row_lines` shows."""
    turns = [[dataclasses.asdict(turn) for turn in row.turns] for row in trajectories]
    return [
        {
            "prompt_text": row.prompt_text,
            "prompt_tokens": len(row.prompt_ids),
            "images": [dataclasses.asdict(span) for span in row.images],
            "turns": [
                one | {"name": name, "repeats": repeats}
                for one, name, repeats in zip(of_row, names, again, strict=True)
            ],
        }
        for row, of_row, names, again in zip(
            trajectories, turns, turn_names(turns), repeated_turns(turns), strict=True
        )
    ]


def stored_rollout_lines(
    rows: Sequence[StoredTrajectory],
    *,
    title: str = "",
    most_chars: int | None = None,
    tokens: bool = False,
    decode: Decode | None = None,
    images: Path | None = None,
) -> Iterator[Text]:
    """The lines of one rollout: what it was worth, then its rows turn by turn.

    Args:
        rows: the rows of one rollout, in order.
        title: why it is shown.
        most_chars: shown of one text; None shows all.
        tokens: whether every token is listed with mask, log-probability and version.
        decode: token ids as text, where the run has a tokenizer.
        images: folder of the files of images, which are named; None names none.
    """
    yield from _heading(rows, title, most_chars)
    requests = request_tree(rows[0].trajectory.requests)
    yield from request_lines(requests)
    reasons = row_reasons(requests)
    trajectories = [stored.trajectory for stored in rows]
    for trajectory, row in zip(trajectories, stored_rows(trajectories), strict=True):
        if len(rows) > 1:
            reason = reasons.get(trajectory.row_index, "")
            yield row_title(trajectory.row_index, len(rows), reason)
        row["prompt_text"] = prompt_with_images(
            row["prompt_text"], trajectory.prompt_ids, row["images"], decode
        )
        count = len(trajectory.response_ids)
        listed = _lister(trajectory, decode) if tokens else None
        yield from row_lines(
            row,
            most_chars=most_chars,
            more="--full shows them",
            heading=numbered_heading,
            listed=listed,
            pictures=None if images is None else _pictures(trajectory, images),
        )
        if listed is not None and not trajectory.turns:
            yield from listed(0, count)
    for part in explanation_parts(rows[-1].trajectory.explanation):
        yield from explanation_lines(part, most_chars, "--full shows them", numbered_heading)
    yield Text()


def explanation_lines(
    part: Mapping[str, str], most_chars: int | None, more: str, heading: Heading
) -> Iterator[Text]:
    """One text that explains the reward, which the model never saw; several lines come as one.

    Args:
        part: as `explanation_parts` gives it.
        most_chars: shown of the text, half of it from each end; None shows all.
        more: how to see what is left out of a text.
        heading: the line above it.
    """
    yield heading(part["title"], "", "not shown to the model")
    yield visible(_shortened(part["text"], most_chars, more))


def row_title(index: int, count: int, reason: str = "") -> Text:
    """Which row of a rollout of several rows follows, and why it is a row of its own."""
    title = Text(f"row {index + 1} of {count}", style="bold")
    return title.append_text(visible(f"  {reason}", "yellow")) if reason else title


def row_lines(
    row: Mapping[str, Any],
    *,
    most_chars: int | None,
    more: str,
    heading: Heading,
    listed: Callable[[int, int], Iterator[Text]] | None = None,
    pictures: Callable[[int, int], Iterator[Text]] | None = None,
) -> Iterator[Text]:
    """Prompt and turns of a row; a text of several lines comes as one.

    Args:
        row: with `prompt_text`, `prompt_tokens`, `images` and `turns`.
        most_chars: shown of one text, half of it from each end; None shows all.
        more: how to see what is left out of a text.
        heading: the line above a prompt or a turn.
        listed: the lines of some tokens, put after each turn.
        pictures: the lines of the images among some tokens of prompt and response together.
    """

    def short(text: str | None) -> str:
        return _shortened(text or "", most_chars, more)

    first = row["prompt_tokens"]
    images: Sequence[Mapping[str, Any]] = row["images"]

    def readable(text: str, start: int, end: int) -> str:
        before = sum(image["start"] < start for image in images)
        own = [image for image in images if start <= image["start"] < end]
        return short(numbered(text, own, before + 1))

    prompt = readable(row["prompt_text"] or "", 0, first)
    yield heading("prompt", "", f"{row['prompt_tokens']} tokens")
    yield visible(prompt) if prompt else Text("(no text was stored)", style="dim")
    if pictures is not None:
        yield from pictures(0, first)
    for turn in row["turns"]:
        yield heading(turn["role"], turn["name"], _facts(turn))
        text = readable(turn["text"] or "", first + turn["start"], first + turn["end"])
        yield from _turn(turn, text, short)
        if pictures is not None:
            yield from pictures(first + turn["start"], first + turn["end"])
        if listed is not None:
            yield from listed(turn["start"], turn["end"])


def _pictures(trajectory: Trajectory, folder: Path) -> Callable[[int, int], Iterator[Text]]:
    def lines(start: int, end: int) -> Iterator[Text]:
        for span in trajectory.images:
            if start <= span.start < end:
                place = visible(f"image {folder / span.digest}", "cyan")
                yield place.append(f" ({span.features} features, {span.tokens} tokens)", "dim")

    return lines


def numbered_heading(role: str, name: str, facts: str) -> Text:
    """`-- assistant, turn 1 of 2 (2 tokens)`, for text that is read on after the program ended."""
    said = f"{role}, {name}" if name else role
    return visible(f"-- {said}", _role_style(role)).append_text(visible(f" ({facts})", "dim"))


def ruled_heading(role: str, name: str, facts: str) -> Text:
    """The role after a rule, for a screen that is scrolled."""
    line = visible(f"\u2501\u2501 {role} ", _role_style(role))
    return line.append_text(visible(f"{name}, {facts}" if name else facts, "dim"))


def worth_line(facts: Mapping[str, Any]) -> Text:
    """One line with reward, score, advantage and ending."""
    same = facts["reward"] is not None and facts["reward"] == facts["score"]
    line = Text.assemble(
        f"{REWARD_AND_SCORE if same else 'reward'} ",
        (number(facts["reward"]), "bold"),
        _parts(facts["reward_parts"]),
    )
    line.append("" if same else f"  score {number(facts['score'])}")
    line.append(f"  advantage {number(facts['advantage'], sign=True)}")
    return line.append("  ended by ").append_text(visible(facts["termination"], "bold"))


def wrapped(text: Text, width: int) -> Iterator[Text]:
    """A text as lines no wider than `width` cells."""
    text.expand_tabs(4)
    for line in text.split("\n", allow_blank=True):
        if line.cell_len <= width:
            yield line
        else:
            yield from line.wrap(_PLAIN, max(1, width))


def _heading(
    rows: Sequence[StoredTrajectory], title: str, most_chars: int | None
) -> Iterator[Text]:
    first, last = rows[0], rows[-1].trajectory
    line = Text.assemble(("== ", "bold"), visible(first.kind), f" step {first.step}", style="bold")
    line.append(f"  {title}" if title else "")
    yield line
    yield Text.assemble(
        "task ",
        visible(last.task_id),
        "  rollout ",
        visible(last.rollout_id),
        "  group ",
        visible(last.group_id),
    )
    yield worth_line(
        {
            "reward": last.reward,
            "reward_parts": last.reward_parts,
            "score": last.score,
            "advantage": first.advantage,
            "termination": last.termination,
        }
    )
    if last.termination_detail:
        detail = _shortened(last.termination_detail, most_chars, "--full shows them")
        yield Text.assemble("  ", visible(detail))
    sampled = sum(stored.trajectory.num_action_tokens for stored in rows)
    total = sum(len(stored.trajectory.response_ids) for stored in rows)
    versions = sorted({v for stored in rows for v in stored.trajectory.policy_versions if v >= 0})
    span = "-".join(map(str, dict.fromkeys(versions[:1] + versions[-1:]))) or "-"
    yield Text(
        f"prompt {len(rows[0].trajectory.prompt_ids)} tokens, response {total} ({sampled} "
        f"sampled), weights {span}, temperature {last.temperature:g}, {last.duration_s:.1f} s",
        style="dim",
    )
    if logs := {**last.extra_logs, **last.usage}:
        yield Text.assemble("logs", _parts(logs), style="dim")


def _parts(parts: Mapping[str, float | None]) -> Text:
    out = Text()
    for index, (name, value) in enumerate(parts.items()):
        out.append(", " if index else " (").append_text(visible(name)).append(f" {number(value)}")
    return out.append(")") if parts else out


def _facts(turn: Mapping[str, Any]) -> str:
    facts = [_tokens_text(turn), f"{turn['duration_s'] or 0:.2f} s"]
    if turn["finish_reason"]:
        facts.append(turn["finish_reason"])
    if turn.get("repeats"):
        facts.append(turn["repeats"])
    if turn["reward"] is not None:
        facts.append(_turn_reward(number(turn["reward"]), turn.get("reward_weight", 1.0)))
    return ", ".join(facts)


def _turn_reward(value: str, weight: float) -> str:
    """The reward of a turn, which the environment gives and the config weighs."""
    if weight == 1:
        return f"reward {value}"
    paid = "" if weight else ": not paid"
    return f"environment's reward {value} (weight {weight:g}{paid})"


def _tokens_text(turn: Mapping[str, Any]) -> str:
    """How many tokens a turn has, and how many were trained where that is known."""
    tokens = turn["end"] - turn["start"]
    if not tokens or "trained" not in turn:
        return f"{tokens} tokens"
    others = ", ".join(f"{count} {reason}" for reason, count in turn["others"].items())
    return f"{turn['trained']} of {tokens} tokens trained" + (f" ({others})" if others else "")


def _turn(turn: Mapping[str, Any], text: str, short: Callable[[str | None], str]) -> Iterator[Text]:
    yield visible(text)
    yield from (_call(call, turn["text"], short) for call in turn["tool_calls"])
    yield from (_result(result, turn["text"], short) for result in turn["tool_results"])


def _call(call: Mapping[str, Any], said: str, short: Callable[[str | None], str]) -> Text:
    line = Text.assemble("   call ", visible(call["name"] or "(no name)"), " ")
    line.append_text(_status(call["status"]))
    # What the model wrote stands above; its arguments would say the same again.
    raw, said = call["raw"].strip(), said.strip()
    written = bool(raw) and (raw in said or (bool(said) and raw.endswith(said)))
    if call["arguments"] and not written:
        arguments = json.dumps(call["arguments"], ensure_ascii=False)
        line.append(" ").append_text(visible(short(arguments)))
    if call["error"]:
        line.append("\n     ").append_text(visible(short(call["error"]), "red"))
    return line


def _result(result: Mapping[str, Any], said: str, short: Callable[[str | None], str]) -> Text:
    line = Text.assemble("   result ", visible(result["name"] or "(no name)"), " ")
    line.append_text(_status(result["status"])).append(f" {result['duration_s'] or 0:.2f} s")
    if result.get("exit_code") is not None:
        line.append(f" exit {result['exit_code']:g}")
    line.append(" shortened" if result["truncated"] else "")
    if result["text"] not in said:
        line.append("\n     ").append_text(visible(short(result["text"])))
    return line


def _role_style(role: str) -> str:
    return f"bold {_ROLE_COLOURS.get(role, '')}".strip()


def _status(status: str) -> Text:
    return visible(status, "green" if status == "ok" else "bold red")


def _lister(trajectory: Trajectory, decode: Decode | None) -> Callable[[int, int], Iterator[Text]]:
    def lines(start: int, end: int) -> Iterator[Text]:
        yield Text("   position      id mask  log-prob version", style="dim")
        for index in range(start, end):
            mask = trajectory.response_mask[index]
            line = Text(
                f"   {index:8d} {trajectory.response_ids[index]:7d} {mask:4d} "
                f"{trajectory.rollout_log_probs[index]:9.4f} "
                f"{trajectory.policy_versions[index]:7d}",
                style="" if mask else "dim",
            )
            if decode is not None:
                piece = decode([trajectory.response_ids[index]])
                line.append("  ").append_text(visible(json.dumps(piece, ensure_ascii=False)))
            yield line

    return lines


def _shortened(text: str, most_chars: int | None, more: str) -> str:
    if most_chars is None or len(text) <= most_chars:
        return text
    half = most_chars // 2
    note = f"[... {len(text) - 2 * half} characters left out; {more} ...]"
    return f"{text[:half]}\n{note}\n{text[-half:]}"
