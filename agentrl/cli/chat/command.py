"""`agentrl chat show`: one conversation with a call and its result, as text, ids and masks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from agentrl.cli.console.start import open_console, prepare
from agentrl.config.schema import ChatSection, ModelSection
from agentrl.errors import ChatError
from agentrl.types import CallStatus, Message, ToolCall

if TYPE_CHECKING:
    from agentrl.chat import ChatFormat, ToolCallParser
    from agentrl.tool import Tool

app = typer.Typer(no_args_is_help=True, help="See how conversations become the ids of a model.")

_ASKED = Message(role="user", content="What will the weather be in Graz tomorrow?")
_ARGUMENTS = {"place": 'Graz, "Styria"', "days": 1, "units": ["C"]}
_RESULT = "18 degrees and rain"
_ANSWER = "It will rain, at 18 degrees."


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownPart:
    """A part of a conversation, as the trainer sees it."""

    part: str
    """Who wrote it."""
    mask: int
    """1 for tokens that the policy samples and is trained on, else 0."""
    text: str
    """Text of the ids, special tokens written out."""
    ids: tuple[int, ...]


@app.callback()
def root() -> None:
    """See how conversations become the ids of a model."""


@app.command()
def show(
    model: Annotated[str, typer.Argument(help="Checkpoint, hub name or quickstart.")],
    tool_parser: Annotated[
        str, typer.Option(help="As chat.tool_parser; auto takes what the template writes.")
    ] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print a conversation with a tool call and its result: text, ids and masks.

    The call is written as the model would sample it and read back; exit status 1 if it is not read
    as it was written. No weights are loaded.
    """
    from agentrl.chat import build_chat, build_parser
    from agentrl.disk.model_source import model_source
    from agentrl.models.source import load_tokenizer

    prepare()
    section = ModelSection(path=model)
    source = model_source(section)
    tokenizer = load_tokenizer(section.model_copy(update={"path": source}))
    chat = build_chat(tokenizer, ChatSection(tool_parser=tool_parser))
    parser = build_parser(tool_parser)
    parser = None if parser is None else parser.for_chat(chat)
    parts, read = conversation(chat, parser)
    reason = chat.calls_note or "as --tool-parser asks"
    if as_json:
        shown = {
            "template": chat.name,
            "tool_calls": chat.syntax.name,
            "reason": reason,
            "ends": chat.ends(),
            "read_back": read,
            "parts": [asdict(part) for part in parts],
        }
        typer.echo(json.dumps(shown, ensure_ascii=False))
        raise typer.Exit(0 if read else 1)
    console = open_console()
    lines = [
        f"template: {chat.name}; a turn ends at {chat.ends()}",
        f"tool calls: {chat.syntax.name}, {reason}",
    ]
    for part in parts:
        trained = "trained on" if part.mask else "not trained on"
        lines.append(f"\n{part.part}: {len(part.ids)} tokens, mask {part.mask} ({trained})")
        lines += [f"  | {line}" for line in part.text.split("\n")]
        lines.append(f"  ids {' '.join(map(str, part.ids))}")
    back = "is read back as it was written" if read else "IS NOT READ BACK as it was written"
    lines.append(f"\nthe call {back}")
    console.print("\n".join(lines), markup=False, soft_wrap=True)
    raise typer.Exit(0 if read else 1)


def conversation(chat: ChatFormat, parser: ToolCallParser | None) -> tuple[list[ShownPart], bool]:
    """The parts of a conversation, and whether its call is read back as it was written.

    Raises:
        ChatError: the template refuses the conversation.
    """
    from agentrl.tool import FunctionTool

    tools = [FunctionTool(weather)]
    call = ToolCall("weather", _ARGUMENTS, id="c1a2b3d4e")
    prompt = chat.render_prompt([_ASKED], tools)
    result = Message(role="tool", content=_RESULT, tool_call_id=call.id, name=call.name)
    stop = chat.stop_before([result])
    texts = chat.assistant_texts(Message(role="assistant", content="", tool_calls=(call,)))
    if not texts:
        raise ChatError("the chat template writes no turn with a call")
    turns = [(*_without_end(chat.encode_said(text), stop), stop) for text in texts]
    right = [ids for ids in turns if _reads(ids, chat, parser, tools)]
    called = (right or turns)[0]
    answer = (*chat.encode_said(_ANSWER), chat.stop_token_ids[0])
    written = [
        ("prompt", 0, prompt),
        ("turn 1 of the policy, the call", 1, called),
        ("result of the tool", 0, chat.turn_delta([result], ended=True, stop_id=stop)),
        ("turn 2 of the policy, the answer", 1, answer),
    ]
    parts = [
        ShownPart(part=part, mask=mask, ids=tuple(ids), text=chat.decode_raw(ids))
        for part, mask, ids in written
    ]
    return parts, bool(right)


def _without_end(ids: Sequence[int], stop: int) -> tuple[int, ...]:
    """The ids of a turn whose syntax of calls may end with the stop token itself."""
    return tuple(ids[:-1] if ids and ids[-1] == stop else ids)


def _reads(
    ids: Sequence[int], chat: ChatFormat, parser: ToolCallParser | None, tools: Sequence[Tool]
) -> bool:
    if parser is None:
        return False
    calls = parser.parse(ids, chat, tools=tools).calls
    read = calls[0] if len(calls) == 1 and calls[0].status is CallStatus.OK else None
    return read is not None and (read.name, dict(read.arguments)) == ("weather", _ARGUMENTS)


async def weather(place: str, days: int, units: list[str]) -> str:
    """Forecast the weather of some days.

    Args:
        place: city and region
        days: from today
        units: C or F
    """
    return _RESULT
