"""Rows of preference data in the layouts of others, told apart by their columns.

    layout          columns                                     as in
    sampled         prompt_ids, chosen_ids, chosen_mask, ...    `agentrl prefs make`
    pairs           prompt, chosen, rejected                    TRL, OpenRLHF, UltraFeedback
    shared          chosen, rejected                            hh-rlhf; TRL's implicit prompt
    compared        context|prompt, response1|response_a, ...   HelpSteer3
                    overall_preference
    scored          prompt|instruction, completions|responses,  UltraFeedback, SkyworkReward
                    and scores, or scores in the completions
    rated           prompt, response, and one score a row       HelpSteer2: a prompt's rows together

Completions are texts or lists of messages. A list that begins with the messages of the prompt, as
UltraFeedback's do, loses them. Rows of one answer with a verdict (KTO) and conversations (SFT) hold
no comparison; they are refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from agentrl.data.messages import messages_of, prompt_of
from agentrl.data.preferences.files import finite
from agentrl.data.tasks.files import SourceRow
from agentrl.data.tasks.formats import ABSENT
from agentrl.errors import DataError
from agentrl.types import Completion, Message


class PairLayout(StrEnum):
    """Columns that hold what is compared."""

    SAMPLED = "sampled"
    PAIRS = "pairs"
    SHARED = "shared"
    COMPARED = "compared"
    SCORED = "scored"
    RATED = "rated"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredCompletions:
    """A prompt and two or more completions; the higher a score, the better."""

    prompt: tuple[Message, ...]
    """Messages that all completions follow."""
    completions: Sequence[Completion]
    """In the order of the row."""
    scores: Sequence[float | None]
    """One for each completion; None where the row has none."""
    ordered: bool = False
    """Two completions of which the first is the better one, whatever the scores say."""


_PROMPTS = ("prompt", "instruction", "context", "question", "input")
_LISTS = ("completions", "responses", "answers", "candidates")
_SCORES = ("scores", "rewards", "ratings", "labels")
_IN_COMPLETION = ("overall_score", "score", "reward", "rating")
_TEXTS = ("response", "completion", "content", "text", "answer")
_RATINGS = ("score", "reward", "rating", "helpfulness", "overall_score")
_SIDES = (
    ("response1", "response2"),
    ("response_1", "response_2"),
    ("response_a", "response_b"),
    ("answer_a", "answer_b"),
)
_PREFERENCES = ("overall_preference", "preference", "preference_strength")
_TURN = re.compile(r"\n\n(Human|Assistant): ?")


def layout_of(row: SourceRow) -> PairLayout:
    """The layout of a row.

    Raises:
        DataError: none that is known; names the columns and what is expected.
    """
    values = row.values
    if not isinstance(values, Mapping):
        raise DataError(
            f"{row.where}: expected an object with columns, got {type(values).__name__}"
        )
    if "chosen_ids" in values and "rejected_ids" in values:
        return PairLayout.SAMPLED
    prompt = _first(values, _PROMPTS)
    if "chosen" in values and "rejected" in values:
        return PairLayout.SHARED if prompt is ABSENT else PairLayout.PAIRS
    if prompt is not ABSENT and _sides(values) and _first(values, _PREFERENCES) is not ABSENT:
        return PairLayout.COMPARED
    if prompt is not ABSENT and isinstance(_first(values, _LISTS), (list, tuple)):
        return PairLayout.SCORED
    if prompt is not ABSENT and _text_key(values) and _first(values, _RATINGS) is not ABSENT:
        return PairLayout.RATED
    raise DataError(f"{row.where}: {_no_comparison(values)}")


def _no_comparison(values: Mapping[str, Any]) -> str:
    columns = f"columns {sorted(map(str, values))}"
    if "label" in values and _text_key(values):
        return f"{columns} hold one answer with a verdict (KTO), not two to compare"
    if "messages" in values or "conversations" in values or _text_key(values):
        return f"{columns} hold a conversation (for SFT), not two to compare"
    return (
        f"{columns} are of no known layout; expected chosen and rejected (with or without prompt), "
        "a prompt with scored completions, or two responses with a preference; name other columns "
        "with --column chosen=NAME"
    )


def compared_in(row: SourceRow, layout: PairLayout) -> ScoredCompletions:
    """Completions of a row, by its layout; `SAMPLED` rows are read by `files`.

    Raises:
        DataError: the row is broken; names the row, the column and what was there.
    """
    return _READERS[layout](row)


def _pairs(row: SourceRow) -> ScoredCompletions:
    values = row.values
    prompt = _prompt(row, _first(values, _PROMPTS))
    both = [_completion(row.where, values[name], name, prompt) for name in ("chosen", "rejected")]
    scores = (
        _number(row, values, ("score_chosen", "chosen_score", "chosen_reward", "chosen_rating")),
        _number(row, values, ("score_rejected", "rejected_score", "rejected_reward",
                              "rejected_rating")),
    )  # fmt: skip
    return ScoredCompletions(prompt=prompt, completions=both, scores=scores, ordered=True)


def _shared(row: SourceRow) -> ScoredCompletions:
    both = [_conversation(row.where, row.values[name], name) for name in ("chosen", "rejected")]
    same = 0
    while same < min(map(len, both)) and both[0][same] == both[1][same]:
        same += 1
    # What is compared begins with the assistant.
    while same and (same == min(map(len, both)) or both[0][same].role != "assistant"):
        same -= 1
    for name, messages in zip(("chosen", "rejected"), both, strict=True):
        if not same or messages[same].role != "assistant":
            raise DataError(
                f"{row.where}: chosen and rejected share no prompt after which the assistant "
                f"speaks ({name} begins with {ascii(messages[0].content)[:60]})"
            )
    return ScoredCompletions(
        prompt=both[0][:same],
        completions=[Completion(messages=messages[same:]) for messages in both],
        scores=(None, None),
        ordered=True,
    )


def _compared(row: SourceRow) -> ScoredCompletions:
    values = row.values
    prompt = _prompt(row, _first(values, _PROMPTS))
    both = [_completion(row.where, values[name], name, prompt) for name in _sides(values) or ()]
    preference = _number(row, values, _PREFERENCES)
    if preference is None:
        raise DataError(f"{row.where}: the preference is null; expected a number")
    # HelpSteer3: from -3, the first is much better, to 3, the second is.
    return ScoredCompletions(prompt=prompt, completions=both, scores=(0.0, preference))


def _scored(row: SourceRow) -> ScoredCompletions:
    values = row.values
    prompt = _prompt(row, _first(values, _PROMPTS))
    given = _first(values, _LISTS)
    inside = [entry for entry in given if isinstance(entry, Mapping) and _text_key(entry)]
    if inside and len(inside) == len(given):
        texts = [entry[_text_key(entry)] for entry in inside]
        scores = [_number(row, entry, _IN_COMPLETION) for entry in inside]
    else:
        texts = list(given)
        found = _first(values, _SCORES)
        if not isinstance(found, (list, tuple)) or len(found) != len(texts):
            raise DataError(
                f"{row.where}: {len(texts)} completions, but no list of as many scores; expected "
                f"a column {' or '.join(_SCORES)}"
            )
        scores = [_as_number(row, "scores", value) for value in found]
    completions = [_completion(row.where, text, "completion", prompt) for text in texts]
    return ScoredCompletions(prompt=prompt, completions=completions, scores=scores)


def _rated(row: SourceRow) -> ScoredCompletions:
    values = row.values
    prompt = _prompt(row, _first(values, _PROMPTS))
    text = values[_text_key(values)]
    return ScoredCompletions(
        prompt=prompt,
        completions=[_completion(row.where, text, "response", prompt)],
        scores=[_number(row, values, _RATINGS)],
    )


_READERS = {
    PairLayout.PAIRS: _pairs,
    PairLayout.SHARED: _shared,
    PairLayout.COMPARED: _compared,
    PairLayout.SCORED: _scored,
    PairLayout.RATED: _rated,
}


def _first(values: Mapping[str, Any], names: Sequence[str]) -> Any:
    return next((values[name] for name in names if values.get(name) is not None), ABSENT)


def _text_key(values: Mapping[str, Any]) -> str:
    return next((name for name in _TEXTS if isinstance(values.get(name), (str, list))), "")


def _sides(values: Mapping[str, Any]) -> tuple[str, str] | None:
    return next((pair for pair in _SIDES if pair[0] in values and pair[1] in values), None)


def _number(row: SourceRow, values: Mapping[str, Any], names: Sequence[str]) -> float | None:
    for name in names:
        if values.get(name) is not None:
            return _as_number(row, name, values[name])
    return None


def _as_number(row: SourceRow, name: str, value: Any) -> float | None:
    return None if value is None else finite(row.where, name, value)


def _prompt(row: SourceRow, value: Any) -> tuple[Message, ...]:
    prompt = prompt_of(row.where, value)
    return (Message(role="user", content=prompt),) if isinstance(prompt, str) else prompt


def _completion(where: str, value: Any, part: str, prompt: tuple[Message, ...]) -> Completion:
    if isinstance(value, str):
        return Completion(messages=(Message(role="assistant", content=value),))
    messages = messages_of(where, [value] if isinstance(value, Mapping) else value, part)
    if messages[: len(prompt)] == prompt:
        messages = messages[len(prompt) :]
    if not messages or messages[0].role != "assistant":
        got = f"role {messages[0].role!r}" if messages else "nothing after the prompt"
        raise DataError(
            f"{where}: {part} begins with {got}; expected the assistant's message, or the messages "
            "of the prompt and then the assistant's"
        )
    return Completion(messages=messages)


def _conversation(where: str, value: Any, part: str) -> tuple[Message, ...]:
    """Messages, or the text of hh-rlhf: `\\n\\nHuman: ...\\n\\nAssistant: ...`."""
    if not isinstance(value, str):
        return messages_of(where, value, part)
    pieces = _TURN.split(value)
    if len(pieces) < 3 or pieces[0].strip():
        raise DataError(
            f"{where}: {part} is text without a prompt beside it; expected a column prompt, a list "
            "of messages, or turns that begin with '\\n\\nHuman:' and '\\n\\nAssistant:'"
        )
    roles = {"Human": "user", "Assistant": "assistant"}
    return tuple(
        Message(role=roles[who], content=text.strip())  # pyright: ignore[reportArgumentType]
        for who, text in zip(pieces[1::2], pieces[2::2], strict=True)
    )
