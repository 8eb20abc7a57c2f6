"""The policies that a proof asks about tokens: a model, or a table with a number for each token.

A table has two parameters, the log-probability of every token and the entropy at it. Its gradient
is the slope of the loss at each token, so a loss can be tried at the size of a real update without
a model. The numbers of a model make a table, too: what is asked about slopes alone needs no pass
through it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from agentrl.batch.records import IntArray, MicroBatch
from agentrl.batch.tensors import TensorBatch
from agentrl.train.distill.records import TeacherTokens
from agentrl.train.model.attention import packed_attention
from agentrl.train.model.logprobs import TokenLogProbs, packed_log_probs
from agentrl.types import Trajectory, TrajectoryGroup

FixedName = Literal["old", "ref"]
"""The policy before the step, or the reference."""


class Policies(Protocol):
    """The policy at hand with its parameters, and two others without gradients."""

    def parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Parameters of the policy at hand, by name."""
        ...

    def packed(self) -> AbstractContextManager[None]:
        """A block in which packed rows may be read."""
        ...

    def now(self, tensors: TensorBatch, micro: MicroBatch) -> TokenLogProbs:
        """Numbers of the policy at hand, with gradient."""
        ...

    def fixed(self, name: FixedName, tensors: TensorBatch, micro: MicroBatch) -> Tensor:
        """[R] Log-probabilities of another policy."""
        ...

    def teacher(self, tensors: TensorBatch, micro: MicroBatch) -> TeacherTokens:
        """Numbers of a teacher for the tokens."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPolicies:
    """The policy at hand is a model, asked by forward passes; the others are known once."""

    model: Any
    """The policy at hand, with gradients."""
    table: TablePolicies
    """Numbers of this model and of the others, token by token."""

    def parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Parameters of the policy at hand, by name."""
        return self.model.named_parameters()

    def packed(self) -> AbstractContextManager[None]:
        """Packed attention in the policy at hand."""
        return packed_attention(self.model)

    def now(self, tensors: TensorBatch, micro: MicroBatch) -> TokenLogProbs:
        """Run the policy at hand forward."""
        return packed_log_probs(self.model, tensors)

    def fixed(self, name: FixedName, tensors: TensorBatch, micro: MicroBatch) -> Tensor:
        """[R] Look the tokens up, as training does: another policy reads a step once."""
        return self.table.fixed(name, tensors, micro)

    def teacher(self, tensors: TensorBatch, micro: MicroBatch) -> TeacherTokens:
        """Look them up in the table of another model."""
        return self.table.teacher(tensors, micro)


@dataclass(frozen=True, slots=True, kw_only=True)
class TeacherTable:
    """A teacher's numbers for N tokens, and those of the policy at hand for its K likeliest ones.

    K is 0 where the form of the sampled token, or no teacher, is tried.
    """

    sampled_N: Tensor
    """[N] Of the token itself."""
    ids_NK: Tensor
    """[N, K] int64 likeliest ids."""
    log_probs_NK: Tensor
    """[N, K] The teacher's log-probabilities of them."""
    now_NK: nn.Parameter
    """[N, K] Those of the policy at hand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePolicies:
    """Log-probabilities for the tokens of given rollouts, N in all."""

    now_N: nn.Parameter
    """[N] Of the policy at hand."""
    old_N: Tensor
    """[N] Before the step."""
    ref_N: Tensor
    """[N] Of the reference."""
    entropy_N: nn.Parameter
    """[N] Entropy of the policy at hand."""
    starts: dict[str, int]
    """Index of the first token of each rollout, by its id."""
    taught: TeacherTable
    """Numbers of a teacher."""

    def parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the tables of the policy at hand."""
        yield "log_probs", self.now_N
        yield "entropy", self.entropy_N
        yield "likeliest", self.taught.now_NK

    def packed(self) -> AbstractContextManager[None]:
        """Nothing has to be prepared."""
        return nullcontext()

    def now(self, tensors: TensorBatch, micro: MicroBatch) -> TokenLogProbs:
        """Look the tokens up."""
        return TokenLogProbs(
            log_probs_R=self._look_up(self.now_N, tensors, micro),
            entropy_R=self._look_up(self.entropy_N, tensors, micro),
            top_log_probs_RK=None
            if tensors.more_AK is None
            else self._look_up(self.taught.now_NK, tensors, micro),
        )

    def fixed(self, name: FixedName, tensors: TensorBatch, micro: MicroBatch) -> Tensor:
        """[R] Look the tokens up in another table."""
        return self._look_up(self.old_N if name == "old" else self.ref_N, tensors, micro)

    def teacher(self, tensors: TensorBatch, micro: MicroBatch) -> TeacherTokens:
        """Look the tokens up in the teacher's tables."""
        return TeacherTokens(
            sampled_R=self._look_up(self.taught.sampled_N, tensors, micro),
            ids_RK=self._look_up(self.taught.ids_NK, tensors, micro),
            log_probs_RK=self._look_up(self.taught.log_probs_NK, tensors, micro),
        )

    def _look_up(self, table_N: Tensor, tensors: TensorBatch, micro: MicroBatch) -> Tensor:
        """[R, ...] of [N, ...]."""
        firsts = np.array([self.starts[row.rollout_id] for row in micro.rows], dtype=np.int64)
        at_R = torch.as_tensor(firsts[micro.row_R] + positions_of(micro))
        zeros_R = table_N.new_zeros((len(micro.row_R), *table_N.shape[1:]))
        return zeros_R.index_put((tensors.index_A,), table_N[at_R[tensors.index_A]])


