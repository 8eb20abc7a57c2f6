"""Data of a fit: rows of any layout into token ids, with a count of what was left out."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from agentrl.batch.examples import AnswerTokens, Example, why_unusable
from agentrl.chat.conversation import encode_completion
from agentrl.chat.offered import schema_tool
from agentrl.config.fit import FitDataSection, FitObjective
from agentrl.config.training import TrainSection
from agentrl.data.conversations.load import load_conversations
from agentrl.data.preferences.load import load_pairs
from agentrl.errors import ChatError, ConfigError, DataError
from agentrl.types import Completion, Conversation, PreferencePair

if TYPE_CHECKING:
    from agentrl.chat import ChatFormat

RUN = "run:"
"""Beginning of a source that is a run directory."""

_Records = Sequence[PreferencePair] | Sequence[Conversation]


@dataclass(frozen=True, slots=True, kw_only=True)
class FitData:
    """Examples ready for batches."""

    examples: tuple[Example, ...]
    """In the order of their source."""
    left_out: tuple[tuple[str, int], ...]
    """Reasons for which rows were left out, with their number."""

    def text(self) -> str:
        """Counts in one line."""
        parts = [f"{number} left out: {why}" for why, number in self.left_out]
        trained = sum(answer.trained for item in self.examples for answer in item.answers)
        return "; ".join([f"{len(self.examples)} examples with {trained} trained tokens", *parts])


def load_fit_data(
    section: FitDataSection,
    objective: FitObjective,
    train: TrainSection,
    chat: ChatFormat,
    *,
    base: Path,
    name: str = "",
    vocabulary: int | None = None,
) -> FitData:
    """Read and encode the data of a section.

    Args:
        section: where it is.
        objective: conversations for `sft`, pairs for all others.
        train: says what a micro-batch holds.
        chat: how the model reads a conversation.
        base: folder that relative paths start from.
        name: of the section in `eval.datasets`, put before the ids, so that data of several
            sections can be told apart.
        vocabulary: number of tokens that the model knows; None does not check ids.

    Raises:
        DataError: no such source, a broken row, or nothing that can be trained on.
        ConfigError: a source that does not fit the objective.
        ChatError: a conversation that the template refuses; names the row.
    """
    pairs = objective.kind != "sft"
    key = f"eval.datasets.{name}" if name else "data"
    examples: list[Example] = []
    records, left_out = _records(section, pairs=pairs, base=base, key=key)
    for item in records:
        try:
            example = _encoded(item, chat, prefix=f"{name}/" if name else "")
        except ChatError as error:
            raise ChatError(f"{item.source or item.id}: {error}") from None
        why = why_unusable(example, pairs=pairs)
        why = why or _too_long(example, section, train)
        if why:
            left_out[why] += 1
            continue
        _check_usable(example, item.source, objective, key=key, vocabulary=vocabulary)
        examples.append(example)
    if not examples:
        reasons = "; ".join(f"{number}: {why}" for why, number in left_out.most_common())
        raise DataError(
            f"{key}.source {section.source!r} has nothing that can be trained on "
            f"({reasons or 'no rows'})"
        )
    return FitData(examples=tuple(examples), left_out=tuple(left_out.most_common()))


def digest_of(examples: Iterable[Example]) -> str:
    """Hexadecimal digest of everything that a fit is trained on, in its order."""
    found = hashlib.sha256()
    for example in examples:
        numbers = (example.weight, example.margin, example.label_probability)
        found.update(f"\n{example.id}\n{numbers}\n".encode())
        for part in (example.prompt_ids, *((*a.ids, -1, *a.mask) for a in example.answers)):
            found.update(np.array(part, dtype=np.int64).tobytes())
            found.update(b"\n")
    return found.hexdigest()


def _check_usable(
    example: Example,
    source: str,
    objective: FitObjective,
    *,
    key: str,
    vocabulary: int | None,
) -> None:
    where = source or example.id
    if objective.kind == "rm" and objective.margin_scale and example.margin is None:
        raise DataError(
            f"{where}: no margin, which objective.margin_scale ({objective.margin_scale:g}) needs; "
            f"map its column with {key}.columns, or set objective.margin_scale: 0"
        )
    ids = (example.prompt_ids, *(answer.ids for answer in example.answers))
    largest, least = max(map(max, ids)), min(map(min, ids))
    if vocabulary is not None and (least < 0 or largest >= vocabulary):
        raise DataError(
            f"{where}: token {least if least < 0 else largest} is not one of the {vocabulary} that "
            "model.path knows; these ids are of another model: give that one, or data as messages"
        )


def _too_long(example: Example, section: FitDataSection, train: TrainSection) -> str:
    if section.max_tokens is not None and example.num_tokens > section.max_tokens:
        return f"longer than max_tokens ({section.max_tokens})"
    if example.packed_tokens(prefix_sharing=train.prefix_sharing) > train.micro_batch_tokens:
        return f"too long for train.micro_batch_tokens ({train.micro_batch_tokens})"
    return ""


def _records(
    section: FitDataSection, *, pairs: bool, base: Path, key: str
) -> tuple[_Records, Counter[str]]:
    """What a source holds, and how much of it is left out for what reason."""
    source = section.source
    if pairs and source.startswith(RUN):
        raise ConfigError(
            f"{key}.source is {source!r}, but this objective needs pairs; make them with "
            f"`agentrl prefs make {source.removeprefix(RUN)} --out FOLDER` and give that folder"
        )
    if pairs:
        found = load_pairs(
            source, split=section.split, columns=section.columns, args=section.args,
            limit=section.limit, base=base,
        )  # fmt: skip
        reasons = {
            "neither answer is the better one": found.ties,
            "an answer without a score": found.unscored,
        }
        return found, Counter({why: number for why, number in reasons.items() if number})
    talks = load_conversations(
        source, split=section.split, columns=section.columns, args=section.args,
        limit=section.limit, base=base, min_score=section.min_score,
    )  # fmt: skip
    return talks, Counter(talks.left_out)


def _encoded(item: PreferencePair | Conversation, chat: ChatFormat, *, prefix: str) -> Example:
    pair = item if isinstance(item, PreferencePair) else None
    completions: Sequence[Completion] = (
        (item.chosen, item.rejected) if isinstance(item, PreferencePair) else (item.completion,)
    )
    prompts: list[tuple[int, ...]] = []
    answers: list[AnswerTokens] = []
    tools = [schema_tool(schema) for schema in item.tools]
    for completion in completions:
        if item.prompt_ids:
            prompts.append(tuple(item.prompt_ids))
            answers.append(AnswerTokens(ids=tuple(completion.ids), mask=tuple(completion.mask)))
            continue
        found = encode_completion(chat, item.prompt, completion.messages, tools)
        prompts.append(found.prompt_ids)
        answers.append(AnswerTokens(ids=found.ids, mask=found.mask))
    where = item.source or item.id
    if len(set(prompts)) > 1:
        raise DataError(f"{where}: the template writes different prompts for both answers")
    try:
        return Example(
            id=prefix + item.id.encode("utf-8", "backslashreplace").decode(),
            prompt_ids=prompts[0],
            answers=tuple(answers),
            weight=item.weight,
            margin=pair.margin if pair else None,
            label_probability=pair.label_probability if pair else None,
        )
    except DataError as error:
        raise DataError(f"{where}: {error}") from None
