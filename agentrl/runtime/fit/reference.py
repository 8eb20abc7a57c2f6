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
from agentrl.errors import RunError
from agentrl.files import replacing
from agentrl.runtime.disk.run_name import REFERENCE_FILE
from agentrl.runtime.drivers.checkpoint_keeper import disk_full
from agentrl.runtime.fit.data import digest_of

logger = logging.getLogger(__name__)

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
    on_progress: Callable[[int, int], None],
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
        on_progress: called before every few pairs with the pairs done and all of them; what it
            raises ends the pass, and nothing is kept.

    Raises:
        RunError: the file cannot be written.
    """
    digest = _digest(examples, model)
    path = folder / REFERENCE_FILE
    found = _read(path, digest)
    if found is not None:
        logger.info("log-probabilities of the reference: %s", path)
        return found
    ask = open_reference()
    found = {}
    for start in range(0, len(examples), _TOGETHER):
        on_progress(start, len(examples))
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
    try:
        _write(path, found, digest)
    except OSError as error:
        raise RunError(disk_full(folder, error)) from error
    return found


def _digest(examples: Sequence[Example], model: str) -> str:
    return hashlib.sha256(f"{model} {digest_of(examples)}".encode()).hexdigest()


def _read(path: Path, digest: str) -> dict[RowKey, float] | None:
    try:
        table = pq.read_table(path, page_checksum_verification=True)
    except (OSError, pa.ArrowException):
        return None  # not there, or damaged: computed again
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
        pq.write_table(table, target, write_page_checksum=True)
