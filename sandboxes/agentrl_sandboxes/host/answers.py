"""Answers of a guest, decoded by hand: nothing in them is believed."""

from __future__ import annotations

import json
import marshal
import os
from collections.abc import Mapping
from typing import Any

from agentrl.errors import SandboxError
from agentrl.sandbox import ExecResult, FileTree, Outcome, TreeEntry
from agentrl.sandbox.tree import EntryKind
from agentrl_sandboxes.guest import wire

_OUTCOMES = {
    wire.TIMEOUT: Outcome.TIMEOUT,
    wire.OOM: Outcome.OOM,
    wire.FLOODED: Outcome.OUTPUT_LIMIT,
}
_KINDS: Mapping[bytes, EntryKind] = {b"d": "folder", b"f": "file", b"l": "link", b"s": "file"}
_NOTES = {
    wire.DISK: "\n[killed: wrote more than the disk limit]\n",
    wire.PROCESSES: "\n[killed: more processes than the limit]\n",
}


def exit_code(reason: int, status: int) -> int | None:
    """The exit status of a command; None if it was killed by a limit or by us."""
    if reason != wire.ENDED:
        return None
    try:
        return os.waitstatus_to_exitcode(status)
    except ValueError as error:
        raise SandboxError(f"sandbox: {status:#x} is no wait status") from error


def outcome_of(reason: int, code: int | None) -> Outcome:
    """The way in which a command ended, of its reason and its exit status."""
    return _OUTCOMES.get(reason, Outcome.OK if code == 0 else Outcome.NONZERO)


def decode_result(body: bytes) -> ExecResult:
    """An `ExecResult` from the body of a `RESULT` frame."""
    reason, status, seconds, out_gap, err_gap, *sizes = wire.DONE.unpack_from(body)
    parts: list[bytes] = []
    at = wire.DONE.size
    for size in sizes:
        parts.append(body[at : at + size])
        at += size
    code = exit_code(reason, status)
    return ExecResult(
        outcome=outcome_of(reason, code),
        exit_code=code,
        stdout=join_output(parts[0], parts[1], out_gap),
        stderr=join_output(parts[2], parts[3], err_gap) + _NOTES.get(reason, ""),
        duration_s=seconds,
        stdout_truncated=out_gap > 0,
        stderr_truncated=err_gap > 0,
    )


def decode_surroundings(body: bytes) -> tuple[dict[str, str], list[str]]:
    """Variables and writable mount points from the JSON of a `READY` frame.

    Where an image's own Python runs the supervisor, its author writes these bytes.

    Raises:
        SandboxError: no JSON, or not of the expected types.
    """
    try:
        # Deep nesting is a RecursionError.
        found: Any = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise SandboxError(f"sandbox: it reports no JSON of itself: {body[:100]!r}") from error
    report: dict[str, Any] = found if isinstance(found, dict) else {}
    variables, writable = report.get("variables"), report.get("writable")
    if not isinstance(variables, dict) or not isinstance(writable, list):
        raise SandboxError(
            f"sandbox: it reports {body[:100]!r} of itself, expected an object of `variables` and "
            "`writable`"
        )
    texts: list[object] = [*variables, *variables.values(), *writable]
    if not all(isinstance(text, str) for text in texts):
        raise SandboxError("sandbox: it reports variables or mount points that are no text")
    return variables, writable


def decode_tree(body: bytes, max_bytes: int, *, whole: bool = True) -> FileTree:
    """The answer to a `FETCH`; nothing in it is believed.

    Args:
        body: the answer.
        max_bytes: that its files may have together.
        whole: it begins with the folder itself.

    Raises:
        SandboxError: a length, a kind or a name that our guest would not send.
    """
    entries: dict[str, TreeEntry] = {}
    left_out: list[str] = []
    head = wire.MEMBER
    at, left = 0, max_bytes
    while at < len(body):
        end = at + head.size
        kind, mode, name_size, size = (
            head.unpack_from(body, at) if end <= len(body) else (b"", 0, 0, 0)
        )
        name = body[end : end + name_size]
        at = end + name_size + size
        left -= size if kind == b"f" else 0
        root = whole and not entries
        plain = not name if root else not {b"", b".", b".."} & set(name.split(b"/"))
        if kind not in _KINDS or not plain or at > len(body) or left < 0 or mode > 0o7777:
            raise SandboxError(f"sandbox: a broken list of files at {name[:100]!a}")
        if kind == b"s":
            left_out.append(os.fsdecode(name))
        else:
            entry = TreeEntry(kind=_KINDS[kind], mode=mode, data=body[at - size : at])
            entries[os.fsdecode(name)] = entry
    return FileTree(entries=entries, left_out=tuple(left_out))


def encode_tree(tree: FileTree) -> bytes:
    """The entries of a tree as `UNPACK` takes them."""
    letters = {"folder": "d", "file": "f", "link": "l"}
    entries = [
        (os.fsencode(path), letters[entry.kind], entry.mode, entry.data)
        for path, entry in tree.entries.items()
    ]
    return marshal.dumps(entries, 2)


def join_output(head: bytes, tail: bytes, gap: int) -> str:
    """Text of a capture; a character split by the gap is left out with it.

    Example:
        >>> join_output(b"ab", b"yz", 22)
        'ab\\n[... 22 bytes left out ...]\\nyz'
    """
    if not gap:
        return (head + tail).decode("utf-8", "replace")
    for back in range(1, min(4, len(head) + 1)):
        if head[-back] >= 0xC0:
            width = 2 if head[-back] < 0xE0 else 3 if head[-back] < 0xF0 else 4
            if back < width:
                gap += back
                head = head[:-back]
            break
    while tail and 0x80 <= tail[0] < 0xC0:
        tail = tail[1:]
        gap += 1
    marker = f"\n[... {gap} bytes left out ...]\n"
    return head.decode("utf-8", "replace") + marker + tail.decode("utf-8", "replace")
