"""Micro-batches with rubbish where no loss looks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from agentrl.batch.records import LossNeeds, MicroBatch
from agentrl.train.prove.evaluate import visible_R
from agentrl.train.prove.model import VOCABULARY


def poisoned(
    micro: MicroBatch, needs: LossNeeds, field: str, value: float, rng: np.random.Generator
) -> MicroBatch:
    """A micro-batch with something else where it is masked for this field.

    Args:
        micro: the micro-batch.
        needs: of the loss: where it looks.
        field: `ids` for random targets, or which numbers.
        value: what stands there instead.
        rng: draws the targets.
    """
    visible = visible_R(micro, needs)
    if field == "ids":
        ids = rng.integers(0, VOCABULARY, len(micro.target_R))
        return replace(micro, target_R=np.where(visible, micro.target_R, ids))
    if field == "rollout_log_probs":
        kept = visible & micro.sampled_R
        return replace(micro, rollout_log_probs_R=np.where(kept, micro.rollout_log_probs_R, value))
    if field == "advantages":
        return replace(micro, advantages_R=np.where(micro.mask_R, micro.advantages_R, value))
    return replace(micro, weights_R=np.where(micro.mask_R, micro.weights_R, value))
