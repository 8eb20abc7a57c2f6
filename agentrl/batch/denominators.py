"""The only module that divides a loss: global counts and the weight of one token.

A loss is a sum over trained tokens; what it is divided by must not depend on how the optimizer
update was split over ranks, micro-batches or packs. So the counts are taken once, over the whole
update, before any filter, and every weight below demands all three as keywords.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import get_args

from agentrl.batch.records import MASK_KEYS, MaskCounts
from agentrl.batch.rows import RowFacts
from agentrl.config.presets import LossAggMode
from agentrl.errors import DataError, choices
from agentrl.types import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class GlobalCounts:
    """Counts that the loss of an optimizer update is divided by."""

    global_tokens: int
    """N: trained tokens of all rollouts of the update."""
    global_sequences: int
    """B: rollouts with at least one trained token; the rows of a split rollout are one."""
    horizon: int
    """H: a constant from the config, never a padded width."""

    def __post_init__(self) -> None:
        for name in ("global_tokens", "global_sequences", "horizon"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise DataError(
                    f"{name} is {value!r}, expected a positive integer: the loss would be divided "
                    "by it"
                )


def count(rollout_tokens: Iterable[int], *, horizon: int) -> GlobalCounts:
    """Counts of one optimizer update.

    Args:
        rollout_tokens: trained tokens of each rollout of the update, over all its rows; rollouts
            whose advantage is zero included. Rollouts with none do not count.
        horizon: H.

    Raises:
        DataError: no trained token at all, or a horizon that is not positive.
    """
    tokens = [n for n in rollout_tokens if n > 0]
    return GlobalCounts(global_tokens=sum(tokens), global_sequences=len(tokens), horizon=horizon)


def count_masks(
    rollouts: Iterable[tuple[Sequence[Trajectory], Sequence[RowFacts]]], *, keys: Sequence[str]
) -> dict[str, MaskCounts]:
    """Count what each mask covers of an update; a count of 0 is possible here.

    Rows that are not computed count like the others. Only `final_response_mask` knows of age.

    Args:
        rollouts: rows of each rollout of the update that hold a sampled token, and those of them
            of which a token may be trained.
        keys: of `MASK_KEYS`.

    Raises:
        DataError: an unknown key.
    """
    tokens: Counter[str] = Counter()
    samples: Counter[str] = Counter()
    for key in keys:
        if key not in MASK_KEYS:
            raise DataError(f"mask key of the loss: {choices(key, MASK_KEYS)}")
    for rows, trained in rollouts:
        sampled = sum(row.num_action_tokens for row in rows)
        found = {
            "response_mask": sampled,
            "final_response_mask": sum(row.num_trained for row in trained),
            "observation_mask": sum(len(row.response_ids) for row in rows) - sampled,
        }
        for key, number in found.items():
            tokens[key] += number
            samples[key] += number > 0
    return {
        key: MaskCounts(batch_num_tokens=tokens[key], global_valid_samples=samples[key])
        for key in keys
    }


def token_weight(
    mode: LossAggMode,
    *,
    rollout_tokens: int,
    global_tokens: int,
    global_sequences: int,
    horizon: int,
) -> float:
    """Weight of one trained token of a rollout in the loss of an update (FORMULAS F1, C.1-C.2).

    With l the token loss, N, B, H the global counts and N_r the trained tokens of the rollout over
    all its rows:

        token-mean               sum l / N                          weight 1 / N
        seq-mean-token-mean      1/B sum_r (sum_t l / N_r)          weight 1 / (B N_r)
        seq-mean-token-sum       1/B sum_r sum_t l                  weight 1 / B
        seq-mean-token-sum-norm  sum l / (B H)      (Dr. GRPO)      weight 1 / (B H)

    Example:
        >>> token_weight("seq-mean-token-mean", rollout_tokens=4, global_tokens=10,
        ...              global_sequences=2, horizon=8)
        0.125

    Raises:
        DataError: a count that is not positive, or an unknown mode.
    """
    counts = GlobalCounts(
        global_tokens=global_tokens, global_sequences=global_sequences, horizon=horizon
    )
    if rollout_tokens < 1 or rollout_tokens > counts.global_tokens:
        raise DataError(
            f"rollout_tokens is {rollout_tokens}, expected 1 to global_tokens "
            f"({counts.global_tokens})"
        )
    if mode == "token-mean":
        return 1.0 / counts.global_tokens
    if mode == "seq-mean-token-mean":
        return 1.0 / (counts.global_sequences * rollout_tokens)
    if mode == "seq-mean-token-sum":
        return 1.0 / counts.global_sequences
    if mode == "seq-mean-token-sum-norm":
        return 1.0 / (counts.global_sequences * counts.horizon)
    raise DataError(f"loss_agg_mode: {choices(str(mode), get_args(LossAggMode))}")
