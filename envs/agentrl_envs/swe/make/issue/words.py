"""Problem texts by template: what was typed, what came back, what was expected.

The words follow from how the two results differ, and which of several ways to put it is drawn from
a seed. Nothing is claimed of the library that was not run.
"""

from __future__ import annotations

import ast
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from agentrl_envs.swe.make.issue.differences import Contrast, difference
from agentrl_envs.swe.make.issue.observe import Effect
from agentrl_envs.swe.make.issue.snippet import Snippet

_LONG = 72


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    """Lines that show a defect, and what they give."""

    snippet: Snippet
    """The lines."""
    actual: Effect
    """What the last of them gives with the defect."""
    expected: Effect
    """What it gives without."""
    depth: int | None = None
    """Calls below the last line at which the defect lies, 1 for the function that it calls; None
    where it is not called from there."""

    def facts(self) -> tuple[str, ...]:
        """All that a text may take from it."""
        effects = (self.actual, self.expected)
        return (
            *self.snippet.imports,
            *self.snippet.setup,
            self.snippet.call,
            *(part for it in effects for part in (it.value, it.error, it.message) if part),
        )

    @property
    def size(self) -> int:
        """Characters that someone has to read."""
        return sum(map(len, self.facts()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """All that a problem text is made of."""

    library: str
    """Name of the library."""
    version: str
    """Version of it."""
    python: str
    """Version of Python."""
    symptoms: tuple[Reported, ...]
    """What goes wrong; one for each thing that is to be mended, at least."""
    missing: bool = False
    """Whether a feature is not there, rather than wrong."""
    manual: str = ""
    """The library's documentation of it, where the copy no longer has it."""


def written(story: Story, seed: str) -> str:
    """The text of a problem; the same for the same seed."""
    draw = random.Random(seed)
    first, *more = story.symptoms
    subject = subject_of(first.snippet, story.library)
    found = difference(first.actual, first.expected)
    missing = story.missing and _is_absence(first)
    title = _title(subject, found, draw, missing)
    if missing:
        found = Contrast(titles=found.titles)
    voice = draw.choice((_in_sections, _as_session, _as_message, _as_session, _as_message))
    body = voice(first, found, subject, draw)
    parts = [title, "", *_opening(story, draw, missing), *body]
    if missing and story.manual:
        parts += [
            "",
            draw.choice(
                (
                    "For reference, this is what the documentation says about it:",
                    "The documentation describes it like this:",
                    "From the docs:",
                )
            ),
            "",
            *(f"> {line}".rstrip() for line in story.manual.strip().splitlines()),
        ]
    for number, other in enumerate(more):
        parts += ["", *_second(other, story, draw, number)]
    parts += _closing(story, draw)
    return "\n".join(parts).strip() + "\n"


def _is_absence(one: Reported) -> bool:
    return one.actual.error in ("NotImplementedError", "AttributeError")


def _title(subject: str, found: Contrast, draw: random.Random, missing: bool) -> str:
    if missing:
        return draw.choice(
            (
                f"{subject} is not implemented",
                f"{subject} cannot be used",
                f"{subject}: missing functionality",
                f"Please support {subject}",
            )
        )
    short = draw.choice(found.titles)
    return draw.choice(
        (
            f"{subject} {short}",
            f"{subject} {short}",
            f"{subject}: {short}",
        )
    ).replace(": does", ": it does")


def _opening(story: Story, draw: random.Random, missing: bool) -> list[str]:
    name, version = story.library, story.version
    if missing:
        return [draw.choice((
            f"I need this with {name} {version}, but it is not there:",
            f"Tried this with {name} {version}:",
            "This does not work at all at the moment:",
        )), ""]  # fmt: skip
    return [draw.choice((
        f"I'm using {name} {version} and ran into this:",
        f"This is with {name} {version} on Python {story.python}.",
        f"Hi, something is odd with {name} {version}. A small example:",
        "Smallest example I could come up with:",
        f"One of my scripts that uses {name} misbehaves. Stripped down:",
        "Here is what I see:",
    )), ""]  # fmt: skip


def _closing(story: Story, draw: random.Random) -> list[str]:
    version = f"{story.library} {story.version}, Python {story.python}"
    return draw.choice((
        [], [], ["", version], ["", "Thanks for looking into it!"],
        ["", f"Version: {version}."],
        ["", "I have not looked into the source, so no idea where this comes from."],
    ))  # fmt: skip


def _second(other: Reported, story: Story, draw: random.Random, number: int) -> list[str]:
    found = difference(other.actual, other.expected)
    subject = subject_of(other.snippet, story.library)
    short = draw.choice(found.titles)
    lead = draw.choice((
        f"Possibly related: {subject} {short}.",
        f"While trying to narrow it down I also noticed that {subject} {short}:",
        f"Another one that may or may not be the same problem: {subject} {short}.",
        f"Also, {subject} {short}:",
    ))  # fmt: skip
    if story.missing and _is_absence(other):
        lead = draw.choice(("The same goes for:", "Another example:", "And likewise:"))
        found = Contrast(titles=found.titles)
    return [lead, "", *_as_session(other, found, subject, draw)]


def _in_sections(one: Reported, found: Contrast, subject: str, draw: random.Random) -> list[str]:
    heads = draw.choice((
        ("### Steps to reproduce", "### What happens", "### What I expected"),
        ("**To reproduce**", "**Actual behaviour**", "**Expected behaviour**"),
        ("Code:", "Result:", "Expected:"),
    ))  # fmt: skip
    return [
        heads[0], "", *_block(_lines(one, shown=True)), "",
        heads[1], "", *_effect(one.actual), "",
        heads[2], "", *_effect(one.expected, wanted=True), *_note(found, draw),
    ]  # fmt: skip


def _as_session(one: Reported, found: Contrast, subject: str, draw: random.Random) -> list[str]:
    if any(isinstance(ast.parse(code).body[0], ast.Expr) for code in one.snippet.setup):
        # An interpreter would show what these give as well.
        return _as_message(one, found, subject, draw)
    lines = [
        line
        for code in (*one.snippet.imports, *one.snippet.setup, one.snippet.call)
        for line in _prompted(code)
    ]
    lines += _printed(one.actual)
    return [*_block(lines, ""), "", *_wish(one, draw), *_note(found, draw)]


def _as_message(one: Reported, found: Contrast, subject: str, draw: random.Random) -> list[str]:
    wish = _wish(one, draw)
    if not one.snippet.setup and len(one.snippet.call) <= _LONG and _brief(one.actual):
        call = one.snippet.call
        lead = draw.choice(
            (
                f"`{call}` {_said(one.actual)}.",
                f"When I call `{call}`, it {_said(one.actual)}.",
                f"For example, `{call}` {_said(one.actual)}.",
            )
        )
        imports = _block(list(one.snippet.imports))
        return [lead, "", *wish, *_note(found, draw), *([""] if imports else []), *imports]
    return [*_block(_lines(one, shown=False)), "", *_got(one, draw), "", *wish, *_note(found, draw)]


def _said(effect: Effect) -> str:
    if effect.error:
        return f"raises `{_error(effect)}`"
    return f"returns `{effect.value}`" if effect.value else "runs without an error"


def _got(one: Reported, draw: random.Random) -> list[str]:
    last = draw.choice(("The last line", "This"))
    if _brief(one.actual):
        said = _said(one.actual).replace("returns", draw.choice(("gives", "returns")), 1)
        return [f"{last} {said}."]
    return [f"{last} gives", "", *_block(_printed(one.actual), "")]


def _wish(one: Reported, draw: random.Random) -> list[str]:
    effect = one.expected
    if effect.error:
        return [draw.choice((
            f"I would expect a `{_error(effect)}` here.",
            f"Shouldn't this raise `{_error(effect)}`?",
            f"It should be rejected with `{_error(effect)}`.",
        ))]  # fmt: skip
    if not effect.value:
        return [draw.choice(("This should just work.", "I expected no error here."))]
    if not _brief(effect):
        return [
            draw.choice(("I expected:", "The result should be:", "What I want to see:")),
            "",
            *_block(_printed(effect), ""),
        ]
    return [draw.choice((
        f"I expected `{effect.value}`.", f"It should be `{effect.value}`.",
        f"Expected: `{effect.value}`", f"Shouldn't that be `{effect.value}`?",
        f"From how I understand it, the result should be `{effect.value}`.",
    ))]  # fmt: skip


def _note(found: Contrast, draw: random.Random) -> list[str]:
    return ["", draw.choice(found.notes)] if found.notes and draw.random() < 0.7 else []


def _effect(effect: Effect, *, wanted: bool = False) -> list[str]:
    if effect.error or effect.value:
        return _block(_printed(effect), "")
    return ["No error." if wanted else "Nothing; it runs without an error."]


def _brief(effect: Effect) -> bool:
    text = effect.value or _error(effect)
    return len(text) <= _LONG and "`" not in text and "\n" not in text


def _error(effect: Effect) -> str:
    message = effect.message.strip()
    # Only the first line, as in a list of errors.
    return f"{effect.error}: {message.splitlines()[0]}" if message else effect.error


def _printed(effect: Effect) -> list[str]:
    if effect.error:
        return ["Traceback (most recent call last):", "  ...", _error(effect)]
    return [effect.value] if effect.value else []


def _prompted(code: str) -> list[str]:
    first, *rest = code.splitlines()
    # An interpreter waits for an empty line after a block.
    return [f">>> {first}", *(f"... {line}" for line in rest), *(["..."] if rest else [])]


def _lines(one: Reported, *, shown: bool) -> list[str]:
    """The lines as a file; with `shown` the last value is printed."""
    snippet = one.snippet
    call = snippet.call
    if shown and snippet.is_value and not one.actual.error:
        # What is printed of a text has no quotes.
        call = f"print(repr({call}))" if one.actual.type == "str" else f"print({call})"
    lines = [*snippet.imports, *([""] if snippet.imports else [])]
    for code in (*snippet.setup, call):
        block = code.splitlines()
        lines += block if len(block) == 1 else [*([""] if lines and lines[-1] else []), *block, ""]
    return lines if lines[-1] else lines[:-1]


def _block(lines: Sequence[str], language: str = "python") -> list[str]:
    return [f"```{language}", *lines, "```"] if lines else []


def subject_of(snippet: Snippet, library: str) -> str:
    """The name of what a snippet is about, as a user calls it; else that of the library."""
    imported = {
        alias.asname or alias.name.partition(".")[0]: alias
        for code in snippet.imports
        for node in ast.parse(code).body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
        if _root(node, alias) not in sys.stdlib_module_names
    }
    classes: dict[str, str] = {}
    for code in snippet.setup:
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                name = _callee(node.value, imported, classes)
                if name:
                    classes[node.targets[0].id] = name
    for tree in (ast.parse(snippet.call), *map(ast.parse, snippet.setup)):
        for node in ast.walk(tree):
            name = _callee(node, imported, classes)
            if name:
                return f"`{name}`"
            if isinstance(node, ast.Name) and node.id in classes:
                return f"`{classes[node.id]}`"
    return library


def _root(node: ast.Import | ast.ImportFrom, alias: ast.alias) -> str:
    """The first part of the module that is imported."""
    module = node.module or "" if isinstance(node, ast.ImportFrom) else alias.name
    return module.partition(".")[0]


_OF_PYTHON = frozenset(("list", "tuple", "dict", "set", "sorted", "len", "next", "iter", "repr"))


def _callee(node: ast.AST, imported: dict, classes: dict[str, str]) -> str:
    if not isinstance(node, ast.Call):
        return ""
    func = node.func
    if isinstance(func, ast.Subscript):
        func = func.value  # `Box[int](2)`
    if isinstance(func, ast.Name):
        return func.id if func.id in imported and func.id not in _OF_PYTHON else ""
    if isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name):
        owner = func.value.id
        if owner in classes:
            return f"{classes[owner]}.{func.attr}"
        if owner in imported:
            return f"{imported[owner].name}.{func.attr}"
    return ""
