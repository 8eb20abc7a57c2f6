"""Runs Python in the sandbox of the rollout."""

from __future__ import annotations

from agentrl.errors import SandboxError
from agentrl.sandbox import ExecResult, Outcome, Sandbox
from agentrl.types import ToolResult, ToolStatus

SHOWN_CHARS = 2000
"""Output beyond this many characters loses its middle."""

_ENDINGS = {
    Outcome.TIMEOUT: "[stopped: it ran too long]",
    Outcome.OOM: "[stopped: it used too much memory]",
    Outcome.OUTPUT_LIMIT: "[stopped: it printed too much]",
}


async def python(code: str, sandbox: Sandbox) -> ToolResult:
    """Run a Python program and return what it prints.

    Args:
        code: the whole program; print what you want to see
    """
    result = await sandbox.exec(("python3", "-I", "-"), stdin=code.encode("utf-8", "replace"))
    if result.outcome is Outcome.NONZERO and result.exit_code in (126, 127):
        # What a missing interpreter gives; a program can only ask for it by name.
        raise SandboxError(
            f"python3 cannot be run in the sandbox (exit status {result.exit_code}): "
            f"{result.stderr[-200:]!r}"
        )
    status = {Outcome.OK: ToolStatus.OK, Outcome.TIMEOUT: ToolStatus.TIMEOUT}.get(
        result.outcome, ToolStatus.ERROR
    )
    text = describe(result)
    return ToolResult(text=head_and_tail(text), status=status, truncated=len(text) > SHOWN_CHARS)


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
