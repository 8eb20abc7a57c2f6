"""The text that a model is shown of a command: its output, and how it ended.

What a program does wrong is its result. Text that a model wrote goes to a sandbox through `clean`
and `checked_path`, so that odd characters in it are the model's mistake and never a failure of
the sandbox.
"""

from __future__ import annotations

from agentrl.errors import ToolError
from agentrl.sandbox import ExecResult, Outcome
from agentrl.types import ToolResult, ToolStatus
from agentrl_tools.session import Ending, Reply

SHOWN_CHARS = 8000
"""Output beyond this many characters loses its middle; the loop then truncates to its own limit
(`rollout.max_tool_tokens`, in tokens), which is usually less."""

_ENDINGS = {
    Outcome.TIMEOUT: "[stopped: it ran too long]",
    Outcome.OOM: "[stopped: it used too much memory]",
    Outcome.OUTPUT_LIMIT: "[stopped: it printed too much]",
}


def shown(result: ExecResult) -> ToolResult:
    """A finished command as the result of a call."""
    status = {Outcome.OK: ToolStatus.OK, Outcome.TIMEOUT: ToolStatus.TIMEOUT}.get(
        result.outcome, ToolStatus.ERROR
    )
    text = describe(result)
    truncated = result.stdout_truncated or result.stderr_truncated or len(text) > SHOWN_CHARS
    return ToolResult(text=head_and_tail(text), status=status, truncated=truncated)


def describe(result: ExecResult) -> str:
    """Output, errors and ending of a command as one text."""
    parts = [result.stdout.rstrip(), result.stderr.rstrip()]
    if result.outcome is Outcome.NONZERO:
        parts.append(f"[exit status {result.exit_code}]")
    elif result.outcome in _ENDINGS:
        parts.append(_ENDINGS[result.outcome])
    return "\n".join(part for part in parts if part) or "[no output]"


def head_and_tail(text: str, limit: int = SHOWN_CHARS) -> str:
    """At most about `limit` characters, with a marker where the middle was.

    Example:
        >>> head_and_tail("a" * 10 + "b" * 10, limit=10)
        'aaaaa\\n[10 characters left out]\\nbbbbb'
    """
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[{len(text) - 2 * half} characters left out]\n{text[-half:]}"


def clean(text: str) -> str:
    """`text` with what UTF-8 cannot write (half a surrogate pair) replaced by question marks."""
    return text.encode("utf-8", "replace").decode("utf-8")


def checked_path(path: str) -> str:
    """A path as a model wrote it.

    Raises:
        ToolError: no file can have this name.
    """
    if not path.strip():
        raise ToolError("Error: the path is empty; name a file, such as src/main.py")
    if "\0" in path:
        raise ToolError(f"Error: the path {clean(path)!r} holds a NUL character")
    return clean(path)


def replied(reply: Reply, interpreter: str, loss: str) -> ToolResult:
    """The result of a call, from the reply to a piece of source in a session.

    Args:
        reply: what came.
        interpreter: what the model calls it.
        loss: what a new one does not know.
    """
    notes: list[str] = []
    if reply.ending is Ending.TIMEOUT:
        notes.append(_ENDINGS[Outcome.TIMEOUT])
    elif reply.ending is Ending.FLOOD:
        notes.append(_ENDINGS[Outcome.OUTPUT_LIMIT])
    # A Python that is still there has said what is wrong: its status is only that there is.
    elif reply.status and (reply.lost or interpreter == "shell"):
        notes.append(f"[exit status {reply.status}]")
    if reply.lost:
        notes.append(f"[the {interpreter} has ended; the next call starts a new one, and {loss}]")
    good = reply.ending is Ending.DONE and not reply.lost and reply.status == 0
    status = ToolStatus.OK if good else ToolStatus.ERROR
    if reply.ending is Ending.TIMEOUT:
        status = ToolStatus.TIMEOUT
    text = head_and_tail(reply.text.strip("\n").rstrip())
    return ToolResult(
        text="\n".join(part for part in (text, *notes) if part) or "[no output]",
        status=status,
        truncated=reply.truncated or len(reply.text) > SHOWN_CHARS,
    )