def table_policies(
    groups: Sequence[TrajectoryGroup], *, seed: int, top_k: int = 0
) -> TablePolicies:
    """Draw a table for rollouts of one row each.

    Args:
        groups: the rollouts. Their sampler's numbers are the table of the policy before the step.
        seed: of what is drawn.
        top_k: likeliest tokens of a teacher.
    """
    rng = np.random.default_rng(seed)
    rows = [row for group in groups for row in group.trajectories]
    old: list[float] = []
    for row in rows:
        old += [0.0] * len(row.prompt_ids) + list(row.rollout_log_probs)
    old_N = torch.as_tensor(np.array(old))
    apart = [torch.as_tensor(rng.uniform(-0.3, 0.3, len(old))) for _ in range(2)]
    now_N = old_N + apart[0]
    return TablePolicies(
        now_N=nn.Parameter(now_N),
        old_N=old_N,
        ref_N=old_N + apart[1],
        entropy_N=nn.Parameter(-now_N),
        starts=_starts(rows),
        taught=_drawn_teacher(old_N, rng, top_k),
    )


def _drawn_teacher(old_N: Tensor, rng: np.random.Generator, top_k: int) -> TeacherTable:
    """Distributions over K tokens and a rest, of the teacher and of the policy at hand."""
    sampled_N = old_N + torch.as_tensor(rng.uniform(-0.3, 0.3, len(old_N)))
    theirs, ours = (
        torch.log_softmax(torch.as_tensor(rng.uniform(-1.0, 1.0, (len(old_N), top_k + 1))), -1)
        for _ in range(2)
    )
    ids = torch.arange(top_k).expand(len(old_N), top_k)
    return TeacherTable(
        sampled_N=sampled_N,
        ids_NK=ids,
        log_probs_NK=theirs[:, :top_k],
        now_NK=nn.Parameter(ours[:, :top_k].clone()),
    )


def model_policies(
    groups: Sequence[TrajectoryGroup],
    *,
    model: Any,
    old: Any,
    ref: Any,
    teacher: Any = None,
    top_k: int = 0,
) -> ModelPolicies:
    """Ask each model once about all tokens.

    Args:
        groups: rollouts of one row each.
        model: the policy at hand.
        old: the policy before the step.
        ref: the reference.
        teacher: the teacher; None takes the reference.
        top_k: its likeliest tokens that are looked at.
    """
    rows = [row for group in groups for row in group.trajectories]
    now_N, entropy_N = _read(model, rows)
    other = ref if teacher is None else teacher
    theirs_NV, ours_NV = _read_all(other, rows), _read_all(model, rows)
    best = theirs_NV.topk(top_k, dim=1)
    table = TablePolicies(
        now_N=nn.Parameter(now_N),
        old_N=_read(old, rows)[0],
        ref_N=_read(ref, rows)[0],
        entropy_N=nn.Parameter(entropy_N),
        starts=_starts(rows),
        taught=TeacherTable(
            sampled_N=_read(other, rows)[0],
            ids_NK=best.indices,
            log_probs_NK=best.values,
            now_NK=nn.Parameter(ours_NV.gather(1, best.indices)),
        ),
    )
    return ModelPolicies(model=model, table=table)


@torch.no_grad()
def _read_all(model: Any, rows: Sequence[Trajectory]) -> Tensor:
    """[N, V] log-probabilities at every token; the first of a row has those of the second."""
    ids = [torch.tensor(row.prompt_ids + row.response_ids) for row in rows]
    known = torch.log_softmax(model(nn.utils.rnn.pad_sequence(ids, batch_first=True)).logits, -1)
    parts = [(own[:1], own[: len(row) - 1]) for own, row in zip(known, ids, strict=True)]
    return torch.cat([part for pair in parts for part in pair])


@torch.no_grad()
def _read(model: Any, rows: Sequence[Trajectory]) -> tuple[Tensor, Tensor]:
    """[N] log-probability and entropy of every token, 0 for the first of each row."""
    ids = [torch.tensor(row.prompt_ids + row.response_ids) for row in rows]
    # A row ends where its padding begins, and no token looks ahead.
    logits = model(nn.utils.rnn.pad_sequence(ids, batch_first=True)).logits
    log_probs, entropies = [], []
    for own, known in zip(ids, torch.log_softmax(logits, -1), strict=True):
        known = known[: len(own) - 1]
        nothing = known.new_zeros(1)
        log_probs += [nothing, known.gather(1, own[1:, None])[:, 0]]
        entropies += [nothing, -(known.exp() * known).sum(-1)]
    return torch.cat(log_probs), torch.cat(entropies)


def _starts(rows: Sequence[Trajectory]) -> dict[str, int]:
    """Index of the first token of each row, by its rollout, where all are laid end to end."""
    lengths = [len(row.prompt_ids) + len(row.response_ids) for row in rows]
    ends = accumulate(lengths, initial=0)
    return {row.rollout_id: start for row, start in zip(rows, ends, strict=False)}


def positions_of(micro: MicroBatch) -> IntArray:
    """[R] Position of each response token in its conversation, prompt included, from 0."""
    return micro.position_ids_T[micro.source_R] + 1
