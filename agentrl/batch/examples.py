"""Examples of a fit into rows and updates: conversations, and pairs of answers to one prompt.

The rows of an example stay in one micro-batch, and so on one rank: they share a `rollout_id`. Their
weight holds the global denominator, so the loss of an update is the plain sum over micro-batches.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from agentrl.batch.denominators import count, token_weight
from agentrl.batch.packing import pack_rows
from agentrl.batch.records import MicroBatch, PackedBatch, Row, RowKey
from agentrl.config.presets import LossAggMode
from agentrl.errors import DataError
from agentrl.types import ImageSpan

CHOSEN, REJECTED = 0, 1
"""`RowKey.row_index` of the answers of a pair."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerTokens:
    """Tokens that follow a prompt."""

    ids: tuple[int, ...]
    """[_T] Tokens of the policy and of the environment in order."""
    mask: tuple[int, ...]
    """[_T] 1 = trained."""
    images: tuple[ImageSpan, ...] = ()
    """Images among the tokens of the prompt and of this answer, by position."""

    def __post_init__(self) -> None:
        if len(self.ids) != len(self.mask):
            raise DataError(f"an answer of {len(self.ids)} ids has a mask of {len(self.mask)}")

    @property
    def trained(self) -> int:
        """N, the number of trained tokens."""
        return sum(self.mask)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredTokens:
    """One answer as a reward model reads it; its last token is where the score is read."""

    prompt_ids: tuple[int, ...]
    """[_P] Tokens before the answer; may be empty."""
    ids: tuple[int, ...]
    """[_T] The answer, up to the stop token that ends it; not empty unless the prompt is not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A prompt with one answer, which may have a verdict, or with a better and a worse one."""

    id: str
    """Unique among the data of a fit."""
    prompt_ids: tuple[int, ...]
    """[_P] Tokens before the answers; at least one."""
    answers: tuple[AnswerTokens, ...]
    """One, or `CHOSEN` and `REJECTED`."""
    weight: float = 1.0
    """Factor of its loss."""
    margin: float | None = None
    """Reward of the chosen answer less that of the rejected one; None unknown."""
    label_probability: float | None = None
    """Probability that the chosen answer is the better one, or that the verdict is right; None
    takes the label as certain."""
    head_weights: tuple[float, ...] = ()
    """[_K] Factor of its loss for each head of a reward model; empty is 1 for all."""
    desirable: bool | None = None
    """Verdict on an answer without another one to compare with (KTO); None has none."""

    def __post_init__(self) -> None:
        found = {
            "weight": (self.weight, 0.0, math.inf),
            "margin": (self.margin, -math.inf, math.inf),
            "label_probability": (self.label_probability, 0.0, 1.0),
        }
        for name, (value, low, high) in found.items():
            if value is not None and not (math.isfinite(value) and low <= value <= high):
                raise DataError(
                    f"example {self.id!r}: {name} is {value:g}; expected a finite number"
                    + (f" in [{low:g}, {high:g}]" if low > -math.inf else "")
                )

    @property
    def num_tokens(self) -> int:
        """Tokens of the longest row."""
        return len(self.prompt_ids) + max(len(answer.ids) for answer in self.answers)

    def packed_tokens(self, *, prefix_sharing: bool) -> int:
        """Most tokens that its rows take in a micro-batch, the prompt once where it is shared."""
        prompts = 1 if prefix_sharing else len(self.answers)
        # A row that is scored has one token more.
        return prompts * len(self.prompt_ids) + sum(1 + len(answer.ids) for answer in self.answers)


def why_unusable(example: Example, *, pairs: bool) -> str:
    """Why an example cannot be trained on; empty if it can."""
    if len(example.answers) != 1 + pairs:
        return f"it has {len(example.answers)} answers, expected {1 + pairs}"
    if not example.prompt_ids:
        return "its prompt has no token, and the first token needs one that predicts it"
    for answer in example.answers:
        if not answer.trained:
            return "an answer has no token of an assistant"
    if pairs and example.answers[CHOSEN] == example.answers[REJECTED]:
        return "both answers are the same tokens"
    return ""


def likelihood_update(
    examples: Sequence[Example],
    *,
    mode: LossAggMode,
    horizon: int,
    micro_batch_tokens: int,
    prefix_sharing: bool = True,
) -> PackedBatch:
    """One update over the trained tokens of answers, weighted by `token_weight`.

    Args:
        examples: of the whole update, over all ranks.
        mode: how the losses of tokens are averaged.
        horizon: H of `seq-mean-token-sum-norm`.
        micro_batch_tokens: most packed tokens in a micro-batch.
        prefix_sharing: whether rows share the tokens of a common prefix.

    Raises:
        DataError: no example, or one that is larger than a micro-batch.
    """
    lengths = [sum(answer.trained for answer in example.answers) for example in examples]
    counts, rows = count(lengths, horizon=horizon), list[Row]()
    for example, length in zip(examples, lengths, strict=True):
        weight = token_weight(
            mode,
            rollout_tokens=length,
            global_tokens=counts.global_tokens,
            global_sequences=counts.global_sequences,
            horizon=horizon,
        )
        rows += _likelihood_rows(example, weight * example.weight)
    return _packed(
        examples,
        rows,
        counts.global_tokens,
        horizon=horizon,
        micro_batch_tokens=micro_batch_tokens,
        prefix_sharing=prefix_sharing,
    )


