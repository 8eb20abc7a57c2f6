"""Words that a problem text must not hold: the place of the defect, the fix, or the tests."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_LEAST = 12
"""Characters of a line of the fix that are more than a coincidence."""
_IMPORT = re.compile(r"^\W*(from\s+\S+\s+import|import)\s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Secrets:
    """Facts of a task that its text must not tell."""

    paths: tuple[str, ...]
    """Changed files."""
    patch: str
    """The gold change."""
    tests: tuple[str, ...]
    """Tests that fail, by node id."""
    functions: tuple[str, ...]
    """Dotted names of the functions with the defect."""


def leaks(text: str, secrets: Secrets, facts: Sequence[str]) -> tuple[str, ...]:
    """The things that a text gives away, in words; none if it may be shown.

    Args:
        text: of the problem.
        secrets: of the task.
        facts: what a user has seen: the lines that were run and what they gave. What stands in
            them may be said.
    """
    known = "\n".join(facts)
    # A user imports what there is to import, be it from the file that is at fault.
    said = "\n".join(line for line in text.splitlines() if not _IMPORT.match(line))
    found: list[str] = []
    for path in secrets.paths:
        module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        name = path.rsplit("/", 1)[-1]
        if name != "__init__.py" and _word(name, said):
            found.append(f"the file {name}")
        elif "." in module and _word(module.removeprefix("src."), said) and module not in known:
            found.append(f"the module {module}")
    for name in secrets.functions:
        last = name.rsplit(".", 1)[-1]
        if len(last) > 3 and _word(last, said) and not _word(last, known):
            found.append(f"the function {last}")
    for test in secrets.tests:
        name = test.partition("[")[0].rsplit("::", 1)[-1]
        if _word(name, said) and not _word(name, known):
            found.append(f"the test {name}")
    squeezed = {_squeeze(line) for line in known.splitlines()}
    whole = _squeeze(said)
    for line in secrets.patch.splitlines():
        gold = _squeeze(line[1:])
        added = line.startswith("+") and not line.startswith("+++") and len(gold) >= _LEAST
        if added and gold in whole and not any(gold in one for one in squeezed):
            found.append(f"the line {line[1:].strip()!r} of the fix")
    if re.search(r"\bline \d+", said) and not re.search(r"\bline \d+", known):
        found.append("a line number")
    return tuple(dict.fromkeys(found))


def _word(name: str, text: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text) is not None


def _squeeze(text: str) -> str:
    return re.sub(r"\s+", "", text)
