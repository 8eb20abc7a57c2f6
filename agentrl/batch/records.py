"""The records that the batch stage passes to the trainer: packed rows with every number set.

Legend of the shape suffixes: `_N` rows of a micro-batch, `_S` segments of it (stretches of tokens),
`_T` packed tokens (what the model reads), `_R` response positions of all rows (what a loss may look
at).

Invariants: weights already hold the global denominator, so the loss of an optimizer update is the
plain sum over its micro-batches, however the rows were divided. Response positions name the
packed position that predicts them (`source_R`) instead of assuming it to be the one before, because
rows may share the tokens of a common prefix.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from agentrl.errors import DataError
from agentrl.metrics.bag import MetricBag
from agentrl.types import ImageSpan, Trajectory

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class RowKey:
    """Names one row in messages and lookups."""

    group_id: str
    """`Trajectory.group_id`."""
    rollout_id: str
    """`Trajectory.rollout_id`."""
    row_index: int
    """`Trajectory.row_index`."""

    @classmethod
    def of(cls, row: Trajectory) -> RowKey:
        """Key of a row among those of its step."""
        return cls(group_id=row.group_id, rollout_id=row.rollout_id, row_index=row.row_index)

    def __str__(self) -> str:
        return f"{self.rollout_id}[{self.row_index}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row ready for packing: checked, without tokens after the last trained one."""

    key: RowKey
    """Which row."""
    input_ids: IntArray
    """[prompt + response] What the model reads."""
    prompt_length: int
    """Tokens before the first response position; at least 1."""
    mask_R: BoolArray
    """True where a token is trained."""
    rollout_log_probs_R: FloatArray
    """The sampler's log-probabilities; any value where the mask is False."""
    sampled_R: BoolArray
    """True where the policy sampled the token, trained or not; the environment put the others."""
    advantages_R: FloatArray
    """Advantage of each token; any value where the mask is False."""
    weight: float
    """Aggregation weight of each trained token, global denominator included."""
    temperature: float
    """Sampling temperature; the trainer divides logits by it."""
    images: tuple[ImageSpan, ...] = ()
    """Images among `input_ids`, by position."""

    @property
    def length(self) -> int:
        """Tokens the model reads."""
        return len(self.input_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedImage:
    """An image among the packed tokens of a micro-batch."""

    span: ImageSpan
    """With `start` as a packed position."""
    row: RowKey
    """Row that shows it; the first of those that share it."""
    number: int
    """Number of the image in its row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """Rows packed for one forward and backward pass, each token of a shared prefix once.

    The packed tokens are split into segments, which form trees. A row is the path from a root to
    one segment; a token attends to the segments above its own and causally inside its own. Without
    sharing every row is a root.

    Example:
        Rows `[1, 2, 3]` and `[1, 2, 4]` are `input_ids_T = [1, 2, 3, 4]`, `lengths_S = [2, 1, 1]`,
        `parents_S = [-1, 0, 0]`, `segment_N = [1, 2]` and `position_ids_T = [0, 1, 2, 2]`.

    Raises:
        DataError: lengths that differ, or a segment that does not follow the tree above it.
    """

    rows: tuple[RowKey, ...]
    """[N] Which rows. Empty for padding."""
    segment_N: IntArray
    """[N] Segment with which each row ends."""
    temperature_N: FloatArray
    """[N] Sampling temperature of each row."""
    lengths_S: IntArray
    """[S] Packed tokens of each segment."""
    parents_S: IntArray
    """[S] The segment that each one continues, -1 for a root. A tree is laid out depth first: the
    segments below one follow it without a gap."""
    input_ids_T: IntArray
    """[T] Token ids."""
    position_ids_T: IntArray
    """[T] Positions, from 0 in every row."""
    row_R: IntArray
    """[R] Index into `rows`."""
    source_R: IntArray
    """[R] Packed position whose hidden state predicts this response position."""
    target_R: IntArray
    """[R] Token id at this response position."""
    mask_R: BoolArray
    """[R] True where the token is trained. Every other `_R` array may hold anything elsewhere."""
    sampled_R: BoolArray
    """[R] True where the policy sampled the token, trained or not."""
    rollout_log_probs_R: FloatArray
    """[R] The sampler's log-probabilities."""
    advantages_R: FloatArray
    """[R] Advantage of each token."""
    weights_R: FloatArray
    """[R] Aggregation weight of each token, global denominator included."""
    images: tuple[PackedImage, ...] = ()
    """Images of the rows, by packed position. No segment ends inside one."""

    def __post_init__(self) -> None:
        packed, ids, positions = (
            int(self.lengths_S.sum()),
            len(self.input_ids_T),
            len(self.position_ids_T),
        )
        if not packed == ids == positions:
            raise DataError(
                f"MicroBatch: lengths_S sums to {packed}, but there are {ids} input ids and "
                f"{positions} positions"
            )
        if not len(self.rows) == len(self.segment_N) == len(self.temperature_N):
            raise DataError(
                f"MicroBatch: {len(self.rows)} rows, {len(self.segment_N)} last segments, "
                f"{len(self.temperature_N)} temperatures"
            )
        if len(self.lengths_S) != len(self.parents_S):
            raise DataError(
                f"MicroBatch: {len(self.lengths_S)} lengths of segments, "
                f"{len(self.parents_S)} parents"
            )
        _check_depth_first(self.parents_S)
        response = {
            name: len(getattr(self, name))
            for name in (
                "row_R", "source_R", "target_R", "mask_R", "sampled_R",
                "rollout_log_probs_R", "advantages_R", "weights_R",
            )
        }  # fmt: skip
        if len(set(response.values())) != 1:
            raise DataError(f"MicroBatch: unequal response lengths {response}")

    @property
    def num_tokens(self) -> int:
        """T: tokens the model reads."""
        return len(self.input_ids_T)

    @property
    def num_action_tokens(self) -> int:
        """Number of trained tokens."""
        return int(self.mask_R.sum())


def _check_depth_first(parents_S: IntArray) -> None:
    open_path = [-1]
    for segment, parent in enumerate(parents_S.tolist()):
        while open_path and open_path[-1] != parent:
            open_path.pop()
        if not open_path:
            raise DataError(
                f"MicroBatch: segment {segment} continues {parent}, which is not on the path to "
                f"the segment before it; parents {parents_S.tolist()} are not depth first"
            )
        open_path.append(segment)


@dataclass(frozen=True, slots=True, kw_only=True)
class LossNeeds:
    """Requirements of a loss on the batch beside trained tokens."""

    mask_keys: tuple[str, ...] = ("response_mask",)
    """Masks whose tokens it looks at; see `MASK_KEYS`."""
    zero_advantage_rows: bool = False
    """Whether a row has a gradient although its advantage is zero, so that it must be computed."""
    penalty_only: bool = False
    """Whether such a row is moved by a penalty alone (KL, entropy), and learns nothing."""
    whole_rollouts: bool = False
    """Whether all rows of a rollout must be in one micro-batch: its ratio is one of sequences."""

    @property
    def teaches_without_advantage(self) -> bool:
        """True if the policy learns of a row whose advantage is zero."""
        return self.zero_advantage_rows and not self.penalty_only


MASK_KEYS: Mapping[str, str] = {
    "response_mask": "tokens the policy sampled",
    "final_response_mask": "those of them that are trained: not truncated away, not too old",
    "observation_mask": "response tokens the environment put there",
}
"""Masks a loss may declare, with what they are true for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskCounts:
    """Counts of what a mask covers of an update, over all ranks and micro-batches."""

    batch_num_tokens: int
    """Tokens under the mask, those of rows that are not computed included."""
    global_valid_samples: int
    """Rollouts with at least one such token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeUpdate:
    """Facts about all of an update, for a rank that was given its share of the rows."""

    rows: tuple[RowKey, ...]
    """Every row that some rank computes, each once."""
    num_trained: int
    """Trained tokens of these rows."""
    digest: str
    """Hash of which rank computes which row with which numbers: the same on every rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedBatch:
    """One optimizer update: micro-batches, and the global counts their weights were made with."""

    micro_batches: tuple[MicroBatch, ...]
    """Empty when no row has a gradient; the update is then skipped."""
    global_tokens: int
    """N: trained tokens of the update, those of rows without a gradient included."""
    global_sequences: int
    """B: rollouts of the update with at least one trained token."""
    horizon: int
    """H of `seq-mean-token-sum-norm`, in tokens."""
    counts: Mapping[str, MaskCounts] = field(default_factory=dict[str, MaskCounts])
    """Counts by mask key, for the keys that the loss declares."""
    epoch: int = 0
    """Which pass over the step's rollouts this update belongs to."""
    whole: WholeUpdate | None = None
    """Set where the micro-batches are the share of one rank; None where they are all."""

    @property
    def rows(self) -> tuple[RowKey, ...]:
        """Every row of the update that is computed, here or by another rank."""
        if self.whole is not None:
            return self.whole.rows
        return tuple(key for micro in self.micro_batches for key in micro.rows)

    @property
    def num_tokens(self) -> int:
        """Tokens the model reads of the micro-batches that are here."""
        return sum(micro.num_tokens for micro in self.micro_batches)


RowNumbers = Mapping[RowKey, FloatArray]
"""[R of the row] One number for each response position by row; anything where it is masked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowCredit:
    """Credit of the tokens of one row from the rewards alone."""

    key: RowKey
    """Which row."""
    mask_R: BoolArray
    """True where a token is trained."""
    credit_R: FloatArray
    """With a critic the reward of the token, otherwise its advantage before the penalty; 0 where
    the mask is False."""
    time_R: IntArray
    """Number of the token (or of its turn) in the rollout: discounts go by the difference; 0 where
    the mask is False."""
    order_R: IntArray | None
    """Number of the token in time; None where the order of rows and positions is that of time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditPlan:
    """Advantages in the making: from rewards alone, before a model is asked for KL or values."""

    rollouts: tuple[tuple[RowCredit, ...], ...]
    """Rows of each rollout of the step that takes part in the loss, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBatch:
    """Everything one `Trainer.step` needs."""

    updates: tuple[PackedBatch, ...]
    """Optimizer updates in order, over epochs and minibatches."""
    advantages: Mapping[str, float]
    """Mean advantage of the trained tokens by `rollout_id`, for every rollout that takes part in
    the loss; while `credit` is open, what the group baseline leaves of its reward."""
    metrics: MetricBag
    """Metrics of the batch stage."""
    credit: CreditPlan | None = None
    """What `compute_credit` needs to fill in the advantages; None when they are final."""
    returns: RowNumbers | None = None
    """Targets of the critic by row, once computed; None without one."""
    untrained: PackedBatch | None = None
    """A sample of the rows that no update computes, for the metrics of the policy: the weights of
    its tokens add up to the tokens of all these rows (`batch.untrained`). None where there are none
    such rows."""
    teacher_prompts: Mapping[RowKey, IntArray] | None = None
    """Prompt with a hint by row, which a teacher reads in place of the row's own; None without such
    a teacher."""

    @property
    def num_tokens(self) -> int:
        """Tokens the model reads in the whole step."""
        return sum(update.num_tokens for update in self.updates)
