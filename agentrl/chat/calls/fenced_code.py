"""The action is a fenced block of code: the `fenced_code` format."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from agentrl.chat.parser import Found, ToolCallParser
from agentrl.errors import ChatError
from agentrl.tool import Tool
from agentrl.types import CallStatus, ToolCall
from agentrl.types.thoughts import CLOSING

_FENCE = re.compile(r"^([ \t]*+)(`{3,}+|~{3,}+)[ \t]*+([^\s`]*+)([^\n`]*+)(?:\n|\Z)", re.MULTILINE)
_END = re.compile(
    rf"^[ \t]*+(?:`{{3,}}+|~{{3,}}+)?[ \t]*+(?:{CLOSING})|(?:{CLOSING})[ \t\r]*+(?:\n|\Z)",
    re.MULTILINE,
)


class FencedCodeParser(ToolCallParser):
    """Each fenced block becomes a call of `python` with `code` and `language`.

    Fences follow CommonMark: a block ends at a line that holds nothing but a fence of the same
    character and at least the same length. A block that the turn ends in is `UNCLOSED` and keeps
    its code.
    """

    name = "fenced_code"
    names_tools = False
    how_to_call = (
        "You can run Python: write one fenced block that begins with ```python and ends with ```."
    )

    def describe(self, tools: Sequence[Tool]) -> str:
        """See `CallSyntax.describe`; only a tool named `python` can be called."""
        unreachable = sorted(tool.name for tool in tools if tool.name != "python")
        if unreachable:
            raise ChatError(
                f"tools {', '.join(unreachable)} are offered, but chat.tool_parser 'fenced_code' "
                "can only call a tool named 'python'; use 'hermes', or leave the code to the "
                "environment"
            )
        return f"{self.how_to_call} {tools[0].description}"

    def write(self, call: ToolCall) -> str:
        """Write the text of a call; see `CallSyntax.write`."""
        arguments = call.arguments
        return f"```{arguments.get('language', 'python')}\n{arguments.get('code', '')}\n```"

    def find(self, text: str, start: int, tools: Sequence[Tool]) -> Iterator[Found]:
        """Find the calls of a turn; see `ToolCallParser.find`."""
        at = start
        while match := _FENCE.search(text, at):
            found = _read_block(text, match)
            at = found.end
            stray = found.status is CallStatus.UNCLOSED and not match[3]
            # A lone fence at the very end of a turn opens nothing.
            if not (stray and not str(found.arguments["code"]).strip()):
                yield found

    def quotes(self, text: str, tools: Sequence[Tool] = ()) -> Iterator[tuple[int, int]]:
        """Spans of blocks up to a `</think>` that begins or ends its line, or stands behind a
        fence: thoughts leave fences open."""
        for start, end in super().quotes(text, tools):
            mark = _END.search(text, start, end)
            yield start, mark.start() if mark else end


def _read_block(text: str, opening: re.Match[str]) -> Found:
    indent, fence, language = opening[1], opening[2], opening[3]
    closing = re.compile(
        rf"^[ \t]*+{re.escape(fence[0])}{{{len(fence)},}}+[ \t]*+$", re.MULTILINE
    ).search(text, opening.end())
    code = text[opening.end() : closing.start() if closing else len(text)]
    if closing and code.endswith("\n"):
        code = code[:-1]
    arguments = {"code": _dedent(code, len(indent)), "language": language.lower()}
    if closing is None:
        return Found(
            start=opening.start(2),
            end=len(text),
            name="python",
            arguments=arguments,
            status=CallStatus.UNCLOSED,
            error=f"the fenced block is not closed; end it with {fence} on a line of its own",
        )
    return Found(start=opening.start(2), end=closing.end(), name="python", arguments=arguments)


def _dedent(code: str, width: int) -> str:
    """Take at most the indent of the fence from every line, as CommonMark does."""
    if not width:
        return code
    pattern = re.compile(rf"^[ \t]{{1,{width}}}", re.MULTILINE)
    return pattern.sub("", code)
