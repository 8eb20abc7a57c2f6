"""Records of a fit out of their sources, before anything is encoded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from agentrl.config.fit import FitDataSection
from agentrl.errors import ConfigError, DataError
from agentrl.fit.data.conversations.load import load_conversations
from agentrl.fit.data.preferences.load import load_pairs
from agentrl.fit.data.preferences.verdicts import LabelledAnswer, load_verdicts, unpaired
from agentrl.types import Conversation, PreferencePair

RUN = "run:"
"""Beginning of a source that is a run directory."""

FitRecord = PreferencePair | Conversation | LabelledAnswer
"""What an example is made of."""


def read_records(
    section: FitDataSection, *, pairs: bool, base: Path, key: str
) -> tuple[Sequence[FitRecord], Counter[str]]:
    """Contents of a source, and counts of what is left out by reason."""
    source = section.source
    if pairs and source.startswith(RUN):
        raise ConfigError(
            f"{key}.source is {source!r}, but this objective needs pairs; make them with "
            f"`agentrl prefs make {source.removeprefix(RUN)} --out FOLDER` and give that folder"
        )
    if pairs:
        found = load_pairs(
            source,
            split=section.split,
            columns=section.columns,
            args=section.args,
            limit=section.limit,
            base=base,
        )
        return found, found.left_out()
    talks = load_conversations(
        source,
        split=section.split,
        columns=section.columns,
        args=section.args,
        limit=section.limit,
        base=base,
        min_score=section.min_score,
    )
    return talks, Counter(talks.left_out)


def read_single_answers(
    section: FitDataSection, *, base: Path, key: str
) -> tuple[Sequence[FitRecord], Counter[str]]:
    """Single answers of whatever the source holds."""
    if section.source.startswith(RUN):
        return read_records(section, pairs=False, base=base, key=key)
    try:
        pairs, left_out = read_records(section, pairs=True, base=base, key=key)
    except DataError as no_pairs:
        try:
            return read_records(section, pairs=False, base=base, key=key)
        except DataError as no_talks:
            raise DataError(
                f"{key}.source {section.source!r} holds neither pairs nor conversations.\n"
                f"as pairs: {no_pairs}\nas conversations: {no_talks}"
            ) from None
    both = [
        each.conversation
        for pair in pairs
        if isinstance(pair, PreferencePair)
        for each in unpaired(pair)
    ]
    return both, left_out


def read_verdicts(
    section: FitDataSection, *, base: Path
) -> tuple[Sequence[FitRecord], Counter[str]]:
    """Answers with a verdict, and how many rows are left out for what reason."""
    found = load_verdicts(
        section.source,
        split=section.split,
        columns=section.columns,
        args=section.args,
        limit=section.limit,
        base=base,
        min_score=section.min_score,
    )
    return found, found.left_out
