"""Probes of a reward model: answers made worse, which must score below what they were made of."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from agentrl.errors import ChatError, DataError
from agentrl.fit.rating.answers import encode_answer
from agentrl.fit.rating.scored_pairs import ScoredPairs
from agentrl.metrics.intervals import wilson_interval
from agentrl.reward.probes import PROBES, degenerate_answers
from agentrl.types import PreferencePair

if TYPE_CHECKING:
    from agentrl.batch.examples import ScoredTokens
    from agentrl.fit.rating.reward_model import OpenRewardModel


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """One way of making an answer worse, tried on many pairs."""

    meaning: str
    """Description of the probe."""
    pairs: int
    """Chosen answers it was made of."""
    below: float
    """Share of them that score above the probe; 1 is what a good model has."""
    below_low: float
    """Lower end of Wilson's 95 % interval of the share."""
    below_high: float
    """Upper end of that interval."""
    mean_drop: float
    """Mean of the score of the answer less that of its probe."""


def probe_model(
    model: OpenRewardModel,
    measured: ScoredPairs,
    most: int,
    done: Callable[[int, int], None],
) -> tuple[dict[str, ProbeResult], int]:
    """Score answers that were made worse.

    Args:
        model: the reward model.
        measured: pairs with their scores.
        most: pairs of which probes are made, at most.
        done: called with rows that are scored, and all of them.

    Returns:
        Results by the names of `PROBES`, and the number of pairs without a text to change.
    """
    rows: list[ScoredTokens] = []
    of: list[tuple[str, int]] = []
    without = 0
    indices = range(min(most, len(measured.pairs)))
    for index in indices:
        pair = _with_text(model, measured.pairs[index])
        try:
            other = _with_text(model, _another_prompt(measured.pairs, index))
            made = {
                name: encode_answer(model.chat, pair, answer)
                for name, answer in degenerate_answers(pair, other).items()
            }
        except (DataError, ChatError):
            # Most often a call without words, or tokens of several turns.
            without += 1
            continue
        for name, row in made.items():
            if len(row.prompt_ids) + len(row.ids) < model.model.batch_tokens:
                rows.append(row)
                of.append((name, index))
    scores = model.scores(rows, done)[:, 0]
    drops: dict[str, list[float]] = {name: [] for name in PROBES}
    for (name, index), score in zip(of, scores, strict=True):
        drops[name].append(float(measured.chosen_NO[index, 0] - score))
    return {name: _probe(name, found) for name, found in drops.items() if found}, without


def _probe(name: str, drops: Sequence[float]) -> ProbeResult:
    below = [float(drop > 0) for drop in drops]
    low, high = wilson_interval(below) or (0.0, 1.0)
    return ProbeResult(
        meaning=PROBES[name],
        pairs=len(drops),
        below=math.fsum(below) / len(drops),
        below_low=low,
        below_high=high,
        mean_drop=math.fsum(drops) / len(drops),
    )


def _another_prompt(pairs: Sequence[PreferencePair], index: int) -> PreferencePair:
    """The next pair with another prompt; the pair itself where there is none."""
    prompt = (pairs[index].prompt, pairs[index].prompt_ids)
    for step in range(1, len(pairs)):
        other = pairs[(index + step) % len(pairs)]
        if (other.prompt, other.prompt_ids) != prompt:
            return other
    return pairs[index]


def _with_text(model: OpenRewardModel, pair: PreferencePair) -> PreferencePair:
    """Sampled tokens with their words alone: stored texts hold the stop token, too."""
    if not pair.chosen.ids:
        return pair
    return replace(pair, chosen=replace(pair.chosen, text=model.decode(pair.chosen.ids)))
