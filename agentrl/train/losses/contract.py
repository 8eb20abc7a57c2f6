"""The contract of a policy loss: what it is given and what it returns.

A loss never divides by what it sees: a micro-batch is an accident of packing. It returns one number
per token, and the framework masks, multiplies and sums with weights that hold the global
denominators; or it forms a sum of its own with `LossInputs.aggregate`, which divides by the global
counts of the mask it names. It keeps no state: micro-batches may be computed at once, in threads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from agentrl.batch.denominators import LossAggMode
from agentrl.batch.records import MaskCounts
from agentrl.config.schema import AlgorithmSection
from agentrl.errors import TrainError

MAX_LOG_RATIO = 20.0
"""The log of a ratio is clamped to plus or minus this before exp (FORMULAS F3, C.6)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossInputs:
    """One micro-batch, as a policy loss sees it.

    `_R` are response positions of all its rows. Numbers are 0 wherever they mean nothing, whatever
    stood there: log-probabilities outside `mask_R` and the declared masks, advantages outside
    `mask_R`, numbers of the sampler at tokens that it did not sample.
    """

    log_probs_R: Tensor
    """[R] Under the policy at hand, with gradient."""
    old_log_probs_R: Tensor
    """[R] What the ratio is taken to; `algorithm.old_log_probs` chooses which policy that is."""
    rollout_log_probs_R: Tensor
    """[R] The sampler's."""
    ref_log_probs_R: Tensor | None
    """[R] The reference policy's; None without a penalty."""
    advantages_R: Tensor
    """[R] Advantage of each trained token."""
    entropy_R: Tensor
    """[R] Entropy in nats, without gradient."""
    mask_R: Tensor
    """[R] bool, True where a token is trained."""
    masks: Mapping[str, Tensor]
    """The declared masks by key, [R] bool each; see `agentrl.batch.records.MASK_KEYS`."""
    sequence_R: Tensor
    """[R] int64 index of the rollout; the rows of a rollout share it."""
    num_sequences: int
    """Rollouts in the micro-batch."""
    counts: Mapping[str, MaskCounts]
    """Share of the whole update that the mask covers, by declared key."""
    algorithm: AlgorithmSection
    """Resolved."""
    whole_rollouts: bool = False
    """Whether all rows of a rollout are in this micro-batch."""
    loss_scale: float = 1.0
    """What the backend's averaging has to be undone with; only for `apply_loss_scale=False`."""

    @property
    def batch_num_tokens(self) -> Mapping[str, int]:
        """By declared key: tokens of the whole update under the mask."""
        return {key: count.batch_num_tokens for key, count in self.counts.items()}

    @property
    def global_valid_samples(self) -> Mapping[str, int]:
        """By declared key: rollouts of the whole update with such a token."""
        return {key: count.global_valid_samples for key, count in self.counts.items()}

    def log_ratio(self) -> Tensor:
        """[R] lp - lp_old, 0 where nothing is trained; not clamped."""
        return self.trained(self.log_probs_R - self.old_log_probs_R)

    def trained(self, values_R: Tensor) -> Tensor:
        """[R] The same where a token is trained, 0 elsewhere."""
        return torch.where(self.mask_R, values_R, 0.0)

    def sequence_mean(self, values_R: Tensor, *, mask: str | None = None) -> Tensor:
        """[R] At every token the mean over its rollout's tokens under a mask, 0 without any.

        Args:
            values_R: [R].
            mask: a declared key; default the trained tokens.

        Raises:
            TrainError: the loss did not declare `whole_rollouts`.
        """
        self._need_whole_rollouts("sequence_mean")
        mask_R = self.mask_R if mask is None else self._mask(mask)
        return _sequence_mean(values_R, mask_R, self.sequence_R, self.num_sequences)

    def aggregate(self, loss_R: Tensor, *, mask: str, mode: LossAggMode | None = None) -> Tensor:
        """Scalar: per-token losses over a mask, divided by the global counts of that mask (F1).

        Summed over the micro-batches of an update this is the loss of the update, however it
        was divided.

        Args:
            loss_R: [R]; anything outside the mask.
            mask: a declared key.
            mode: default `algorithm.loss_agg_mode`.

        Raises:
            TrainError: an undeclared key, a mask that covers nothing of the update, or a mean over
                a rollout whose rows may be in other micro-batches.
        """
        mask_R, counts = self._mask(mask), self._counts(mask)
        mode = mode or self.algorithm.loss_agg_mode
        kept = torch.where(mask_R, loss_R, loss_R.new_zeros(()))
        tokens, sequences = counts.batch_num_tokens, counts.global_valid_samples
        if mode == "token-mean":
            return kept.sum() / tokens
        if mode == "seq-mean-token-mean":
            self._need_whole_rollouts("aggregate with seq-mean-token-mean")
            own = _sequence_sums(mask_R.to(loss_R.dtype), self.sequence_R, self.num_sequences)
            each = _sequence_sums(kept, self.sequence_R, self.num_sequences)
            return (each / own.clamp(min=1.0)).sum() / sequences
        if mode == "seq-mean-token-sum":
            return kept.sum() / sequences
        assert self.algorithm.horizon is not None
        return kept.sum() / (sequences * self.algorithm.horizon)

    def _mask(self, key: str) -> Tensor:
        if key not in self.masks:
            raise TrainError(
                f"the loss asks for mask {key!r}, but it declares {sorted(self.masks)}; name it in "
                "@policy_loss(..., masks=(...))"
            )
        return self.masks[key]

    def _counts(self, key: str) -> MaskCounts:
        if key not in self.counts:
            raise TrainError(
                f"there are no global counts of mask {key!r}, only of {sorted(self.counts)}; the "
                "batch has to be built with needs=needs_of(algorithm)"
            )
        counts = self.counts[key]
        if counts.batch_num_tokens < 1 or counts.global_valid_samples < 1:
            raise TrainError(
                f"mask {key!r} covers {counts.batch_num_tokens} tokens of "
                f"{counts.global_valid_samples} rollouts of the update: a loss over it would be "
                "divided by zero; look at `counts` before aggregating"
            )
        return counts

    def _need_whole_rollouts(self, what: str) -> None:
        if not self.whole_rollouts:
            raise TrainError(
                f"{what} needs all rows of a rollout in one micro-batch; declare it with "
                "@policy_loss(..., whole_rollouts=True)"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLosses:
    """The result of a policy loss: `loss_R`, `total` or both."""

    loss_R: Tensor | None = None
    """[R] One loss per token, not weighted. The framework takes the trained tokens, multiplies by
    the sampler correction and by the aggregation weights, and sums."""
    total: Tensor | None = None
    """A scalar that is a sum over tokens with global denominators already (`aggregate`). It is
    added as it is; no correction multiplies it."""
    metrics: Mapping[str, Tensor | float] = field(default_factory=dict[str, "Tensor | float"])
    """Name, with `@mean` (the default), `@sum`, `@max` or `@min`, to [R] values that are
    reduced over trained tokens, or to one number of the micro-batch; a mean of those is weighted
    with its trained tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSums:
    """A loss over one micro-batch."""

    loss: Tensor
    """Scalar: sum over trained tokens of weight times token loss."""
    value_R: Tensor
    """[R] What its metrics are taken of, without gradient."""
    share_R: Tensor
    """[R] The terms of the sum, without gradient."""


OPTIONAL_KEYS = ("dual_clip", "importance_level")
"""Keys of `algorithm` that only some losses read; set beside another loss they have no effect."""

LossFunction = Callable[[LossInputs], TokenLosses]


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSpec:
    """A policy loss and what it declares; see `policy_loss`."""

    name: str
    """Name in the config."""
    function: LossFunction
    """The loss."""
    masks: tuple[str, ...] = ("response_mask",)
    """Masks it looks at."""
    zero_advantage_rows: bool = False
    """Whether tokens have a gradient although their advantage is zero."""
    whole_rollouts: bool | Callable[[AlgorithmSection], bool] = False
    """Whether all rows of a rollout must be in one micro-batch."""
    correction: str = "none"
    """Sampler correction where the config names none."""
    apply_loss_scale: bool = True
    """False if the loss undoes the backend's averaging itself."""
    reads: tuple[str, ...] | None = None
    """Which of `OPTIONAL_KEYS` it reads; None where it does not declare them."""
    rollout_ratio: bool = False
    """Whether its ratio is one of whole rollouts, so that tokens are averaged per rollout."""

    @property
    def ignored_keys(self) -> tuple[str, ...]:
        """Those of `OPTIONAL_KEYS` that have no effect beside this loss, as far as it declares."""
        return () if self.reads is None else tuple(k for k in OPTIONAL_KEYS if k not in self.reads)


def _sequence_mean(
    values_R: Tensor, mask_R: Tensor, sequence_R: Tensor, num_sequences: int
) -> Tensor:
    kept = torch.where(mask_R, values_R, values_R.new_zeros(()))
    own = _sequence_sums(mask_R.to(kept.dtype), sequence_R, num_sequences).clamp(min=1.0)
    return (_sequence_sums(kept, sequence_R, num_sequences) / own)[sequence_R]


def _sequence_sums(values_R: Tensor, sequence_R: Tensor, num_sequences: int) -> Tensor:
    return values_R.new_zeros(num_sequences).index_add(0, sequence_R, values_R)
