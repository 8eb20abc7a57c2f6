"""Data of a fit: rows of any layout into token ids, with a count of what was left out."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from agentrl.batch.examples import AnswerTokens, Example, why_unusable
from agentrl.chat.conversation import encode_completion
from agentrl.chat.offered import schema_tool
from agentrl.config.fit import FitDataSection, FitObjective
from agentrl.config.training import TrainSection
from agentrl.errors import ChatError, DataError
from agentrl.fit.data.preferences.verdicts import LabelledAnswer
from agentrl.fit.data.sources import (
    FitRecord,
    read_records,
    read_single_answers,
    read_verdicts,
)
from agentrl.types import Completion, Conversation, PreferencePair

if TYPE_CHECKING:
    from agentrl.chat import ChatFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class FitData:
    """Examples ready for batches."""

    examples: tuple[Example, ...]
    """In the order of their source."""
    left_out: tuple[tuple[str, int], ...]
    """Reasons for which rows were left out, with their number."""
    sources: tuple[str, ...] = ()
    """File and line of each example, where they are known."""

    def text(self) -> str:
        """Counts in one line."""
        parts = [f"{number} left out: {why}" for why, number in self.left_out]
        trained = sum(answer.trained for item in self.examples for answer in item.answers)
        return "; ".join([f"{len(self.examples)} examples with {trained} trained tokens", *parts])


@dataclass(frozen=True, slots=True, kw_only=True)
class FitEncoding:
    """Rules by which a fit reads and encodes each of its sources."""

    objective: FitObjective
    """Conversations for `sft`, answers with a verdict for `kto`, else pairs."""
    train: TrainSection
    """What a micro-batch holds."""
    chat: ChatFormat
    """How the model reads a conversation."""
    base: Path
    """Folder that relative paths start from."""
    vocabulary: int | None = None
    """Number of tokens that the model knows; None does not check ids."""


def load_fit_data(section: FitDataSection, encoding: FitEncoding, *, name: str = "") -> FitData:
    """Read and encode the data of a section.

    Args:
        section: where it is.
        encoding: of the fit.
        name: of the section in `eval.datasets`, put before the ids, so that data of several
            sections can be told apart.

    Raises:
        DataError: no such source, a broken row, or nothing that can be trained on.
        ConfigError: a source that does not fit the objective.
        ChatError: a conversation that the template refuses; names the row.
    """
    objective, base = encoding.objective, encoding.base
    verdicts = objective.kind == "dpo" and objective.unpaired
    pairs = objective.kind != "sft" and not verdicts
    key = f"eval.datasets.{name}" if name else "data"
    if verdicts:
        records, left_out = read_verdicts(section, base=base)
    else:
        records, left_out = read_records(section, pairs=pairs, base=base, key=key)
    prefix = f"{name}/" if name else ""
    found = _examples(records, left_out, section, encoding, pairs=pairs, key=key, prefix=prefix)
    if verdicts and not name:
        _require_both(found.examples, section.source)
    return found


def load_centered(section: FitDataSection, encoding: FitEncoding) -> FitData:
    """Read and encode the answers of `objective.center_data`, one an example.

    Args:
        section: pairs, both answers of which count, conversations, or rollouts of a run.
        encoding: of the fit.

    Raises:
        AgentrlError: as `load_fit_data`.
    """
    key, prefix = "objective.center_data", "center_data/"
    records, left_out = read_single_answers(section, base=encoding.base, key=key)
    return _examples(records, left_out, section, encoding, pairs=False, key=key, prefix=prefix)


def _examples(
    records: Sequence[FitRecord],
    left_out: Counter[str],
    section: FitDataSection,
    encoding: FitEncoding,
    *,
    pairs: bool,
    key: str,
    prefix: str,
) -> FitData:
    examples, sources = list[Example](), list[str]()
    for item in records:
        said = item.conversation if isinstance(item, LabelledAnswer) else item
        try:
            example = _encoded(said, encoding.chat, prefix=prefix)
        except ChatError as error:
            raise ChatError(f"{said.source or said.id}: {error}") from None
        if isinstance(item, LabelledAnswer):
            example = replace(
                example, desirable=item.desirable, label_probability=item.label_probability
            )
        why = why_unusable(example, pairs=pairs)
        why = why or _too_long(example, section, encoding.train)
        if why:
            left_out[why] += 1
            continue
        _check_usable(example, said.source, encoding, key=key)
        examples.append(example)
        sources.append(said.source)
    if not examples:
        reasons = "; ".join(f"{number}: {why}" for why, number in left_out.most_common())
        raise DataError(
            f"{key}.source {section.source!r} has nothing that can be trained on "
            f"({reasons or 'no rows'})"
        )
    return FitData(
        examples=tuple(examples), left_out=tuple(left_out.most_common()), sources=tuple(sources)
    )


def digest_of(examples: Iterable[Example]) -> str:
    """Hexadecimal digest of everything that a fit is trained on, in its order."""
    found = hashlib.sha256()
    for example in examples:
        numbers = (example.weight, example.margin, example.label_probability)
        verdict = "" if example.desirable is None else f"{example.desirable}\n"
        shown = (image for answer in example.answers for image in answer.images)
        digests = "".join(f"{image.digest}\n" for image in shown)
        found.update(f"\n{example.id}\n{numbers}\n{verdict}{digests}".encode())
        for part in (example.prompt_ids, *((*a.ids, -1, *a.mask) for a in example.answers)):
            found.update(np.array(part, dtype=np.int64).tobytes())
            found.update(b"\n")
    return found.hexdigest()


def _require_both(examples: Sequence[Example], source: str) -> None:
    desirable = sum(bool(example.desirable) for example in examples)
    if desirable in (0, len(examples)):
        what = "desirable" if desirable else "undesirable"
        other = ", or learn from good ones alone with objective: sft" if desirable else ""
        raise DataError(
            f"data.source {source!r}: all {len(examples)} answers are {what}, and loss kto weighs "
            f"one kind against the other; give answers of both{other}"
        )


def _check_usable(example: Example, source: str, encoding: FitEncoding, *, key: str) -> None:
    objective, vocabulary = encoding.objective, encoding.vocabulary
    where = source or example.id
    pair = len(example.answers) > 1
    if objective.kind == "rm" and objective.margin_scale and pair and example.margin is None:
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
            answers.append(
                AnswerTokens(
                    ids=tuple(completion.ids), mask=tuple(completion.mask), images=completion.images
                )
            )
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
