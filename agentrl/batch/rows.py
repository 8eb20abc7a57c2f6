"""Trajectories into rows: checked, masked by age, truncated after the last token a loss needs."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from agentrl.batch.records import BoolArray, FloatArray, IntArray, Row, RowKey
from agentrl.errors import DataError
from agentrl.types import ImageSpan, Trajectory

_ROUNDING = 1e-3
"""A log-probability may be this far above 0; what is further is none."""


class RowFacts(Protocol):
    """Facts of a checked row by which it is decided where it is computed, and what it counts."""

    @property
    def key(self) -> RowKey:
        """Names the row in messages and lookups."""
        ...

    @property
    def mask_R(self) -> BoolArray:
        """[R] True where a token is trained."""
        ...

    @property
    def length(self) -> int:
        """Tokens the model reads."""
        ...

    @property
    def num_trained(self) -> int:
        """Tokens that are trained."""
        ...


AnyRow = TypeVar("AnyRow", bound=RowFacts)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedRow:
    """A row without the numbers that depend on other rows. Fields are those of `Row`."""

    key: RowKey
    """Which row."""
    input_ids: IntArray
    """[prompt + response]."""
    prompt_length: int
    """Tokens before the first response position."""
    mask_R: BoolArray
    """True where a token is trained."""
    sampled_R: BoolArray
    """True where the policy sampled the token."""
    rollout_log_probs_R: FloatArray
    """The sampler's; any value where `sampled_R` is False."""
    temperature: float
    """Sampling temperature."""
    images: tuple[ImageSpan, ...] = ()
    """Images among `input_ids`."""

    @property
    def length(self) -> int:
        """Tokens the model reads."""
        return len(self.input_ids)

    @property
    def num_trained(self) -> int:
        """Tokens that are trained."""
        return int(self.mask_R.sum())

    def with_numbers(self, *, advantages_R: FloatArray, weight: float) -> Row:
        """The row of one update."""
        return Row(
            key=self.key,
            input_ids=self.input_ids,
            prompt_length=self.prompt_length,
            mask_R=self.mask_R,
            rollout_log_probs_R=self.rollout_log_probs_R,
            sampled_R=self.sampled_R,
            advantages_R=advantages_R,
            weight=weight,
            temperature=self.temperature,
            images=self.images,
        )


def check_row(
    trajectory: Trajectory, *, oldest_version: int | None, looked_at: Collection[str] = ()
) -> CheckedRow | None:
    """One checked row; None if no loss looks at any of its tokens.

    Tokens after the last one that is trained or looked at are dropped: nothing depends on them.

    Args:
        trajectory: the row.
        oldest_version: tokens sampled by older weights are not trained; None trains all.
        looked_at: masks (`MASK_KEYS`) whose tokens matter although they are not trained.

    Raises:
        DataError: a broken row, naming it and the value.
    """
    key = RowKey.of(trajectory)
    if not trajectory.prompt_ids:
        raise DataError(f"row {key}: prompt_ids is empty; nothing predicts the first token")
    if not trajectory.temperature > 0:
        raise DataError(
            f"row {key}: temperature is {trajectory.temperature}; log-probabilities of greedy "
            "samples cannot be trained on"
        )
    odd = sorted(set(trajectory.response_mask) - {0, 1})
    if odd:
        raise DataError(f"row {key}: response_mask holds {odd}, expected only 0 and 1")
    sampled = np.array(trajectory.response_mask, dtype=np.bool_)
    mask = sampled.copy()
    if oldest_version is not None:
        mask &= np.fromiter(trajectory.policy_versions, np.int64, len(mask)) >= oldest_version
    seen = mask.copy()
    if "response_mask" in looked_at:
        seen |= sampled
    if "observation_mask" in looked_at:
        seen |= ~sampled
    if not seen.any():
        return None
    length = int(np.flatnonzero(seen)[-1]) + 1
    mask, sampled, seen = mask[:length], sampled[:length], seen[:length]
    log_probs = np.array(trajectory.rollout_log_probs[:length], dtype=np.float64)
    likely = np.isfinite(log_probs) & (log_probs <= _ROUNDING)
    bad = np.flatnonzero(seen & sampled & ~likely)
    if len(bad):
        raise DataError(
            f"row {key}: rollout_log_probs is {log_probs[bad[0]]} at response position {bad[0]} "
            f"({len(bad)} such positions), expected a finite number, at most 0, for every sampled "
            "token"
        )
    read = trajectory.prompt_ids + trajectory.response_ids[:length]
    ids = np.fromiter(read, np.int64, len(read))
    if ids.min() < 0:
        raise DataError(f"row {key}: token id {ids.min()} is negative")
    return CheckedRow(
        key=key,
        input_ids=ids,
        prompt_length=len(trajectory.prompt_ids),
        mask_R=mask,
        sampled_R=sampled,
        rollout_log_probs_R=log_probs,
        temperature=trajectory.temperature,
        images=_images_within(trajectory, len(ids)),
    )


def _images_within(trajectory: Trajectory, length: int) -> tuple[ImageSpan, ...]:
    """Images before the end of a truncated row; what the model reads of one is all of it."""
    images = tuple(span for span in trajectory.images if span.start < length)
    at = 0
    for number, span in enumerate(images):
        if not (at <= span.start and span.features <= span.tokens and span.end <= length):
            raise DataError(
                f"row {RowKey.of(trajectory)}: image {number} ({span.digest[:8]}) has the tokens "
                f"{span.start} to {span.end} for {span.features} features, which do not fit behind "
                f"token {at} into a row of {length}"
            )
        at = span.end
    return images
