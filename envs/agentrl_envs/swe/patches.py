"""Unified diffs between trees, and trees with a diff applied. Exact: no fuzz, no guessing."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping

from agentrl.errors import DataError
from agentrl_envs.swe.trees import Tree, TreeFile

_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_MODE = re.compile(r"^(?:old|new|new file|deleted file) mode 100\d{3}$", re.MULTILINE)
_NEW_MODE = re.compile(r"^new (?:file )?mode 100(\d{3})$", re.MULTILINE)
_COPY = re.compile(r"^copy from ", re.MULTILINE)
_OTHER_KIND = re.compile(r"^new (?:file )?mode ((?!100)\d+)$", re.MULTILINE)
_BINARY = re.compile(r"^(?:Binary files .+ differ|GIT binary patch)$", re.MULTILINE)
_NO_NEWLINE = "\\ No newline at end of file\n"


def make_patch(old: Tree, new: Tree) -> str:
    """The patch from `old` to `new`, as `git apply` reads it.

    Raises:
        DataError: a file that differs and is not text in UTF-8.
    """
    parts = []
    for path in sorted({*old, *new}):
        before, after = old.get(path), new.get(path)
        if before != after:
            parts.append(_file_patch(path, before, after))
    return "".join(parts)


def changed_lines(patch: str) -> int:
    """The number of lines that a diff removes and adds."""
    return sum(
        line[:1] in "+-" and not line.startswith(("+++ ", "--- ")) for line in patch.splitlines()
    )


def apply_patch(tree: Tree, patch: str) -> dict[str, TreeFile]:
    """The tree with a diff of `make_patch` or `git diff` applied.

    Renames and copies take a file as it is in `tree`, whatever other sections do, as for git.

    Raises:
        DataError: the diff does not fit, or has a link or a file that is not text; names file and
            line.
    """
    made, arrived = dict(tree), set[str]()
    for section in re.split(r"^(?=diff --git )", patch, flags=re.MULTILINE)[1:]:
        head, *hunks = re.split(r"^(?=@@ )", section, flags=re.MULTILINE)
        old, new = _names(head)
        moved = "/dev/null" not in (old, new) and old != new
        before = None if old == "/dev/null" else _present(tree if moved else made, old)
        if new == "/dev/null":
            _changed(before, hunks, old)
            del made[old]
            continue
        executable = before is not None and before.executable
        if mode := _NEW_MODE.search(head):
            executable = mode[1] == "755"
        if moved and not _COPY.search(head) and old not in arrived:
            del made[old]
        made[new] = TreeFile(data=_changed(before, hunks, new), executable=executable)
        arrived.add(new)
    return made


def _changed(before: TreeFile | None, hunks: list[str], path: str) -> bytes:
    """The content behind the hunks; where there are none it may be anything."""
    data = b"" if before is None else before.data
    if not hunks:
        return data
    lines = _split(_text(path, before) or "")
    return "".join(_patched(lines, hunks, path)).encode()


def _names(head: str) -> tuple[str, str]:
    """The names of a section on both sides; git names them once where no line differs."""
    first = head.partition("\n")[0]
    if _BINARY.search(head):
        raise DataError(f"patch: {first}: expected text, got a binary file; leave it out")
    if kind := _OTHER_KIND.search(head):
        raise DataError(
            f"patch: {first}: expected a regular file (mode 100644 or 100755), got mode {kind[1]}, "
            "a link or a submodule; leave it out"
        )
    names = re.findall(r"^(?:---|\+\+\+) (?:[ab]/)?(.*?)\t?$", head, flags=re.MULTILINE)
    if not names and (same := same_name(head.split("\n", 1)[0])) and _MODE.search(head):
        made, gone = "\nnew file mode" in head, "\ndeleted file mode" in head
        return "/dev/null" if made else same, "/dev/null" if gone else same
    names = names or re.findall(r"^(?:rename|copy) (?:from|to) (.*)$", head, flags=re.MULTILINE)
    if len(names) != 2:
        raise DataError(f"patch: expected two file names, got {head[:200]!r}")
    return names[0], names[1]


def _present(tree: Mapping[str, TreeFile], path: str) -> TreeFile:
    if path not in tree:
        raise DataError(f"patch: {path} is not in the tree")
    return tree[path]


def _patched(lines: list[str], hunks: list[str], path: str) -> list[str]:
    made: list[str] = []
    at = 0
    for hunk in hunks:
        head, *body = _split(hunk)
        match = _HUNK.match(head)
        assert match is not None  # the split above looked for its beginning
        start = int(match[1]) - (match[2] != "0")
        made += lines[at:start]
        at = start
        for index, line in enumerate(body):
            if line == _NO_NEWLINE:
                continue
            bare = index + 1 < len(body) and body[index + 1] == _NO_NEWLINE
            text = line[1:].removesuffix("\n") if bare else line[1:]
            if line[0] in " -":
                if at >= len(lines) or lines[at] != text:
                    raise DataError(f"patch: {path}, line {at + 1} is not {text!r}")
                at += 1
            if line[0] in " +":
                made.append(text)
    return made + lines[at:]


def _text(path: str, entry: TreeFile | None) -> str | None:
    if entry is None:
        return None
    try:
        return entry.data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"patch: {path} is not text in UTF-8: {error}") from None


def _split(text: str) -> list[str]:
    """Lines with their ends; only a line feed ends a line, as for git."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def _file_patch(path: str, before: TreeFile | None, after: TreeFile | None) -> str:
    old = "/dev/null" if before is None else f"a/{path}"
    new = "/dev/null" if after is None else f"b/{path}"
    lines = difflib.unified_diff(
        _split(_text(path, before) or ""), _split(_text(path, after) or ""), old, new
    )
    body = [line if line.endswith("\n") else f"{line}\n{_NO_NEWLINE}" for line in lines]
    # git ends a name that holds a space with a tab.
    body[:2] = [f"{line.rstrip()}\t\n" if " " in line[4:].rstrip() else line for line in body[:2]]
    return "".join([f"diff --git a/{path} b/{path}\n", _mode_lines(before, after), *body])


def _mode_lines(before: TreeFile | None, after: TreeFile | None) -> str:
    old, new = (f"100{755 if it and it.executable else 644}" for it in (before, after))
    if before is None:
        return f"new file mode {new}\n"
    if after is None:
        return f"deleted file mode {old}\n"
    return "" if old == new else f"old mode {old}\nnew mode {new}\n"


def same_name(line: str) -> str:
    """The file of a line `diff --git a/NAME b/NAME`; empty if it is another or names two."""
    begin, between = "diff --git a/", " b/"
    name = line[len(begin) : (len(line) + len(begin) - len(between)) // 2]
    return name if line == f"{begin}{name}{between}{name}" else ""
