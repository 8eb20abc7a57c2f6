"""Examples that a fit measured at its evaluations, token by token: one parquet file per step.

    DIRECTORY/step_000012.parquet    answers of the first examples of every evaluation
    DIRECTORY/tokenizer.json         that tells their text

A file appears whole. Any parquet reader can look: one row per answer, one list per column with a
number for each of its tokens. What the numbers are made with, such as `beta`, stands in the footer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from agentrl.data.store.atomic import atomic_file
from agentrl.data.store.bounds import open_parquet, why_not_read
from agentrl.data.store.example_columns import (
    EXAMPLES_SCHEMA,
    EXAMPLES_VERSION,
    ShownAnswer,
    decode_answers,
    encode_answers,
)
from agentrl.data.store.parquet_writer import write_parquet
from agentrl.data.store.step_files import step_name, step_of
from agentrl.errors import DataError
from agentrl.machine.inside import within

_VERSION = b"agentrl.examples_version"
_OBJECTIVE = b"agentrl.objective"
_SPLIT = ("log_probs.list.element", "ref_log_probs.list.element")
_MOST_ROWS = 100_000
_MOST_BYTES = 2**29
"""A file of a fit has a few hundred rows; one beyond these bounds is not read."""


class ExampleStore:
    """Writes and reads the examples of a fit.

    Example:
        >>> store = ExampleStore(Path("runs/my-fit/examples"))
        >>> objective, answers = store.read(store.steps()[-1])
    """

    def __init__(self, directory: Path) -> None:
        """A store in `directory`, which is made on the first write."""
        self.directory = Path(directory)

    def write(
        self, step: int, answers: Sequence[ShownAnswer], *, objective: Mapping[str, Any]
    ) -> Path:
        """Store the answers of an evaluation; replaces what is there for the step.

        Args:
            step: after which the evaluation was made.
            answers: of all data sets, those of an example beside each other.
            objective: what was trained for, as JSON.

        Raises:
            DataError: a value that does not fit, or a disk that is full; no half file is left.
        """
        path = self.directory / step_name(step)
        table = encode_answers(answers)
        metadata = {
            _VERSION.decode(): str(EXAMPLES_VERSION),
            _OBJECTIVE.decode(): json.dumps(dict(objective)),
        }
        with atomic_file(path) as file:
            write_parquet(file, EXAMPLES_SCHEMA, [table], split=_SPLIT, metadata=metadata)
        return path

    def remove_after(self, step: int) -> None:
        """Remove evaluations of later steps, which are going to be trained again."""
        for later in self.steps():
            if later > step:
                (self.directory / step_name(later)).unlink(missing_ok=True)

    def steps(self) -> list[int]:
        """Steps that have a file, ascending."""
        found = (step_of(path) for path in self._files())
        return sorted(step for step in found if step is not None)

    def read(self, step: int) -> tuple[dict[str, Any], list[ShownAnswer]]:
        """Objective and answers of a step.

        Raises:
            DataError: no such file, or one that is damaged, of another make or of a newer version.
        """
        path = self.directory / step_name(step)
        try:
            if not path.is_file() or path.stat().st_size > _MOST_BYTES:
                # A pipe under the name of a file would make its reader wait for ever.
                raise DataError(f"{path.name} is no file of examples")
            with open_parquet(within(self.directory, path)) as file:
                metadata = file.metadata.metadata or {}
                _require_ours(path.name, metadata, file.metadata.num_rows)
                table = file.read(columns=EXAMPLES_SCHEMA.names).select(EXAMPLES_SCHEMA.names)
            table = table.cast(EXAMPLES_SCHEMA)
            table.validate(full=True)
            return _objective(metadata), list(decode_answers(table))
        except DataError:
            raise
        except (OSError, pa.ArrowException, KeyError, ValueError, TypeError) as error:
            raise DataError(f"{path.name}: {why_not_read(error)}") from error

    def _files(self) -> Iterator[Path]:
        return self.directory.glob("step_*.parquet")


def _require_ours(name: str, metadata: Mapping[bytes, bytes], rows: int) -> None:
    version = metadata.get(_VERSION)
    if version is None:
        raise DataError(f"{name} is no file of examples")
    if not version.isdigit() or int(version) > EXAMPLES_VERSION:
        raise DataError(
            f"{name}: schema {version.decode(errors='replace')[:20]}, and this agentrl reads up to "
            f"{EXAMPLES_VERSION}; upgrade agentrl to see it"
        )
    if rows > _MOST_ROWS:
        raise DataError(f"{name} has {rows} rows, and a fit writes at most a few thousand")


def _objective(metadata: Mapping[bytes, bytes]) -> dict[str, Any]:
    found = json.loads(metadata.get(_OBJECTIVE, b"{}"))
    return found if isinstance(found, dict) else {}
