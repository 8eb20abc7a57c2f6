"""Rows of preference data in the layouts of others, recognised by their columns.

    layout          columns                                     as in
    sampled         prompt_ids, chosen_ids, chosen_mask, ...    `agentrl prefs make`
    pairs           prompt, chosen, rejected                    TRL, OpenRLHF, UltraFeedback
    shared          chosen, rejected                            hh-rlhf, Skywork; TRL's implicit
                                                                prompt
    compared        context|prompt, response1|response_a, ...   HelpSteer3: below 0 the first is
                    overall_preference                          better
    scored          prompt|instruction, completions|responses,  UltraFeedback, Nectar
                    and scores, or scores in the completions
    rated           prompt, response, and one score a row       HelpSteer2: a prompt's rows together

Completions are texts or lists of messages. A list that begins with the messages of the prompt, as
UltraFeedback's do, loses them; whole conversations beside a text are read as shared. A column
`system`, and `input` beside `instruction`, are parts of the prompt. Rows of one answer with a
verdict (KTO; `verdicts` reads them), steps of one answer with labels and conversations (SFT) hold
no comparison; they are refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from agentrl.data.example_rows import PROMPTS, finite, first_of, prompt_in, there
from agentrl.data.tasks.files import SourceRow
from agentrl.data.tasks.formats import ABSENT
from agentrl.errors import DataError
from agentrl.fit.data.preferences.completions import completion_of, conversation_of
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
    """Two completions of which the first is the better one, whatever the scores are."""


_LISTS = ("completions", "responses", "answers", "candidates")
_SCORES = ("scores", "rewards", "ratings")
_IN_COMPLETION = ("overall_score", "score", "reward", "rating")
_RANK = "rank"
"""In a completion: the lower, the better."""
_TEXTS = ("response", "completion", "content", "text", "answer")
_RATINGS = ("score", "reward", "rating", "helpfulness", "overall_score")
_SIDES = (
    ("response1", "response2"),
    ("response_1", "response_2"),
    ("response_a", "response_b"),
    ("answer_a", "answer_b"),
)
_PREFERENCES = ("overall_preference", "preference_strength")
_OF_SIDE = (
    "score_{}", "{}_score", "reward_{}", "{}_reward", "rating_{}", "{}_rating", "{}-rating",
    "{}_avg_rating",
)  # fmt: skip


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
    if there(values, "chosen_ids", "rejected_ids"):
        return PairLayout.SAMPLED
    prompt = first_of(values, PROMPTS)
    if there(values, "chosen", "rejected"):
        conversations = all(_is_conversation(values[name]) for name in ("chosen", "rejected"))
        apart = prompt is not ABSENT and not (conversations and isinstance(prompt, str))
        return PairLayout.PAIRS if apart else PairLayout.SHARED
    if prompt is not ABSENT and _sides(values) and first_of(values, _PREFERENCES) is not ABSENT:
        return PairLayout.COMPARED
    if prompt is not ABSENT and isinstance(first_of(values, _LISTS), list):
        if isinstance(values.get("labels"), list):
            raise DataError(f"{row.where}: {_no_comparison(values)}")
        return PairLayout.SCORED
    if prompt is not ABSENT and _text_key(values) and any(name in values for name in _RATINGS):
        return PairLayout.RATED
    raise DataError(f"{row.where}: {_no_comparison(values)}")


def _no_comparison(values: Mapping[str, Any]) -> str:
    columns = f"columns {sorted(map(str, values))}"
    if isinstance(values.get("labels"), list):
        return f"{columns} hold steps of one answer with labels, not two answers to compare"
    if "label" in values and _text_key(values):
        return (
            f"{columns} hold one answer with a verdict, not two to compare; a fit learns from "
            "those with objective: {kind: dpo, loss: kto}"
        )
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
    prompt = prompt_in(row)
    both = [completion_of(row.where, values[name], name, prompt) for name in ("chosen", "rejected")]
    scores = _scores_of_sides(row)
    return ScoredCompletions(prompt=prompt, completions=both, scores=scores, ordered=True)


def _scores_of_sides(row: SourceRow) -> tuple[float | None, float | None]:
    chosen, rejected = (
        _number(row, row.values, [name.format(side) for name in _OF_SIDE])
        for side in ("chosen", "rejected")
    )
    return chosen, rejected


def _shared(row: SourceRow) -> ScoredCompletions:
    both = [conversation_of(row.where, row.values[name], name) for name in ("chosen", "rejected")]
    same = 0
    while same < min(map(len, both)) and both[0][same] == both[1][same]:
        same += 1
    # What is compared begins with the assistant.
    while same and (
        same == min(map(len, both)) or {each[same].role for each in both} != {"assistant"}
    ):
        same -= 1
    for name, messages in zip(("chosen", "rejected"), both, strict=True):
        if not same:
            raise DataError(
                f"{row.where}: chosen and rejected share no prompt after which the assistant "
                f"speaks ({name} begins with {ascii(messages[0].content)[:60]})"
            )
    return ScoredCompletions(
        prompt=both[0][:same],
        completions=[Completion(messages=messages[same:]) for messages in both],
        scores=_scores_of_sides(row),
        ordered=True,
    )


def _compared(row: SourceRow) -> ScoredCompletions:
    values = row.values
    prompt = prompt_in(row)
    both = [completion_of(row.where, values[name], name, prompt) for name in _sides(values) or ()]
    preference = _number(row, values, _PREFERENCES)
    if preference is None:
        raise DataError(f"{row.where}: the preference is null; expected a number")
    # HelpSteer3: from -3, the first is much better, to 3, the second is.
    return ScoredCompletions(prompt=prompt, completions=both, scores=(0.0, preference))


def _scored(row: SourceRow) -> ScoredCompletions:
    values = row.values
    prompt = prompt_in(row)
    given = first_of(values, _LISTS)
    inside = [entry for entry in given if isinstance(entry, Mapping) and _text_key(entry)]
    texts = [
        entry[_text_key(entry)] if len(inside) == len(given) and "role" not in entry else entry
        for entry in given
    ]
    scores = [_score_inside(row, entry) for entry in inside]
    if len(scores) != len(texts) or scores.count(None) == len(scores):
        found = first_of(values, _SCORES)
        if not isinstance(found, list) or len(found) != len(texts):
            raise DataError(
                f"{row.where}: {len(texts)} completions, but no list of as many scores; expected "
                f"a column {' or '.join(_SCORES)}, or {' or '.join((*_IN_COMPLETION, _RANK))} in "
                "each completion"
            )
        scores = [_as_number(row, "scores", value) for value in found]
    completions = [completion_of(row.where, text, "completion", prompt) for text in texts]
    return ScoredCompletions(prompt=prompt, completions=completions, scores=scores)


def _score_inside(row: SourceRow, entry: Mapping[str, Any]) -> float | None:
    score = _number(row, entry, _IN_COMPLETION)
    rank = _number(row, entry, [_RANK])
    return score if score is not None or rank is None else -rank


def _rated(row: SourceRow) -> ScoredCompletions:
    values = row.values
    prompt = prompt_in(row)
    text = values[_text_key(values)]
    return ScoredCompletions(
        prompt=prompt,
        completions=[completion_of(row.where, text, "response", prompt)],
        scores=[_number(row, values, _RATINGS)],
    )


_READERS = {
    PairLayout.PAIRS: _pairs,
    PairLayout.SHARED: _shared,
    PairLayout.COMPARED: _compared,
    PairLayout.SCORED: _scored,
    PairLayout.RATED: _rated,
}


def _is_conversation(value: Any) -> bool:
    """Messages that begin before the assistant speaks."""
    first = value[0] if isinstance(value, list) and value else None
    role = first.get("role") if isinstance(first, Mapping) else getattr(first, "role", None)
    return role in ("system", "developer", "user")


def _text_key(values: Mapping[str, Any]) -> str:
    return next((name for name in _TEXTS if isinstance(values.get(name), (str, list))), "")


def _sides(values: Mapping[str, Any]) -> tuple[str, str] | None:
    return next((pair for pair in _SIDES if pair[0] in values and pair[1] in values), None)


def _number(row: SourceRow, values: Mapping[str, Any], names: Sequence[str]) -> float | None:
    for name in names:
        if values.get(name) not in (None, ""):
            return _as_number(row, name, values[name])
    return None


def _as_number(row: SourceRow, name: str, value: Any) -> float | None:
    return None if value is None or value == "" else finite(row.where, name, value)
