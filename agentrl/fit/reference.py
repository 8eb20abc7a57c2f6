"""Log-probabilities of the reference, computed once and kept beside the run.

Each is kept under a digest of the model and the tokens, so what is found is right whatever else has
changed: a pass that was killed goes on where its last file ends, and data that has grown costs what
is new of it. A pass is divided in the same places every time, so that it ends with the same bits.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from agentrl.batch.examples import AnswerTokens, Example, answer_row
from agentrl.batch.packing import pack_rows
from agentrl.batch.records import MicroBatch, RowKey
from agentrl.batch.update_terms import Mismatch
from agentrl.data.store.bounds import open_parquet
from agentrl.disk.full_disk import disk_full
from agentrl.disk.run_name import REFERENCE_FILE
from agentrl.errors import RunError
from agentrl.machine.files import replacing

logger = logging.getLogger(__name__)

_TOGETHER = 512
"""Answers that are packed together."""
_EVERY_S = 30.0
"""Seconds between two files of a pass that goes on."""

Ask = Callable[[Sequence[MicroBatch]], Mapping[RowKey, Any]]
"""From micro-batches to the log-probabilities of their rows, as `LogProbSource.row_log_probs`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """One answer that the reference is asked about."""

    key: RowKey
    prompt_ids: tuple[int, ...]
    answer: AnswerTokens
    digest: str


def reference_sums(
    folder: Path,
    examples: Sequence[Example],
    mismatches: Sequence[Mismatch] = (),
    *,
    model: str,
    micro_batch_tokens: int,
    prefix_sharing: bool,
    open_reference: Callable[[], Ask],
    on_progress: Callable[[int, int], None],
    every_s: float = _EVERY_S,
) -> dict[RowKey, float]:
    """Summed log-probability of the trained tokens of every answer, in nats.

    They are read from `reference.parquet` where that was made of the same model and tokens, else
    computed and written there.

    Args:
        folder: the run directory.
        examples: pairs with unique ids, or answers with a verdict.
        mismatches: rows of `kto` beside them: one more for each example and epoch.
        model: identity of the reference: its name and a digest of its weights.
        micro_batch_tokens: most packed tokens in a micro-batch.
        prefix_sharing: whether rows share the tokens of a common prefix.
        open_reference: loads the model; called only where something must be computed.
        on_progress: called before every few answers with the answers done and all of them; what it
            raises ends the pass, and what was computed is kept.
        every_s: seconds after which what is computed is written.

    Raises:
        RunError: the file cannot be written.
    """
    asked = list(_asked(examples, mismatches, model))
    path = folder / REFERENCE_FILE
    known = _read(path)
    found = {each.digest: known[each.digest] for each in asked if each.digest in known}
    if len(found) == len({each.digest for each in asked}):
        logger.info("log-probabilities of the reference: %s", path)
        return {each.key: found[each.digest] for each in asked}
    ask, written, new = open_reference(), time.monotonic(), False
    try:
        for start in range(0, len(asked), _TOGETHER):
            on_progress(start, len(asked))
            part = asked[start : start + _TOGETHER]
            if all(each.digest in found for each in part):
                continue
            found = _sums(part, ask, micro_batch_tokens, prefix_sharing) | found
            new = True
            if time.monotonic() - written >= every_s:
                _write(path, asked, found)
                written = time.monotonic()
    finally:
        if new:
            _write(path, asked, found)
    return {each.key: found[each.digest] for each in asked}


def _asked(
    examples: Sequence[Example], mismatches: Sequence[Mismatch], model: str
) -> Iterator[_Asked]:
    for example in examples:
        for index, answer in enumerate(example.answers):
            key = RowKey(group_id=example.id, rollout_id=example.id, row_index=index)
            yield _one(key, example.prompt_ids, answer, model)
    for each in mismatches:
        yield _one(each.key, each.prompt.prompt_ids, each.answered.answers[0], model)


def _one(key: RowKey, prompt_ids: tuple[int, ...], answer: AnswerTokens, model: str) -> _Asked:
    found = hashlib.sha256(model.encode())
    for part in (prompt_ids, answer.ids, answer.mask):
        found.update(f"\n{len(part)}\n".encode())
        found.update(np.array(part, dtype=np.int64).tobytes())
    found.update("".join(f"\n{span.digest}" for span in answer.images).encode())
    return _Asked(key=key, prompt_ids=prompt_ids, answer=answer, digest=found.hexdigest()[:32])


def _sums(
    part: Sequence[_Asked], ask: Ask, micro_batch_tokens: int, prefix_sharing: bool
) -> dict[str, float]:
    """Digest to summed log-probability, of answers that are computed together."""
    rows = [answer_row(each.key, each.prompt_ids, each.answer, 1.0) for each in part]
    micros = pack_rows(rows, micro_batch_tokens=micro_batch_tokens, prefix_sharing=prefix_sharing)
    known, sums = ask(micros), dict[RowKey, float]()
    for micro in micros:
        for index, key in enumerate(micro.rows):
            mask = micro.mask_R[micro.row_R == index]
            sums[key] = float(np.asarray(known[key], dtype=np.float64)[mask].sum())
    return {each.digest: sums[each.key] for each in part}


def _read(path: Path) -> dict[str, float]:
    try:
        with open_parquet(path) as file:
            table = file.read()
        columns = (table.column(name).to_pylist() for name in ("digest", "log_prob"))
        return dict(zip(*columns, strict=True))
    except (OSError, KeyError, pa.ArrowException):
        return {}  # not there, or damaged: computed again


def _write(path: Path, asked: Sequence[_Asked], found: Mapping[str, float]) -> None:
    there = [each for each in asked if each.digest in found]
    table = pa.table(
        {
            "id": [each.key.rollout_id for each in there],
            "answer": [each.key.row_index for each in there],
            "digest": [each.digest for each in there],
            "log_prob": [found[each.digest] for each in there],
        }
    )
    try:
        with replacing(path) as target:
            pq.write_table(table, target, write_page_checksum=True)
    except OSError as error:
        raise RunError(disk_full(path.parent, error)) from error
