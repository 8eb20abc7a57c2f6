"""Pairs into a file that is read again as the same pairs under the same ids.

Pairs of messages become JSON lines with the columns `prompt`, `chosen` and `rejected`, as TRL reads
them, those of sampled tokens parquet as `agentrl prefs make` writes it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentrl.data.run.paths import RunPaths
from agentrl.data.store.atomic import atomic_file
from agentrl.errors import DataError
from agentrl.fit.data.preferences.files import PairWriter
from agentrl.images import ImageFolder
from agentrl.served.turns import openai_message
from agentrl.types import Message, PreferencePair

SUFFIXES = {False: ".jsonl", True: ".parquet"}
"""Of files of messages, and of sampled tokens."""


def write_pairs(out: Path, pairs: Sequence[PreferencePair], *, source: Path) -> None:
    """Write pairs in the layout of their kind, whole or not at all.

    Args:
        out: file to make.
        pairs: at least one; all of sampled tokens, or all of messages.
        source: of the pairs; where it is a file, the folder of their images is beside it, and
            where it is a folder, in it. The new file gets one beside it.

    Raises:
        DataError: both kinds, another suffix than that of their kind, a lost image, or the file
            cannot be written.
    """
    kinds = {bool(pair.prompt_ids) for pair in pairs}
    if len(kinds) > 1:
        raise DataError("some pairs are sampled tokens and some are messages; take them apart")
    sampled = kinds == {True}
    if out.suffix != SUFFIXES[sampled]:
        kind = "sampled tokens" if sampled else "messages"
        raise DataError(
            f"--out {out}: pairs of {kind} are written as {SUFFIXES[sampled]}; name such a file"
        )
    if not sampled:
        with atomic_file(out) as file:
            file.writelines((json.dumps(_line(pair)) + "\n").encode() for pair in pairs)
        return
    folder = ImageFolder(RunPaths(source.parent if source.is_file() else source).images)
    shown = ImageFolder(RunPaths(out.parent).images)
    for pair in pairs:
        for span in (*pair.chosen.images, *pair.rejected.images):
            shown.copy(span.digest, folder)
    with PairWriter(out) as writer:
        for pair in pairs:
            writer.write(pair)


def _line(pair: PreferencePair) -> dict[str, Any]:
    optional = {
        "margin": pair.margin,
        "label_probability": pair.label_probability,
        "weight": None if pair.weight == 1.0 else pair.weight,
        "tools": [dict(tool) for tool in pair.tools] or None,
    }
    return {
        "id": pair.id,
        "prompt": [_message(message) for message in pair.prompt],
        "chosen": [_message(message) for message in pair.chosen.messages],
        "rejected": [_message(message) for message in pair.rejected.messages],
        **{name: value for name, value in optional.items() if value is not None},
    }


def _message(message: Message) -> dict[str, Any]:
    named = {} if message.name is None else {"name": message.name}
    return openai_message(message) | named
