"""Rows under another prompt: what a teacher with a hint reads in place of the student's row.

The response positions of a row stay as they are, ids, masks and order, so what the teacher says of
position t is about the very token that the student sampled at t.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from agentrl.batch.packing import images_among, pack_micro_batch, tokens_of_path
from agentrl.batch.records import IntArray, MicroBatch, Row, RowKey
from agentrl.errors import TrainError
from agentrl.train.distill.records import TeacherPrompts
from agentrl.types import ImageSpan


def with_prompts(micro: MicroBatch, prompts: TeacherPrompts) -> MicroBatch:
    """The same rows under other prompts, in one micro-batch of the same response positions.

    It may have more tokens than `train.micro_batch_tokens`: hints come on top. Ranks in lock-step
    keep as many micro-batches as they have. Images stay where they are in the row, and those of the
    response move with it.

    Args:
        micro: rows, or padding, which stays as it is.
        prompts: ids of the other prompt of each row.

    Raises:
        TrainError: a row without a prompt, or with an empty one, or a prompt that does not begin
            with that of its row up to the last image in it.
    """
    if not micro.rows:
        return micro
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
                images=_images(micro, index, key, prompt) if micro.images else (),
            )
        )
    return pack_micro_batch(rows, prefix_sharing=bool((micro.parents_S >= 0).any()))


def _images(micro: MicroBatch, index: int, key: RowKey, prompt: IntArray) -> tuple[ImageSpan, ...]:
    """The images of a row, where they stand under its other prompt."""
    path = tokens_of_path(micro, int(micro.segment_N[index]))
    ids = micro.input_ids_T[path]
    before = len(path) - int(np.count_nonzero(micro.row_R == index))
    spans = [image.span for image in images_among(micro, [path])]
    shown = max((span.end for span in spans if span.start < before), default=0)
    if not np.array_equal(prompt[:shown], ids[:shown]):
        raise TrainError(
            f"row {key}: its prompt with a hint has other tokens before the end of its last image "
            f"(token {shown}), expected a hint behind it"
        )
    longer = len(prompt) - before
    return tuple(
        span if span.start < before else replace(span, start=span.start + longer) for span in spans
    )
