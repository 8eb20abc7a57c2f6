"""Views and changes text files of the work directory.

A change says exactly what it replaces, and an error says where the file differs from what the
model believes, because guessing on either side breaks files unnoticed.
"""

from __future__ import annotations

from typing import Literal, TypeVar

from agentrl.errors import ToolError
from agentrl.sandbox import Sandbox
from agentrl.types import ToolResult
from agentrl_tools.output import checked_path, clean

MAX_FILE_BYTES = 2**20
"""Larger files are for the shell."""
SHOWN_LINES = 400
"""Lines one view shows."""
SHOWN_COLUMNS = 1000
"""Longer lines are shown truncated, with a note."""
MOST_PLACES = 20
"""Places of a text that occurs several times; more are not looked for."""
AROUND = 4
"""Lines shown above and below a change."""

Command = Literal["view", "create", "replace", "insert"]
T = TypeVar("T")


class _Directory(ToolError):
    """The path is a directory, which only `view` can show."""


async def edit(
    command: Command,
    path: str,
    sandbox: Sandbox,
    view_range: list[int] | None = None,
    file_text: str | None = None,
    old_str: str | None = None,
    new_str: str | None = None,
    insert_line: int | None = None,
) -> ToolResult:
    """View a text file, or change it.

    `view` shows a file with line numbers, or lists a directory. `create` writes a new file.
    `replace` puts new_str in the place of old_str, which must occur exactly once in the file.
    `insert` puts new_str after a line.

    Args:
        command: what to do
        path: the file, relative to the work directory
        view_range: for view: first and last line, from 1; -1 as the last line means the end
        file_text: for create: the whole content
        old_str: for replace: the present text, with its exact white space and without line numbers
        new_str: for replace and insert: the new text; left out in replace, it deletes
        insert_line: for insert: the line after which the text goes; 0 for the top of the file
    """
    path = checked_path(path)
    if command == "view":
        return ToolResult(text=await _view(sandbox, path, view_range))
    if command == "create":
        return ToolResult(text=await _create(sandbox, path, _given("file_text", file_text)))
    text = await _read(sandbox, path)
    # Text comes with plain line ends from a model, whatever the file has.
    if "\r\n" in text and "\n" not in text.replace("\r\n", ""):
        old_str, new_str = _crlf(old_str), _crlf(new_str)
    if command == "replace":
        changed, first, last = _replaced(path, text, _given("old_str", old_str), new_str or "")
    else:
        line = _given("insert_line", insert_line)
        changed, first, last = _inserted(path, text, line, _given("new_str", new_str))
    await _write(sandbox, path, changed)
    lines = _lines(changed)
    around = numbered(lines, max(1, first - AROUND), min(len(lines), last + AROUND))
    return ToolResult(text=f"{path} is changed. Now it reads:\n{around}")


async def _view(sandbox: Sandbox, path: str, view_range: list[int] | None) -> str:
    try:
        text = await _read(sandbox, path)
    except _Directory:
        return await _list(sandbox, path)
    lines = _lines(text)
    if text == "":
        return f"{path} is empty."
    first, last = _range(path, view_range, len(lines))
    shown = min(last, first + SHOWN_LINES - 1)
    body = numbered(lines, first, shown)
    if shown < last:
        body += f"\n[lines {shown + 1} to {last} are not shown; ask for them with view_range]"
    return body


def _range(path: str, view_range: list[int] | None, count: int) -> tuple[int, int]:
    if view_range is None:
        return 1, count
    if len(view_range) != 2:
        raise ToolError(f"Error: view_range is {view_range}; give [first line, last line]")
    first, last = view_range
    last = count if last == -1 else last
    if not 1 <= first <= count or last < first:
        raise ToolError(
            f"Error: view_range is {view_range}, but {path} has {count} lines; give a first "
            f"line from 1 to {count} and a last line that is not before it"
        )
    return first, min(last, count)


async def _list(sandbox: Sandbox, path: str) -> str:
    script = 'cd -- "$1" && find . -maxdepth 2 -name ".?*" -prune -o -print | LC_ALL=C sort'
    result = await sandbox.exec(("sh", "-c", script, "sh", path))
    entries = [line.removeprefix("./") for line in result.stdout.splitlines() if line != "."]
    shown = "\n".join(entries[:SHOWN_LINES]) or "[nothing]"
    left = len(entries) - SHOWN_LINES
    more = f"\n[{left} more are not shown]" if left > 0 else ""
    return f"{path} is a directory. It holds, two levels deep:\n{shown}{more}"


async def _create(sandbox: Sandbox, path: str, text: str) -> str:
    try:
        await sandbox.read_file(path, max_bytes=0)
    except FileNotFoundError:
        await _write(sandbox, path, text)
        count = len(text.splitlines())
        return f"{path} is written: {count} {'line' if count == 1 else 'lines'}."
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and not isinstance(error, IsADirectoryError):
            raise _refusal(path, error) from None
    raise ToolError(
        f"Error: {path} exists already; change it with replace or insert, or delete it first"
    )


