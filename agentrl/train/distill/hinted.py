"""Rows under another prompt: what a teacher with a hint reads in place of the student's row.

The response positions of a row stay as they are, ids, masks and order, so what the teacher says of
position t is about the very token that the student sampled at t.
"""

from __future__ import annotations

import numpy as np

from agentrl.batch.packing import pack_micro_batch
from agentrl.batch.records import MicroBatch, Row
from agentrl.errors import TrainError
from agentrl.train.distill.records import TeacherPrompts


def with_prompts(micro: MicroBatch, prompts: TeacherPrompts) -> MicroBatch:
    """The same rows under other prompts, in one micro-batch of the same response positions.

    It may have more tokens than `train.micro_batch_tokens`: hints come on top. Ranks in lock-step
    keep as many micro-batches as they have.

    Args:
        micro: rows, or padding, which stays as it is.
        prompts: ids of the other prompt of each row.

    Raises:
        TrainError: a row without a prompt, or with an empty one.
    """
    if not micro.rows:
        return micro
    if micro.images:
        raise TrainError(
            f"row {micro.images[0].row} has images, which a prompt with a hint does not show yet; "
            "use a teacher without hints, or an environment without images"
        )
    rows: list[Row] = []
    for index, key in enumerate(micro.rows):
        prompt = prompts.get(key)
        if prompt is None or not len(prompt):
            raise TrainError(
                f"row {key} has no prompt with a hint, expected one for every row of the step; "
                "build the batch with the StepMaker of the same config"
            )
        own = np.flatnonzero(micro.row_R == index)
        rows.append(
            Row(
                key=key,
                input_ids=np.concatenate([prompt, micro.target_R[own]]),
                prompt_length=len(prompt),
                mask_R=micro.mask_R[own],
                rollout_log_probs_R=micro.rollout_log_probs_R[own],
                sampled_R=micro.sampled_R[own],
                advantages_R=micro.advantages_R[own],
                weight=0.0,
                temperature=float(micro.temperature_N[index]),
            )
        )
    return pack_micro_batch(rows, prefix_sharing=bool((micro.parents_S >= 0).any()))