def pair_update(
    examples: Sequence[Example], *, micro_batch_tokens: int, prefix_sharing: bool = True
) -> PackedBatch:
    """One update over pairs: each token weighs `Example.weight / P`, P the pairs of the update.

    Of answers with a verdict P is their number.

    Raises:
        DataError: as `likelihood_update`.
    """
    rows = [
        row
        for example in examples
        for row in _likelihood_rows(example, example.weight / len(examples))
    ]
    tokens = sum(answer.trained for example in examples for answer in example.answers)
    return _packed(
        examples,
        rows,
        tokens,
        horizon=1,
        micro_batch_tokens=micro_batch_tokens,
        prefix_sharing=prefix_sharing,
    )


def score_update(
    examples: Sequence[Example], *, micro_batch_tokens: int, prefix_sharing: bool = True
) -> PackedBatch:
    """One update over whole answers: one response position a row, behind its last token.

    A value model gives there what the answer is worth with its last token in sight, which is the
    score of a `ForSequenceClassification` model. Each row weighs `Example.weight / P`.

    Raises:
        DataError: as `likelihood_update`.
    """
    pairs = len(examples)
    rows = [row for e in examples for row in score_rows_of(e, e.weight / pairs)]
    return _packed(
        examples,
        rows,
        len(rows),
        horizon=1,
        micro_batch_tokens=micro_batch_tokens,
        prefix_sharing=prefix_sharing,
    )


def score_key(index: int) -> RowKey:
    """Name of the row at `index` among those of `score_rows`."""
    return RowKey(group_id="scored", rollout_id=str(index), row_index=0)


def score_rows(
    rows: Sequence[ScoredTokens], *, micro_batch_tokens: int, prefix_sharing: bool = True
) -> tuple[MicroBatch, ...]:
    """Whole answers that are only scored: as `score_update`, without examples and weights.

    Args:
        rows: any number; each is called `score_key(index)`.
        micro_batch_tokens: most packed tokens in a micro-batch; a row takes one more than it has.
        prefix_sharing: whether rows share the tokens of a common prefix.

    Raises:
        DataError: a row without tokens, or one that is larger than a micro-batch.
    """
    made: list[Row] = []
    for index, row in enumerate(rows):
        tokens = len(row.prompt_ids) + len(row.ids)
        if not 0 < tokens < micro_batch_tokens:
            raise DataError(
                f"row {index} to score has {tokens} tokens, expected 1 to "
                f"{micro_batch_tokens - 1}: a batch holds {micro_batch_tokens}, one of them behind "
                "the row; raise the tokens of a batch, or leave the row out"
            )
        made.append(end_row(score_key(index), (*row.prompt_ids, *row.ids), 1.0))
    return pack_rows(made, micro_batch_tokens=micro_batch_tokens, prefix_sharing=prefix_sharing)


def _likelihood_rows(example: Example, weight: float) -> list[Row]:
    return [
        answer_row(_key(example, index), example.prompt_ids, answer, weight)
        for index, answer in enumerate(example.answers)
    ]


def _key(example: Example, index: int) -> RowKey:
    return RowKey(group_id=example.id, rollout_id=example.id, row_index=index)


def answer_row(
    key: RowKey, prompt_ids: tuple[int, ...], answer: AnswerTokens, weight: float
) -> Row:
    """A row whose trained tokens are those of an answer."""
    mask = np.array(answer.mask, dtype=np.bool_)
    end = int(mask.nonzero()[0][-1]) + 1  # nothing is trained behind it
    return Row(
        key=key,
        input_ids=np.array([*prompt_ids, *answer.ids[:end]], dtype=np.int64),
        prompt_length=len(prompt_ids),
        mask_R=mask[:end],
        rollout_log_probs_R=np.zeros(end),
        sampled_R=mask[:end],
        advantages_R=np.zeros(end),
        weight=weight,
        temperature=1.0,
        images=tuple(span for span in answer.images if span.end <= len(prompt_ids) + end),
    )


def score_rows_of(example: Example, weight: float) -> list[Row]:
    """The rows of an example in `score_update`."""
    return [
        end_row(_key(example, index), (*example.prompt_ids, *answer.ids), weight)
        for index, answer in enumerate(example.answers)
    ]


def end_row(key: RowKey, ids: tuple[int, ...], weight: float) -> Row:
    """A row with one response position, behind its last token."""
    one = np.ones(1, dtype=np.bool_)
    return Row(
        key=key,
        # The value of a response token is read at the token before it, so a last token is needed
        # behind the answer; no other token sees it, so any does.
        input_ids=np.array([*ids, ids[-1]], dtype=np.int64),
        prompt_length=len(ids),
        mask_R=one,
        rollout_log_probs_R=np.zeros(1),
        sampled_R=one,
        advantages_R=np.zeros(1),
        weight=weight,
        temperature=1.0,
    )


def _packed(
    examples: Sequence[Example],
    rows: Sequence[Row],
    tokens: int,
    *,
    horizon: int,
    micro_batch_tokens: int,
    prefix_sharing: bool,
) -> PackedBatch:
    if not examples:
        raise DataError("an update needs at least one example, got none")
    doubled = [name for name, number in Counter(e.id for e in examples).items() if number > 1]
    if doubled:
        raise DataError(f"example {doubled[0]!r} is twice in one update; ids must be unique")
    micros = pack_rows(
        rows,
        micro_batch_tokens=micro_batch_tokens,
        prefix_sharing=prefix_sharing,
        whole_rollouts=True,
    )
    return PackedBatch(
        micro_batches=micros,
        global_tokens=tokens,
        global_sequences=len(examples),
        horizon=horizon,
    )
