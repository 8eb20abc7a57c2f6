"""Docstrings of users' functions in the styles of Google, NumPy and Sphinx."""

from __future__ import annotations

import re

_BEGIN = re.compile(
    r"^(?:(?P<google>(?:Args|Arguments|Parameters|Params):[ \t]*$)"
    r"|(?P<numpy>Parameters[ \t]*\n-{3,}[ \t]*$)"
    r"|(?P<sphinx>:(?:param|parameter|arg|argument|type|returns?|rtype|raises?)\b))",
    re.MULTILINE,
)
"""Where the parameters begin; what stands before is the description."""
_GOOGLE = re.compile(r"^(\s+)(\*{0,2}\w+)(?:\s*\([^)]*\))?:\s*(.*)$")
_NUMPY = re.compile(r"^(\*{0,2}\w+)(?:\s*,\s*\*{0,2}\w+)*\s*(?::.*)?$")
_SPHINX = re.compile(r"^:(\w+)\b([^:]*):\s*(.*)$")
_NAMES_ONE = ("param", "parameter", "arg", "argument")


def parts_of_docstring(doc: str) -> tuple[str, dict[str, str]]:
    """The text before the parameters, and the description of each parameter.

    Args:
        doc: without the indent of its function, as `inspect.getdoc` gives it.

    Example:
        >>> parts_of_docstring("Add.\\n\\n:param int a: the first\\n:returns: the sum")
        ('Add.', {'a': 'the first'})
    """
    begin = _BEGIN.search(doc)
    if begin is None:
        return doc.strip(), {}
    read = {"google": _google, "numpy": _numpy, "sphinx": _sphinx}[str(begin.lastgroup)]
    behind = begin.start() if begin.lastgroup == "sphinx" else begin.end()
    return doc[: begin.start()].strip(), read(doc[behind:].strip("\n").splitlines())


def _google(lines: list[str]) -> dict[str, str]:
    notes: dict[str, str] = {}
    current, indent = "", 0
    for line in lines:
        match = _GOOGLE.match(line)
        # What is deeper than the first argument goes on with the one above it.
        if match and (not current or len(match[1]) <= indent):
            current, indent = match[2].lstrip("*"), len(match[1])
            notes[current] = match[3].strip()
        elif line and not line.startswith(" "):
            break
        elif current and line.strip():
            notes[current] = f"{notes[current]} {line.strip()}".strip()
    return notes


def _numpy(lines: list[str]) -> dict[str, str]:
    notes: dict[str, str] = {}
    current: list[str] = []
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if following.startswith("---"):
            break
        if line[:1].strip():
            named = line.partition(":")[0] if _NUMPY.match(line) else ""
            current = [name.strip().lstrip("*") for name in named.split(",") if name.strip()]
            notes.update(dict.fromkeys(current, ""))
        elif line.strip():
            notes.update({name: f"{notes[name]} {line.strip()}".strip() for name in current})
    return notes


def _sphinx(lines: list[str]) -> dict[str, str]:
    notes: dict[str, str] = {}
    current = ""
    for line in lines:
        match = _SPHINX.match(line)
        if match:
            named = match[2].split() if match[1] in _NAMES_ONE else []
            current = named[-1].lstrip("*") if named else ""
            text = match[3]
        elif line[:1].strip():
            break
        else:
            text = line
        if current:
            notes[current] = f"{notes.get(current, '')} {text.strip()}".strip()
    return notes
