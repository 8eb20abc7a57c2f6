"""Examples of a fit that are kept token by token at every evaluation, for `agentrl inspect`."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from agentrl.batch.examples import Example, pair_update
from agentrl.batch.records import RowKey
from agentrl.config.fit import FitConfig
from agentrl.data.run.paths import RunPaths
from agentrl.data.store.bounds import open_parquet
from agentrl.data.store.example_columns import ShownAnswer
from agentrl.data.store.example_store import ExampleStore
from agentrl.errors import DataError
from agentrl.fit.data.fit_data import FitData, digest_of
from agentrl.fit.reference import Ask
from agentrl.machine.files import replacing

if TYPE_CHECKING:
    from agentrl.fit.losses.row_numbers import RowNumbers

logger = logging.getLogger(__name__)

_REFERENCE = "reference.parquet"
_DIGEST = b"agentrl.reference"

Tokens = tuple[float | None, ...]
"""[_T] One number for each token of an answer; None where it is not trained."""


@dataclass(slots=True, kw_only=True)
class ShownExamples:
    """The first examples of every set of `eval.datasets`, and where their numbers are written."""

    config: FitConfig
    """Names how many."""
    evals: Mapping[str, FitData]
    """Data by name."""
    run_dir: Path
    """Run directory."""
    compares: bool
    """Whether there is a reference, whose numbers `keep_reference_tokens` has left."""
    _reference: Mapping[tuple[str, int], Sequence[float]] | None = field(default=None, init=False)

    @property
    def store(self) -> ExampleStore:
        """Files of the examples."""
        return ExampleStore(RunPaths(self.run_dir).examples)

    def answers(self, name: str, numbers: RowNumbers) -> list[ShownAnswer]:
        """Record of one evaluation as it is written.

        Args:
            name: of the data.
            numbers: of the rows of `FitUpdates.shown`.
        """
        data, objective = self.evals[name], self.config.objective
        scores, heads = objective.kind == "rm", objective.heads if objective.kind == "rm" else 1
        found: list[ShownAnswer] = []
        for place, example in enumerate(data.examples[: self.config.eval.shown]):
            for index, answer in enumerate(example.answers):
                key = RowKey(group_id=example.id, rollout_id=example.id, row_index=index)
                known = self._of_reference().get((example.id, index))
                found.append(
                    ShownAnswer(
                        dataset=name,
                        index=place,
                        example_id=example.id,
                        answer=index,
                        source=data.sources[place] if data.sources else "",
                        margin=example.margin,
                        label_probability=example.label_probability,
                        desirable=example.desirable,
                        weight=example.weight,
                        prompt_ids=example.prompt_ids,
                        ids=answer.ids,
                        trained=tuple(map(bool, answer.mask)),
                        log_probs=None if scores else _tokens(numbers[key], answer.mask),
                        ref_log_probs=None if known is None else _tokens(known, answer.mask),
                        score=float(np.ravel(numbers[key])[:heads].mean()) if scores else None,
                    )
                )
        return found

    def write(self, step: int, answers: Sequence[ShownAnswer]) -> None:
        """Write the answers of an evaluation.

        Raises:
            DataError: the disk is full.
        """
        if not answers:
            return
        objective = self.config.objective.model_dump(mode="json")
        self.store.write(step, answers, objective=objective)

    def _of_reference(self) -> Mapping[tuple[str, int], Sequence[float]]:
        if self._reference is None:
            path = self.store.directory / _REFERENCE
            self._reference = _read(path)[1] if self.compares else {}
        return self._reference


def shown_of(config: FitConfig, evals: Mapping[str, FitData]) -> list[Example]:
    """All examples that are kept, over all data."""
    return [example for data in evals.values() for example in data.examples[: config.eval.shown]]


def keep_reference_tokens(
    run_dir: Path,
    examples: Sequence[Example],
    *,
    model: str,
    micro_batch_tokens: int,
    prefix_sharing: bool,
    open_reference: Callable[[], Ask],
) -> None:
    """Leave the reference's log-probability of every token of some examples in the run directory.

    Nothing is computed where that was done already. A disk that is full keeps no fit from going on.

    Args:
        run_dir: the run directory.
        examples: with unique ids.
        model: identity of the reference.
        micro_batch_tokens: most packed tokens in a micro-batch.
        prefix_sharing: whether rows share the tokens of a common prefix.
        open_reference: loads the model.
    """
    path = RunPaths(run_dir).examples / _REFERENCE
    digest = hashlib.sha256(f"{model} {digest_of(examples)}".encode()).hexdigest()
    if not examples or _read(path)[0] == digest:
        return
    update = pair_update(
        examples, micro_batch_tokens=micro_batch_tokens, prefix_sharing=prefix_sharing
    )
    known = open_reference()(update.micro_batches)
    table = pa.table(
        {
            "id": [key.rollout_id for key in known],
            "answer": [key.row_index for key in known],
            "log_probs": [np.asarray(row, dtype=np.float32).tolist() for row in known.values()],
        }
    ).replace_schema_metadata({_DIGEST: digest.encode()})
    try:
        path.parent.mkdir(exist_ok=True)
        with replacing(path) as target:
            pq.write_table(table, target, write_page_checksum=True)
    except OSError as error:
        logger.warning(
            "the inspector will not show the reference: cannot write %s: %s", path, error
        )


def _read(path: Path) -> tuple[str, dict[tuple[str, int], list[float]]]:
    """The digest of a file, and numbers by example and answer; nothing where it is damaged."""
    try:
        with open_parquet(path) as file:
            table = file.read()
        columns = (table.column(name).to_pylist() for name in ("id", "answer", "log_probs"))
        rows = {(name, answer): row for name, answer, row in zip(*columns, strict=True)}
    except (OSError, KeyError, pa.ArrowException):
        return "", {}
    return (table.schema.metadata or {}).get(_DIGEST, b"").decode(errors="replace"), rows


def _tokens(numbers: NDArray[np.floating[Any]] | Sequence[float], mask: Sequence[int]) -> Tokens:
    """One number for each token of an answer; a row ends with its last trained token."""
    if len(numbers) > len(mask):
        raise DataError(f"a row of {len(numbers)} numbers is of an answer of {len(mask)} tokens")
    values = [float(value) for value in numbers]
    values += [0.0] * (len(mask) - len(values))
    return tuple(v if said else None for v, said in zip(values, mask, strict=True))
