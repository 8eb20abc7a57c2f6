"""Problem texts by a served model: it sees what a user saw, and is not believed."""

from __future__ import annotations

import re
from collections.abc import Sequence

from agentrl.errors import EnvError
from agentrl.served import ServedModel
from agentrl_envs.swe.make.issue.leaks import Secrets, leaks
from agentrl_envs.swe.make.issue.words import Reported, Story

_MOST = 4000
_LEAST = 60
_SHOWN = 120
_SYSTEM = """You write bug reports as users of a Python library write them on an issue tracker.
You know only what the user saw. Write the report in your own words: a title on the first line, then
the text, in Markdown. Keep every line of code, every value and every error message exactly as
given. Do not guess at the cause, name no source file, no line number and no test, and propose no
change of the source. Vary length and tone from report to report; no more than 200 words. Answer
with the report alone."""


class ServedWriter:
    """Writes problem texts with a model; explains why a text is not taken."""

    def __init__(self, model: ServedModel, name: str) -> None:
        """Write with a model.

        Args:
            model: is asked.
            name: of it, as findings are kept under.
        """
        self.name = name
        self._model = model

    async def write(self, story: Story, secrets: Secrets) -> tuple[str, str]:
        """A text, and why it is not taken; one of both is empty."""
        messages = [
            {"role": "system", "content": _SYSTEM},
            {"role": "user", "content": _facts(story)},
        ]
        try:
            text = (await self._model.complete(messages)).strip()
        except EnvError as error:
            return "", str(error)
        if not _LEAST <= len(text) <= _MOST:
            return "", f"it has {len(text)} characters"
        facts = [story.manual, *(part for one in story.symptoms for part in one.facts())]
        found = leaks(text, secrets, facts)
        if found:
            return "", "it gives something away"
        lost = [one for one in story.symptoms if not _holds(text, one)]
        if lost:
            return "", "it leaves out what was seen"
        return f"{text}\n", ""


def _holds(text: str, one: Reported) -> bool:
    """True if a text has the call, what it gave and what it should give."""
    wanted = [one.snippet.call]
    for effect in (one.actual, one.expected):
        wanted.append(effect.error or effect.value[:_SHOWN])
    whole = _squeeze(text)
    return all(_squeeze(part) in whole for part in wanted)


def _squeeze(text: str) -> str:
    """Without what may be written in another way: spaces, quotes and prompts."""
    return re.sub(r"[\s'\"]|^(>>>|\.\.\.)", "", text, flags=re.MULTILINE)


def _facts(story: Story) -> str:
    parts = [f"Library: {story.library} {story.version}, Python {story.python}"]
    for number, one in enumerate(story.symptoms, start=1):
        lines: Sequence[str] = (*one.snippet.imports, *one.snippet.setup, one.snippet.call)
        parts += ["", f"Observation {number}. What the user typed:", *lines]
        for what, effect in (("What came back", one.actual), ("What should", one.expected)):
            said = f"{effect.error}: {effect.message}" if effect.error else effect.value
            parts.append(f"{what}: {said or 'no value, no error'}")
    if story.missing:
        parts += ["", "The user asks for a feature that is missing."]
    if story.manual:
        parts += ["The documentation says:", story.manual]
    return "\n".join(parts)
