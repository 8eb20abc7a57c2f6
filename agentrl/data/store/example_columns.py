"""Answers of a fit with the numbers of their tokens, as Arrow rows and back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from agentrl.data.store.columns import escape, unescape
from agentrl.errors import DataError

EXAMPLES_VERSION = 1
"""Raised when an older reader would misread a file."""

_NUMBERS = pa.list_(pa.float32())
EXAMPLES_SCHEMA = pa.schema(
    [
        ("dataset", pa.string()),
        ("index", pa.int32()),
        ("example_id", pa.string()),
        ("answer", pa.int32()),
        ("source", pa.string()),
        ("margin", pa.float64()),
        ("label_probability", pa.float64()),
        ("desirable", pa.bool_()),
        ("weight", pa.float64()),
        ("prompt_ids", pa.list_(pa.int32())),
        ("ids", pa.list_(pa.int32())),
        ("trained", pa.list_(pa.bool_())),
        ("log_probs", _NUMBERS),
        ("ref_log_probs", _NUMBERS),
        ("score", pa.float64()),
    ]
)
"""Columns of a file of examples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownAnswer:
    """One answer of an example that a fit does not train on, as a model of the fit sees it."""

    dataset: str
    """Name in `eval.datasets`."""
    index: int
    """Place of the example in its data, from 0."""
    example_id: str
    """Id of the example; the answers of a pair share it."""
    answer: int
    """0 the chosen answer, or the only one; 1 the rejected one."""
    source: str
    """File and line that it is from; empty if unknown."""
    margin: float | None
    """Reward of the chosen answer less that of the rejected one; None unknown."""
    label_probability: float | None
    """Probability that the chosen answer is the better one; None takes the label as certain."""
    desirable: bool | None
    """Verdict on an answer without another one; None has none."""
    weight: float
    """Factor of its loss."""
    prompt_ids: tuple[int, ...]
    """Tokens before the answer."""
    ids: tuple[int, ...]
    """[_T] Tokens of the answer."""
    trained: tuple[bool, ...]
    """[_T] True where a token counts for the loss."""
    log_probs: tuple[float | None, ...] | None
    """[_T] Log-probabilities in nats; None where a token is not trained, and for reward models."""
    ref_log_probs: tuple[float | None, ...] | None
    """[_T] The same under the reference; None without one."""
    score: float | None
    """Raw reward of the whole answer; None where the model is a policy."""

    def __post_init__(self) -> None:
        lists = (self.ids, self.trained, self.log_probs, self.ref_log_probs)
        lengths = {len(values) for values in lists if values is not None}
        if len(lengths) > 1:
            raise DataError(
                f"answer {self.answer} of example {self.example_id!a} has lists of unequal lengths "
                f"{sorted(lengths)}, expected one number for each token"
            )


def encode_answers(answers: Sequence[ShownAnswer]) -> pa.Table:
    """Answers as a table of `EXAMPLES_SCHEMA`.

    Raises:
        DataError: a value that does not fit its column.
    """
    text = ("dataset", "example_id", "source")
    columns = {
        name: [
            escape(getattr(each, name)) if name in text else getattr(each, name) for each in answers
        ]
        for name in EXAMPLES_SCHEMA.names
    }
    try:
        return pa.table(
            [pa.array(columns[field.name], field.type) for field in EXAMPLES_SCHEMA],
            schema=EXAMPLES_SCHEMA,
        )
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        raise DataError(f"answers do not fit the columns of a file of examples: {error}") from error


def decode_answers(table: pa.Table) -> Iterator[ShownAnswer]:
    """The answers in a table that `encode_answers` made.

    Raises:
        DataError: lists of unequal lengths.
    """
    for row in table.to_pylist():
        for name in ("dataset", "example_id", "source"):
            row[name] = unescape(row[name] or "")
        for name in ("prompt_ids", "ids", "trained"):
            row[name] = tuple(row[name] or ())
        for name in ("log_probs", "ref_log_probs"):
            row[name] = None if row[name] is None else tuple(row[name])
        yield ShownAnswer(**row)
