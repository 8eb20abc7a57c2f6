"""Why each token was trained, or was not: worked out from what the run stored about it.

The trainer records the tokens it computed. What it never computed is explained from the rollout:
how it ended, its advantage, and what the config masks. Codes index `Why.legend`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from agentrl.types import TERMINATION_RULES, Termination, TrainedTokens

PROMPT = "prompt"
ENVIRONMENT = "environment"
PREFIX = "reply prefix"
TRAINED = "trained"
TRUNCATED = "truncated: masked"
STALE = "stale: masked"
ZERO_ADVANTAGE = "zero advantage: not trained"
EVALUATION = "not in a batch (evaluation)"
MASKED = "masked: not in the loss"


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Facts of the rollout of a row that explain its tokens."""

    kind: str
    """`train` or `eval/NAME`."""
    step: int
    """Step of its batch."""
    termination: str
    """Reason the rollout ended."""
    advantage: float | None
    """None when it was not in a batch."""
    mask_truncated: bool
    """`algorithm.mask_truncated` of the run."""
    recorded_step: bool
    """Whether the trainer recorded any row of this step."""
    drop_reasons: Sequence[str]
    """Why rows of this step were dropped, as its metrics count them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """A reason for every token of a row."""

    codes: np.ndarray
    """[prompt + response] Index into `legend`."""
    legend: tuple[str, ...]
    """Reasons that occur."""


def explain(
    facts: Facts,
    *,
    n_prompt: int,
    mask: np.ndarray,
    versions: np.ndarray,
    turns: Sequence[Mapping[str, Any]],
    prefixes: Sequence[tuple[int, int]] = (),
    record: TrainedTokens | None,
) -> Why:
    """Reasons for the tokens of one row.

    Args:
        facts: of its rollout.
        n_prompt: tokens of the prompt.
        mask: [response] 1 where the policy sampled.
        versions: [response] weights that sampled the token.
        turns: spans over the response.
        prefixes: spans over the whole row that hold `chat.reply_prefix`.
        record: what the trainer computed; None if nothing.
    """
    reasons = np.full(n_prompt + len(mask), ENVIRONMENT, dtype=object)
    reasons[:n_prompt] = PROMPT
    response = reasons[n_prompt:]
    for turn in turns:
        if turn["role"] == "assistant":
            response[max(0, turn["start"]) : turn["end"]] = PREFIX
    for start, end in prefixes:
        reasons[start:end] = PREFIX
    sampled = mask.astype(bool)
    if record is None:
        response[sampled] = _not_recorded(facts, versions[sampled])
    else:
        trained = np.zeros(len(mask), dtype=bool)
        count = min(len(mask), len(record.trained))
        trained[:count] = record.trained[:count]
        old = versions < facts.step - 1
        response[sampled] = np.where(old[sampled], STALE, MASKED)
        response[trained] = TRAINED
    legend, codes = np.unique(reasons.astype(str), return_inverse=True)
    return Why(codes=codes, legend=tuple(legend.tolist()))


def prefix_spans(texts: Sequence[str], starts: Sequence[int], prefix: str) -> list[tuple[int, int]]:
    """Spans of `chat.reply_prefix` right before tokens that the policy sampled.

    Args:
        texts: of every token of the row.
        starts: positions where an assistant turn begins.
        prefix: empty for none.

    Example:
        >>> prefix_spans(["user", "``", "`py", "def"], [3], "```py")
        [(1, 3)]
    """
    found: list[tuple[int, int]] = []
    for end in starts if prefix else ():
        text, start = "", end
        while start > 0 and len(text) < len(prefix):
            start -= 1
            text = texts[start] + text
        if text == prefix:
            found.append((start, end))
    return found


def _not_recorded(facts: Facts, versions: np.ndarray) -> str:
    """The reason for all sampled tokens of a row that the trainer recorded nothing of."""
    if facts.kind != "train":
        return EVALUATION
    try:
        rule = TERMINATION_RULES[Termination(facts.termination)]
    except ValueError:  # of another version
        rule = None
    if rule is not None and not rule.in_loss:
        return f"dropped: {facts.termination}"
    if rule is not None and rule.truncated and facts.mask_truncated:
        return TRUNCATED
    if facts.advantage is None:
        # Filters drop whole groups; the metrics say why, if there was only one reason.
        others = [why for why in facts.drop_reasons if why not in {"truncated", *Termination}]
        return f"dropped: {others[0]}" if len(others) == 1 else "dropped: not in the batch"
    if facts.advantage == 0:
        return ZERO_ADVANTAGE
    if not facts.recorded_step:
        return TRAINED
    if len(versions) and versions.max() < facts.step - 1:
        return STALE
    return MASKED
