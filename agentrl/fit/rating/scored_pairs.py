"""Preference pairs with the scores that a reward model gives both answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from zlib import crc32

import numpy as np

from agentrl.errors import ChatError, DataError
from agentrl.fit.rating.answers import encode_answer
from agentrl.fit.reward_models.rollout_rewards import unknown_token
from agentrl.types import PreferencePair

if TYPE_CHECKING:
    from agentrl.batch.examples import ScoredTokens
    from agentrl.batch.records import FloatArray
    from agentrl.fit.rating.reward_model import OpenRewardModel
    from agentrl.reward.scale import RewardScale


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedPairs:
    """Pairs and the name of their source."""

    name: str
    """Source, as the user gave it."""
    pairs: Sequence[PreferencePair]
    """Pairs in the order of the source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredPairs:
    """Pairs with the scores of both answers. `_N` pairs, `_O` outputs of the model."""

    pairs: tuple[PreferencePair, ...]
    """[N] Pairs that could be scored."""
    chosen_NO: FloatArray
    """[N, O] Reward, and deviation where the model gives one."""
    rejected_NO: FloatArray
    """[N, O] The same of the rejected answers."""
    left_out: Counter[str]
    """Reasons for which others could not be scored, with their number."""

    @property
    def variances_N(self) -> FloatArray | None:
        """[N] Sum of both variances; None without deviations."""
        if self.chosen_NO.shape[1] == 1:
            return None
        return self.chosen_NO[:, 1] ** 2 + self.rejected_NO[:, 1] ** 2

    @property
    def labels_N(self) -> FloatArray:
        """[N] Probability of each label; 1 where only the label is known."""
        known = [pair.label_probability for pair in self.pairs]
        return np.array([1.0 if p is None else p for p in known])

    def head(self, number: int) -> ScoredPairs:
        """The pairs as one of several heads scores them, of which there is one output each."""
        return replace(
            self,
            chosen_NO=self.chosen_NO[:, [number]],
            rejected_NO=self.rejected_NO[:, [number]],
        )

    def combined(self, scales: Sequence[RewardScale]) -> ScoredPairs:
        """The pairs as all heads score them together: mean and deviation of whitened scores.

        Args:
            scales: [_K] of each head.
        """
        from agentrl.fit.reward_models.ensemble_scores import combined_scores

        return replace(
            self,
            chosen_NO=combined_scores(self.chosen_NO, scales),
            rejected_NO=combined_scores(self.rejected_NO, scales),
        )

    def part(self, indices: Sequence[int]) -> ScoredPairs:
        """Some of the pairs."""
        return ScoredPairs(
            pairs=tuple(self.pairs[index] for index in indices),
            chosen_NO=self.chosen_NO[list(indices)],
            rejected_NO=self.rejected_NO[list(indices)],
            left_out=Counter(),
        )


def score_pairs(
    model: OpenRewardModel,
    data: NamedPairs,
    *,
    done: Callable[[int, int], None] = lambda done, of: None,
) -> ScoredPairs:
    """Scores of both answers of every pair that can be scored.

    Raises:
        DataError: no pair can be scored, or a score is not finite; names the pair.
    """
    encoded = encode_pairs(model, data)
    kept, left_out = encoded.pairs, encoded.left_out
    scores = model.scores(encoded.rows, done)
    for index in np.flatnonzero(~np.isfinite(scores).all(axis=1)):
        raise DataError(
            f"{data.name}: the reward model gives an answer of pair {kept[index // 2].id} a score "
            f"of {scores[index, 0]}, expected a finite number; the checkpoint is broken"
        )
    return ScoredPairs(
        pairs=kept, chosen_NO=scores[::2], rejected_NO=scores[1::2], left_out=left_out
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedPairs:
    """Pairs as the token rows that a reward model reads."""

    pairs: tuple[PreferencePair, ...]
    """[N] Pairs that it can read."""
    rows: tuple[ScoredTokens, ...]
    """[2 N] The chosen and the rejected answer of each."""
    left_out: Counter[str]
    """Reasons for which others cannot be read, with their number."""


def encode_pairs(model: OpenRewardModel, data: NamedPairs) -> EncodedPairs:
    """Both answers of every pair that a reward model can read.

    Raises:
        DataError: there is no such pair.
    """
    kept: list[PreferencePair] = []
    rows: list[ScoredTokens] = []
    left_out: Counter[str] = Counter()
    for pair in data.pairs:
        try:
            both = [encode_answer(model.chat, pair, each) for each in (pair.chosen, pair.rejected)]
        except ChatError as error:
            left_out[str(error)] += 1
            continue
        if max(len(row.prompt_ids) + len(row.ids) for row in both) >= model.model.batch_tokens:
            left_out[f"too long for a batch of {model.model.batch_tokens} tokens"] += 1
            continue
        unknown = [unknown_token(row, model.model.vocabulary) for row in both]
        if why := max(unknown):
            left_out[why] += 1
            continue
        kept.append(pair)
        rows += both
    if not kept:
        reasons = "; ".join(f"{number}: {why}" for why, number in left_out.most_common())
        raise DataError(f"{data.name}: no pair can be scored ({reasons or 'it has none'})")
    return EncodedPairs(pairs=tuple(kept), rows=tuple(rows), left_out=left_out)


def halves_by_prompt(pairs: Sequence[PreferencePair], name: str) -> tuple[list[int], list[int]]:
    """Indices of two halves that share no prompt, the same ones in every run.

    Raises:
        DataError: all pairs have one prompt.
    """
    keys = [pair.task_id or repr((pair.prompt, pair.prompt_ids)) for pair in pairs]
    order = sorted(set(keys), key=lambda key: (crc32(key.encode()), key))
    if len(order) < 2:
        raise DataError(
            f"{name}: all pairs have one prompt, so no half of the prompts can be left for the "
            "temperature; name other pairs with --calibrate-on"
        )
    first = set(order[: len(order) // 2])
    halves: tuple[list[int], list[int]] = ([], [])
    for index, key in enumerate(keys):
        halves[key not in first].append(index)
    return halves
