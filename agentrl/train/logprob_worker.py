"""Log-probabilities of whole rows under a policy that is not being changed, by row.

The old policy and the reference are asked through the very function that the trainer
differentiates, on the same packed micro-batches: the same weights give the same bits, so a ratio
that should be 1 is 1, and not 1 plus the difference between two programs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agentrl.batch.packing import pack_micro_batch
from agentrl.batch.records import MicroBatch, Row, RowKey
from agentrl.batch.tensors import TensorBatch
from agentrl.errors import TrainError
from agentrl.train.model.logprobs import TokenLogProbs

Result = TypeVar("Result")

RowLogProbs = Mapping[RowKey, NDArray[np.floating[Any]]]
"""By row, one number per response position; anything where nothing is trained."""


class LogProbPasses(Protocol):
    """Forward passes of a policy over one micro-batch at a time."""

    def to_tensors(self, micro: MicroBatch) -> TensorBatch:
        """A micro-batch on the device of the model."""
        ...

    def log_probs(self, batch: TensorBatch) -> TokenLogProbs:
        """Run the forward pass of one micro-batch."""
        ...


class PolicyModel(Protocol):
    """Runs a model on packed rows: a training backend, or a policy that is never trained."""

    def running(self) -> AbstractContextManager[None]:
        """Forward passes belong inside."""
        ...

    def run_each(
        self,
        micro_batches: Sequence[MicroBatch],
        work: Callable[[LogProbPasses, MicroBatch], Result],
    ) -> list[Result]:
        """Call `work` for each micro-batch, as `TrainBackend.run_each` does."""
        ...


class LogProbSource(Protocol):
    """A source of another policy's log-probabilities of the rows of a step."""

    def row_log_probs(self, micro_batches: Sequence[MicroBatch]) -> RowLogProbs:
        """Log-probabilities of every row in `micro_batches`."""
        ...


class LogProbWorker:
    """A `LogProbSource` over a policy in this process; one forward pass per micro-batch."""

    def __init__(self, policy: PolicyModel, *, name: str) -> None:
        """Wrap a policy.

        Args:
            policy: runs the model.
            name: of the policy, for messages.
        """
        self._policy = policy
        self._name = name

    @torch.no_grad()
    def row_log_probs(self, micro_batches: Sequence[MicroBatch]) -> RowLogProbs:
        """Float32 (float64 for a float64 model) by row, 0 where nothing is trained.

        Raises:
            TrainError: a log-probability that is not finite; names the rows.
        """

        def ask(model: LogProbPasses, micro: MicroBatch) -> Tensor:
            out = model.log_probs(model.to_tensors(micro))
            check_finite(out.log_probs_R, micro, policy=self._name)
            return out.log_probs_R

        with self._policy.running():
            # Padding is asked, too: ranks in lock-step count on it.
            return by_row(micro_batches, self._policy.run_each(micro_batches, ask))


def by_row(micro_batches: Sequence[MicroBatch], answers: Sequence[Tensor]) -> RowLogProbs:
    """Split the answers to micro-batches by row.

    Args:
        micro_batches: with or without padding.
        answers: [R] for each, one number per response position.
    """
    found: dict[RowKey, NDArray[np.floating[Any]]] = {}
    for micro, answer_R in zip(micro_batches, answers, strict=True):
        numbers_R = answer_R.detach().cpu().numpy()
        for index, key in enumerate(micro.rows):
            found[key] = numbers_R[micro.row_R == index]
    return found


def in_batch_order(known: RowLogProbs, micro: MicroBatch, *, like: Tensor, policy: str) -> Tensor:
    """[R] The log-probabilities (or values) of a micro-batch, looked up by row.

    Args:
        known: by row.
        micro: the rows that are wanted; they may have been packed otherwise when asked for.
        like: gives device and dtype.
        policy: whose they are, for messages.

    Raises:
        TrainError: a row is missing, or has another length.
    """
    numbers_R = np.zeros(len(micro.row_R))
    for index, key in enumerate(micro.rows):
        positions = np.flatnonzero(micro.row_R == index)
        row = known.get(key)
        if row is None or len(row) != len(positions):
            got = "nothing" if row is None else f"{len(row)} numbers"
            raise TrainError(
                f"the {policy} gave {got} for row {key}, expected one for each of its "
                f"{len(positions)} response positions"
            )
        numbers_R[positions] = row
    return torch.as_tensor(numbers_R).to(device=like.device, dtype=like.dtype)


def check_finite(
    numbers_R: Tensor, micro: MicroBatch, *, policy: str = "policy", what: str = "log-probability"
) -> None:
    """Refuse log-probabilities or values that nothing could be learned from.

    Raises:
        TrainError: names the rows and a value.
    """
    numbers_R = numbers_R.detach()
    bad = (~torch.isfinite(numbers_R)).nonzero()[:, 0].tolist()
    if bad:
        rows = sorted({str(micro.rows[micro.row_R[index]]) for index in bad})
        raise TrainError(
            f"the {policy} gives a {what} of {float(numbers_R[bad[0]])} at "
            f"{len(bad)} tokens of rows {', '.join(rows)}; the update is given up and the weights "
            "are unchanged"
        )


def turn_log_probs(
    policy: PolicyModel, turns: Sequence[tuple[Sequence[int], Sequence[int]]]
) -> list[list[float]]:
    """Log-probabilities of sampled turns at temperature 1, through the trainer's own passes.

    Args:
        policy: the one that is trained; ranks in lock-step are all asked for the same turns.
        turns: a prompt and the ids after it, each.
    """
    rows = [
        Row(
            key=RowKey(group_id="turn", rollout_id=f"turn-{index}", row_index=0),
            input_ids=np.array([*prompt, *ids], dtype=np.int64),
            prompt_length=len(prompt),
            mask_R=np.ones(len(ids), dtype=np.bool_),
            rollout_log_probs_R=np.zeros(len(ids)),
            sampled_R=np.ones(len(ids), dtype=np.bool_),
            advantages_R=np.zeros(len(ids)),
            weight=0.0,
            temperature=1.0,
        )
        for index, (prompt, ids) in enumerate(turns)
    ]
    known = LogProbWorker(policy, name="policy").row_log_probs([pack_micro_batch(rows)])
    return [known[row.key].tolist() for row in rows]