def _replaced(path: str, text: str, old: str, new: str) -> tuple[str, int, int]:
    """The changed text, and the first and last line of what is new in it."""
    if not old:
        raise ToolError("Error: old_str is empty; to add text use insert, or create for a new file")
    if old == new:
        raise ToolError("Error: old_str and new_str are the same; nothing would change")
    positions = _positions(text, old)
    if not positions:
        raise ToolError(f"Error: old_str does not occur in {path}.{_nearly(text, old)}")
    if len(positions) > 1:
        lines = ", ".join(str(_line(text, position)) for position in positions[:MOST_PLACES])
        many = len(positions) > MOST_PLACES
        count = f"more than {MOST_PLACES}" if many else str(len(positions))
        raise ToolError(
            f"Error: old_str occurs {count} times in {path}, beginning in lines {lines}; "
            "add lines around it until it occurs only once"
        )
    at = positions[0]
    first = _line(text, at)
    return text[:at] + new + text[at + len(old) :], first, first + new.count("\n")


def _inserted(path: str, text: str, line: int, new: str) -> tuple[str, int, int]:
    """The text with lines inserted, or the reason why not; as `_replaced`."""
    end = "\r\n" if "\r\n" in text else "\n"
    lines = text.split("\n")
    count = len(lines) - (lines[-1] == "")
    if not 0 <= line <= count:
        raise ToolError(
            f"Error: insert_line is {line}, but {path} has {count} lines; give 0 to {count}"
        )
    head = "".join(f"{text_line}\n" for text_line in lines[:line])
    if line == len(lines):  # after a last line that has no end
        head = text + end
    new = new if new.endswith("\n") or (line == len(lines)) else new + end
    return head + new + "\n".join(lines[line:]), line + 1, line + max(1, len(new.splitlines()))


def _positions(text: str, old: str) -> list[int]:
    """Offsets at which `old` begins, overlapping ones too: which is meant is as unclear.

    One more than `MOST_PLACES` at most: half a megabyte of spaces is found in a megabyte of them
    half a million times, and each time takes as long as it is.
    """
    positions: list[int] = []
    at = text.find(old)
    while at >= 0 and len(positions) <= MOST_PLACES:
        positions.append(at)
        at = text.find(old, at + 1)
    return positions


def _nearly(text: str, old: str) -> str:
    """A hint at the lines where `old` would be but for white space; empty if nowhere."""
    wanted = [" ".join(line.split()) for line in old.strip("\n").split("\n")]
    lines = [" ".join(line.split()) for line in text.split("\n")]
    size = len(wanted)
    # One search in one text: comparing as many lines at each line takes time with their square.
    whole = "\n".join(("", *lines, ""))
    at = whole.find("\n".join(("", *wanted, ""))) if any(wanted) else -1
    if at >= 0:
        first_line = whole.count("\n", 0, at) + 1
        return (
            f" But for white space it is in lines {first_line} to {first_line + size - 1}; view "
            "them and copy them exactly"
        )
    first = next((line for line in wanted if line), "")
    starts = [at + 1 for at, line in enumerate(lines) if line == first][:5] if first else []
    if starts:
        return (
            f" Its first line is in {', '.join(f'line {at}' for at in starts)}; view what follows"
        )
    return " View the file and copy the text exactly"


def numbered(lines: list[str], first: int, last: int) -> str:
    """Lines `first` to `last`, counted from 1, each with its number."""
    shown: list[str] = []
    for number in range(first, last + 1):
        line = lines[number - 1].removesuffix("\r")
        if len(line) > SHOWN_COLUMNS:
            line = f"{line[:SHOWN_COLUMNS]} [{len(line) - SHOWN_COLUMNS} characters more]"
        shown.append(f"{number:>6}\t{line}")
    return "\n".join(shown)


async def _read(sandbox: Sandbox, path: str) -> str:
    """The text of a file."""
    try:
        data = await sandbox.read_file(path, max_bytes=MAX_FILE_BYTES)
    except IsADirectoryError:
        raise _Directory(f"Error: {path} is a directory; name a file in it") from None
    except OSError as error:
        raise _refusal(path, error) from None
    except ValueError:
        raise ToolError(
            f"Error: {path} has more than {MAX_FILE_BYTES} bytes; use the shell for it"
        ) from None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ToolError(
            f"Error: {path} is not text in UTF-8 (byte {error.start} is 0x{data[error.start]:02x})"
        ) from None


async def _write(sandbox: Sandbox, path: str, text: str) -> None:
    try:
        await sandbox.write_file(path, clean(text).encode())
    except OSError as error:
        raise _refusal(path, error) from None


def _refusal(path: str, error: OSError) -> ToolError:
    reason = error.strerror or str(error)
    if isinstance(error, FileNotFoundError):
        reason = "there is no such file"
    return ToolError(f"Error: {path}: {reason[:1].lower()}{reason[1:]}")


def _given(name: str, value: T | None) -> T:
    if value is None:
        raise ToolError(f"Error: {name} is missing; this command needs it")
    return value


def _crlf(text: str | None) -> str | None:
    return None if text is None else text.replace("\r\n", "\n").replace("\n", "\r\n")


def _lines(text: str) -> list[str]:
    """Lines as editors count them: only line feeds end one, and the last need not have any."""
    return text.removesuffix("\n").split("\n")


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1
