"""The view of a player: lines for a person, or one JSON object a line for a program."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import typer
from rich.console import Console

from agentrl.inspect.read.safe_terminal import visible
from agentrl.types import Message, ToolCall, Trajectory

View = Callable[..., None]
"""Called with the kind of an event and its facts as keywords, ready for JSON."""


def json_view(event: str, **facts: Any) -> None:
    """Print an event as one line of JSON."""
    typer.echo(json.dumps({"event": event, **facts}, default=str))


def text_view(console: Console) -> View:
    """Print events for a person; what comes from environment and tools cannot move the cursor."""

    def show(event: str, **facts: Any) -> None:
        for text, style in _LINES[event](facts):
            console.print(visible(text, style), soft_wrap=True)

    return show


Lines = list[tuple[str, str]]


def _task(facts: Mapping[str, Any]) -> Lines:
    head = f"task {facts['id']} ({facts['split']}); /help says what to type"
    return [(head, "dim"), *_said(facts["prompt"]), (described(facts["tools"]), "dim")]


def _turn(facts: Mapping[str, Any]) -> Lines:
    lines: Lines = []
    for result in facts["results"]:
        lines += [
            (f"{result['name'] or 'call'} ({result['status']}):", "dim"),
            (result["text"], ""),
        ]
    if facts["last"]:
        lines.append(("a limit ends the episode after this step", "dim"))
    return lines


def _step(facts: Mapping[str, Any]) -> Lines:
    score = "" if facts["scores"] is None else f", score {facts['scores']:g}"
    head = f"reward {facts['rewards']:g}{score}{', done' * facts['done']}"
    lines = [(head, "cyan"), *_parts(facts)]
    if facts["history"] is None:
        return [*lines, *_said(facts["feedback"])]
    return [*lines, ("the conversation goes on as:", "dim"), *_said(facts["history"])]


def _end(facts: Mapping[str, Any]) -> Lines:
    lines = [(f"ended: {facts['termination']}", "bold")]
    if facts["reward"] is None:
        return [*lines, (facts["detail"], "red")]
    total = f"reward {facts['reward']:g}, score {facts['score']:g}"
    why = [(f"{name}: {text}", "") for name, text in facts["explanation"].items()]
    detail = [(facts["detail"], "")] if facts["detail"] else []
    return [*lines, *detail, (total, "bold cyan"), *_parts(facts), *why]


def _parts(facts: Mapping[str, Any]) -> Lines:
    return [(f"  {name} {value:g}", "cyan") for name, value in facts["parts"].items()]


def _said(content: str | Sequence[Mapping[str, str]]) -> Lines:
    if isinstance(content, str):
        return [(content, "green")] if content else []
    return [(f"{message['role']}: {message['content']}", "green") for message in content]


_LINES: Mapping[str, Callable[[Mapping[str, Any]], Lines]] = {
    "task": _task,
    "solution": lambda facts: [(f"solution> {facts['said']}", "bold")],
    "turn": _turn,
    "step": _step,
    "note": lambda facts: [(facts["text"], "dim")],
    "end": _end,
}


def described(schemas: Sequence[Mapping[str, Any]]) -> str:
    """One line for each tool: its arguments, and what it does."""
    lines = []
    for schema in schemas:
        properties: Mapping[str, Any] = schema["parameters"].get("properties", {})
        kinds = (f"{name}: {entry.get('type', 'any')}" for name, entry in properties.items())
        does = schema["description"].partition("\n")[0]
        lines.append(f"tool {schema['name']}({', '.join(kinds)})  {does}")
    return "\n".join(lines) or "no tools"


def written(turn: str | ToolCall) -> str:
    """A turn as it is typed."""
    if isinstance(turn, str):
        return turn
    return (
        f"{turn.name}({', '.join(f'{name}={value!r}' for name, value in turn.arguments.items())})"
    )


def plain(content: str | Sequence[Message]) -> Any:
    """Text or messages for JSON."""
    if isinstance(content, str):
        return content
    return [{"role": message.role, "content": message.content} for message in content]


def ending(row: Trajectory) -> dict[str, Any]:
    """The end of an episode: why it ended, and what it was paid and why."""
    trusted, why = row.rule.reward_trusted, row.explanation
    names = ("reference", "reason", "tests", "grader_output") if why else ()
    return {
        "termination": str(row.termination),
        "detail": row.termination_detail,
        "reward": row.reward if trusted else None,
        "score": row.score if trusted else None,
        "parts": dict(row.reward_parts),
        "explanation": {name: text for name in names if (text := getattr(why, name))},
    }
