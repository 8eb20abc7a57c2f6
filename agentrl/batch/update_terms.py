"""Rows that count for an update as a whole, beside those of its examples.

The reference point of KTO is a mean over answers put to prompts that are not their own; a reward
model may be held around 0 by the mean over a set of answers. Both are numbers of the whole update:
which rows they are made of is decided here, before anything is packed or divided among ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentrl.batch.examples import Example, answer_row, end_row, score_rows_of
from agentrl.batch.packing import pack_rows
from agentrl.batch.records import PackedBatch, Row, RowKey
from agentrl.errors import DataError

CENTERED, MISMATCHED = 2, 3
"""`RowKey.row_index` of an answer of the set that centers rewards, and of a `Mismatch`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """A prompt with the answer to another one."""

    prompt: Example
    """Gives the prompt."""
    answered: Example
    """Gives the answer, its only one."""

    @property
    def key(self) -> RowKey:
        """Name of its row, the same in every update that has it."""
        return RowKey(
            group_id=self.prompt.id,
            rollout_id=f"{self.prompt.id}\n{self.answered.id}",
            row_index=MISMATCHED,
        )

    @property
    def num_tokens(self) -> int:
        """Tokens of its row."""
        return len(self.prompt.prompt_ids) + len(self.answered.answers[0].ids)


def mismatches_of(examples: Sequence[Example], *, longest: int) -> tuple[Mismatch, ...]:
    """For each prompt of an update the answer of the next example that has another prompt.

    The first example follows the last one. Answers with which a row would be too long are passed
    over. The result depends on the order of the examples and on nothing else.

    Args:
        examples: of a whole update, each with one answer.
        longest: most tokens of a row.

    Raises:
        DataError: all examples have one prompt, or a prompt has no room for another's answer.
    """
    if len({example.prompt_ids for example in examples}) < 2:
        raise DataError(
            f"an update of {len(examples)} rows has one prompt, that of {examples[0].id!r}, but "
            "KTO compares with answers to other prompts; give every step at least two: change "
            "data.examples_per_step, or data.limit where it is the last step of an epoch"
        )
    found: list[Mismatch] = []
    for index, example in enumerate(examples):
        for ahead in range(1, len(examples)):
            answered = examples[(index + ahead) % len(examples)]
            made = Mismatch(prompt=example, answered=answered)
            if answered.prompt_ids != example.prompt_ids and made.num_tokens <= longest:
                found.append(made)
                break
        else:
            raise DataError(
                f"example {example.id!r}: its prompt of {len(example.prompt_ids)} tokens fits with "
                f"no other answer of its update into {longest} tokens, which KTO needs; raise "
                "train.micro_batch_tokens, or leave long rows out with data.max_tokens"
            )
    return tuple(found)


def mismatch_update(
    mismatches: Sequence[Mismatch], *, micro_batch_tokens: int, prefix_sharing: bool = True
) -> PackedBatch:
    """The rows of mismatches, to be measured and not trained on; each weighs 1 / their number.

    Raises:
        DataError: one that is larger than a micro-batch.
    """
    rows = [
        answer_row(m.key, m.prompt.prompt_ids, m.answered.answers[0], 1.0 / len(mismatches))
        for m in mismatches
    ]
    tokens = sum(m.answered.answers[0].trained for m in mismatches)
    return _packed(rows, tokens, len(mismatches), micro_batch_tokens, prefix_sharing)


def centered_update(
    examples: Sequence[Example],
    centered: Sequence[Example],
    *,
    micro_batch_tokens: int,
    prefix_sharing: bool = True,
) -> PackedBatch:
    """A `score_update` of pairs, and with it answers of which only the mean score counts.

    Args:
        examples: pairs; may be none.
        centered: examples with one answer each; their weight does not count.
        micro_batch_tokens: most packed tokens in a micro-batch.
        prefix_sharing: whether rows share the tokens of a common prefix.

    Raises:
        DataError: no row, or an example that is larger than a micro-batch.
    """
    rows = [
        row
        for example in examples
        for row in score_rows_of(example, example.weight / len(examples))
    ]
    for example in centered:
        key = RowKey(group_id=example.id, rollout_id=example.id, row_index=CENTERED)
        ids = (*example.prompt_ids, *example.answers[0].ids)
        rows.append(end_row(key, ids, 1.0 / len(centered)))
    count = len(examples) or len(centered)
    return _packed(rows, len(rows), count, micro_batch_tokens, prefix_sharing)


def _packed(
    rows: Sequence[Row], tokens: int, count: int, micro_batch_tokens: int, prefix_sharing: bool
) -> PackedBatch:
    if not rows:
        raise DataError("an update needs at least one row, got none")
    micros = pack_rows(
        rows,
        micro_batch_tokens=micro_batch_tokens,
        prefix_sharing=prefix_sharing,
        whole_rollouts=True,
    )
    return PackedBatch(
        micro_batches=micros, global_tokens=tokens, global_sequences=count, horizon=1
    )
