"""Data of a fit: rows of any layout into token ids, with a count of what was left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from agentrl.batch.examples import AnswerTokens, Example, why_unusable
from agentrl.chat.conversation import encode_completion
from agentrl.chat.offered import schema_tool
from agentrl.config.fit import FitDataSection, FitObjective
from agentrl.config.training import TrainSection
from agentrl.data.conversations.from_runs import conversations_of_run
from agentrl.data.conversations.load import load_conversations
from agentrl.data.preferences.load import load_pairs
from agentrl.errors import ChatError, ConfigError, DataError
from agentrl.types import Completion, Conversation, PreferencePair

if TYPE_CHECKING:
    from agentrl.chat import ChatFormat

RUN = "run:"
"""Beginning of a source that is a run directory."""


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
) -> FitData:
    """Read and encode the data of a section.

    Args:
        section: where it is.
        objective: conversations for `sft`, pairs for all others.
        train: says what a micro-batch holds.
        chat: how the model reads a conversation.
        base: folder that relative paths start from.
        name: put before the ids, so that data of several sections can be told apart.

    Raises:
        DataError: no such source, a broken row, or nothing that can be trained on.
        ConfigError: a source that does not fit the objective.
        ChatError: a conversation that the template refuses; names the row.
    """
    pairs = objective.kind != "sft"
    examples: list[Example] = []
    left_out: Counter[str] = Counter()
    for item in _records(section, pairs=pairs, base=base):
        try:
            example = _encoded(item, chat, prefix=f"{name}/" if name else "")
        except ChatError as error:
            raise ChatError(f"{item.source or item.id}: {error}") from None
        why = why_unusable(example, pairs=pairs)
        why = why or _too_long(example, section, train)
        if why:
            left_out[why] += 1
        else:
            examples.append(example)
    if not examples:
        reasons = "; ".join(f"{number}: {why}" for why, number in left_out.most_common())
        raise DataError(
            f"{section.source!r} has nothing that can be trained on ({reasons or 'no rows'})"
        )
    return FitData(examples=tuple(examples), left_out=tuple(left_out.most_common()))


def _too_long(example: Example, section: FitDataSection, train: TrainSection) -> str:
    if section.max_tokens is not None and example.num_tokens > section.max_tokens:
        return f"longer than max_tokens ({section.max_tokens})"
    if example.packed_tokens(prefix_sharing=train.prefix_sharing) > train.micro_batch_tokens:
        return f"too long for train.micro_batch_tokens ({train.micro_batch_tokens})"
    return ""


def _records(
    section: FitDataSection, *, pairs: bool, base: Path
) -> Iterable[PreferencePair] | Iterable[Conversation]:
    source = section.source
    if source.startswith(RUN):
        if pairs:
            raise ConfigError(
                f"data.source is {source!r}, but this objective needs pairs; make them with "
                f"`agentrl prefs make {source.removeprefix(RUN)} --out FOLDER` and give that folder"
            )
        folder = Path(source.removeprefix(RUN)).expanduser()
        return conversations_of_run(
            folder if folder.is_absolute() else base / folder,
            min_score=section.min_score,
            limit=section.limit,
        )
    load = load_pairs if pairs else load_conversations
    return load(
        source,
        split=section.split,
        columns=section.columns,
        args=section.args,
        limit=section.limit,
        base=base,
    )


def _encoded(item: PreferencePair | Conversation, chat: ChatFormat, *, prefix: str) -> Example:
    pair = item if isinstance(item, PreferencePair) else None
    completions: Sequence[Completion] = (
        (item.chosen, item.rejected) if isinstance(item, PreferencePair) else (item.completion,)
    )
    prompts: list[tuple[int, ...]] = []
    answers: list[AnswerTokens] = []
    for completion in completions:
        if item.prompt_ids:
            prompts.append(tuple(item.prompt_ids))
            answers.append(AnswerTokens(ids=tuple(completion.ids), mask=tuple(completion.mask)))
            continue
        tools = [schema_tool(schema) for schema in item.tools]
        found = encode_completion(chat, item.prompt, completion.messages, tools)
        prompts.append(found.prompt_ids)
        answers.append(AnswerTokens(ids=found.ids, mask=found.mask))
    if len(set(prompts)) > 1:
        raise DataError(
            f"{item.source or item.id}: the template writes different prompts for both answers"
        )
    return Example(
        id=prefix + item.id,
        prompt_ids=prompts[0],
        answers=tuple(answers),
        weight=item.weight,
        margin=pair.margin if pair else None,
        label_probability=pair.label_probability if pair else None,
    )
