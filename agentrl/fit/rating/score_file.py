"""Scores of every answer in a file, as JSON lines."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from agentrl.errors import ChatError, DataError
from agentrl.fit.data.conversations.load import load_conversations
from agentrl.fit.data.preferences.load import load_pairs
from agentrl.fit.rating.answers import encode_answer
from agentrl.fit.rating.reward_model import TOGETHER
from agentrl.fit.reward_models.rollout_rewards import unknown_token
from agentrl.machine.files import replacing
from agentrl.types import Completion, Conversation, PreferencePair

if TYPE_CHECKING:
    from agentrl.batch.examples import ScoredTokens
    from agentrl.fit.rating.reward_model import OpenRewardModel

Scored = PreferencePair | Conversation


def read_answers(source: str, *, split: str = "train") -> Sequence[Scored]:
    """Preference pairs of any layout, or else conversations.

    Raises:
        DataError: rows that are neither; says why for both.
    """
    try:
        return load_pairs(source, split=split)
    except DataError as no_pairs:
        try:
            return load_conversations(source, split=split)
        except DataError as no_talks:
            raise DataError(
                f"{source} holds neither pairs nor conversations.\nas pairs: {no_pairs}\n"
                f"as conversations: {no_talks}"
            ) from None


def write_scores(
    model: OpenRewardModel,
    items: Sequence[Scored],
    out: Path,
    *,
    done: Callable[[int, int], None] = lambda done, of: None,
) -> int:
    """Write one line for each item: `id`, and `score` or `chosen` and `rejected`.

    Scores are raw; of an ensemble they are means of whitened ones. `reward` is added where the
    checkpoint has a scale (`chosen_reward` ...), and `deviation` where the model gives one. An
    item that cannot be scored has an `error` instead.

    Args:
        model: the reward model.
        items: pairs or conversations.
        out: the file; it is there whole or not at all.
        done: called with items that are scored, and all of them.

    Returns:
        The number of items that could not be scored.
    """
    failed = 0
    with replacing(out) as temporary, temporary.open("x", encoding="utf-8") as file:
        for start in range(0, len(items), TOGETHER):
            for line in _lines(model, items[start : start + TOGETHER]):
                failed += "error" in line
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
            done(min(start + TOGETHER, len(items)), len(items))
    return failed


def _lines(model: OpenRewardModel, items: Sequence[Scored]) -> Iterator[dict[str, Any]]:
    scale = model.stored_scale()
    rows: list[ScoredTokens] = []
    names: list[list[str]] = []
    lines: list[dict[str, Any]] = []
    for item in items:
        line: dict[str, Any] = {"id": item.id}
        found = _completions(item)
        try:
            own = [encode_answer(model.chat, item, each) for each in found.values()]
        except (ChatError, DataError) as error:
            line["error"], own = str(error), []
        tokens = max((len(row.prompt_ids) + len(row.ids) for row in own), default=0)
        if tokens >= model.model.batch_tokens:
            line["error"] = f"{tokens} tokens do not fit into {model.model.batch_tokens}"
            own = []
        if why := max((unknown_token(row, model.model.vocabulary) for row in own), default=""):
            line["error"], own = why, []
        lines.append(line)
        names.append(list(found) if own else [])
        rows += own
    scores = iter(model.scores(rows))
    for line, answers in zip(lines, names, strict=True):
        for name in answers:
            numbers = next(scores)
            if not np.isfinite(numbers).all():
                line["error"] = f"the model gives a score of {numbers[0]}"
                continue
            prefix = "" if name == "score" else f"{name}_"
            line[name] = float(numbers[0])
            if len(numbers) > 1:
                line[f"{prefix}deviation"] = float(numbers[1])
            if scale is not None:
                line[f"{prefix}reward"] = float(scale.normalised(numbers[0]))
        yield line


def _completions(item: Scored) -> dict[str, Completion]:
    if isinstance(item, PreferencePair):
        return {"chosen": item.chosen, "rejected": item.rejected}
    return {"score": item.completion}
