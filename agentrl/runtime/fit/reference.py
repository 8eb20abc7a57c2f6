"""Log-probabilities of the reference, computed once and kept beside the run."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from agentrl.batch.examples import Example, pair_update
from agentrl.batch.records import MicroBatch, RowKey
from agentrl.files import replacing

logger = logging.getLogger(__name__)

FILE = "reference.parquet"
"""Name inside a run directory."""
_DIGEST = b"agentrl.reference"
_TOGETHER = 256
"""Pairs that are packed together."""

Ask = Callable[[Sequence[MicroBatch]], Mapping[RowKey, Any]]
"""From micro-batches to the log-probabilities of their rows, as `LogProbSource.row_log_probs`."""


def reference_sums(
    folder: Path,
    examples: Sequence[Example],
    *,
    model: str,
    micro_batch_tokens: int,
    prefix_sharing: bool,
    open_reference: Callable[[], Ask],
) -> dict[RowKey, float]:
    """Summed log-probability of the trained tokens of every answer, in nats.

    They are read from `reference.parquet` where that was made of the same model and tokens, else
    computed and written there.

    Args:
        folder: the run directory.
        examples: pairs with unique ids.
        model: identity of the reference: its name and a digest of its weights.
        micro_batch_tokens: most packed tokens in a micro-batch.
        prefix_sharing: whether rows share the tokens of a common prefix.
        open_reference: loads the model; called only where something must be computed.
    """
    digest = _digest(examples, model)
    path = folder / FILE
    found = _read(path, digest)
    if found is not None:
        logger.info("log-probabilities of the reference: %s", path)
        return found
    ask = open_reference()
    found = {}
    for start in range(0, len(examples), _TOGETHER):
        update = pair_update(
            examples[start : start + _TOGETHER],
            micro_batch_tokens=micro_batch_tokens,
            prefix_sharing=prefix_sharing,
        )
        known = ask(update.micro_batches)
        for micro in update.micro_batches:
            for index, key in enumerate(micro.rows):
                mask = micro.mask_R[micro.row_R == index]
                found[key] = float(np.asarray(known[key], dtype=np.float64)[mask].sum())
    _write(path, found, digest)
    return found


def _digest(examples: Sequence[Example], model: str) -> str:
    found = hashlib.sha256(model.encode())
    for example in examples:
        found.update(f"\n{example.id}\n".encode())
        for part in (example.prompt_ids, *((*a.ids, -1, *a.mask) for a in example.answers)):
            found.update(np.array(part, dtype=np.int64).tobytes())
    return found.hexdigest()


def _read(path: Path, digest: str) -> dict[RowKey, float] | None:
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowInvalid):
        return None  # not there, or from a process that was killed: computed again
    if (table.schema.metadata or {}).get(_DIGEST) != digest.encode():
        return None
    columns = (table.column(name).to_pylist() for name in ("id", "answer", "log_prob"))
    return {
        RowKey(group_id=name, rollout_id=name, row_index=answer): value
        for name, answer, value in zip(*columns, strict=True)
    }


def _write(path: Path, found: Mapping[RowKey, float], digest: str) -> None:
    table = pa.table(
        {
            "id": [key.rollout_id for key in found],
            "answer": [key.row_index for key in found],
            "log_prob": list(found.values()),
        }
    ).replace_schema_metadata({_DIGEST: digest.encode()})
    with replacing(path) as target:
        pq.write_table(table, target)
