"""A teacher that runs in the processes of the trainer: a checkpoint, or the policy with a hint."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from agentrl.batch.records import MicroBatch, RowKey
from agentrl.batch.tensors import TopIds
from agentrl.config.schema import ModelSection
from agentrl.config.training import TrainBackendSection
from agentrl.errors import TrainError
from agentrl.models.proof import ModelProof
from agentrl.models.vision.reader import VisionReader, share_reader
from agentrl.train.backends.lanes import lane_count
from agentrl.train.backends.ranks import Ranks
from agentrl.train.distill.hinted import with_prompts
from agentrl.train.distill.records import RowTeacher, TeacherPrompts, TeacherRow
from agentrl.train.frozen_policy import FrozenPolicy, SlicedFrozenPolicy
from agentrl.train.logprob_worker import LogProbPasses, PolicyModel, check_finite
from agentrl.train.model.logprobs import TokenLogProbs
from agentrl.train.model.pretrained import load_pretrained

TRAINED = ("final_response_mask",)
"""Mask of the tokens that a teacher is asked about."""


class TeacherModel:
    """A `Teacher` over a model; one forward pass per micro-batch, at each row's temperature."""

    def __init__(
        self,
        policy: PolicyModel,
        *,
        top_k: int,
        vocabulary: int,
        hinted: bool = False,
        name: str = "teacher",
    ) -> None:
        """Wrap a model.

        Args:
            policy: runs it.
            top_k: K; 0 asks for the sampled tokens alone.
            vocabulary: tokens that the policy has. A teacher may have more; what it thinks likely
                of these belongs to the tail.
            hinted: it reads the prompts it is given in place of those of the rows.
            name: for messages.

        Raises:
            TrainError: K is more than the tokens of the policy.
        """
        if top_k > vocabulary:
            raise TrainError(
                f"algorithm.distill.top_k is {top_k}, but the policy has {vocabulary} tokens; "
                "lower it"
            )
        self._policy, self._name, self._hinted = policy, name, hinted
        self.proof: ModelProof | None = getattr(policy, "proof", None)
        """Comparison of its model with its own forward pass."""
        self._top = TopIds(k=top_k, below=vocabulary) if top_k else None

    def own_tensors(self) -> Iterator[Tensor]:
        """All tensors of a teacher that is a model of its own, to be moved between two steps."""
        if isinstance(self._policy, FrozenPolicy):
            yield from self._policy.own_tensors()

    @torch.no_grad()
    def ask(
        self, micro_batches: Sequence[MicroBatch], *, prompts: TeacherPrompts | None
    ) -> RowTeacher:
        """`ask` as in `Teacher.ask`."""
        asked = list(micro_batches)
        if self._hinted:
            if prompts is None:
                raise TrainError(
                    f"the {self._name} reads a hint, but the batch has no prompts with one; build "
                    "it with the StepMaker of the same config"
                )
            asked = [with_prompts(micro, prompts) for micro in asked]

        def work(model: LogProbPasses, micro: MicroBatch) -> TokenLogProbs:
            tensors = replace(model.to_tensors(micro), top=self._top)
            out = model.log_probs(tensors)
            asked_R = out.log_probs_R
            if self._top is not None:
                # Not looked at in this form, so a token that the teacher cannot sample is no error.
                asked_R = asked_R.masked_fill(asked_R == -torch.inf, 0.0)
            check_finite(asked_R, micro, policy=self._name)
            return out

        with self._policy.running():
            # Padding is asked, too: ranks in lock-step count on it.
            answers = self._policy.run_each(asked, work)
        found: dict[RowKey, TeacherRow] = {}
        for micro, out in zip(asked, answers, strict=True):
            found |= _rows(micro, out)
        return found


def _rows(micro: MicroBatch, out: TokenLogProbs) -> dict[RowKey, TeacherRow]:
    sampled_R = out.log_probs_R.cpu().numpy()
    count = len(sampled_R)
    ids_RK, log_probs_RK = np.zeros((count, 0), dtype=np.int64), np.zeros((count, 0))
    if out.top_ids_RK is not None and out.top_log_probs_RK is not None:
        ids_RK, log_probs_RK = out.top_ids_RK.cpu().numpy(), out.top_log_probs_RK.cpu().numpy()
    return {
        key: TeacherRow(
            sampled_R=sampled_R[own], ids_RK=ids_RK[own], log_probs_RK=log_probs_RK[own]
        )
        for index, key in enumerate(micro.rows)
        for own in [np.flatnonzero(micro.row_R == index)]
    }


def load_teacher(
    model: ModelSection,
    *,
    top_k: int,
    vocabulary: int,
    backend: TrainBackendSection | None = None,
    ranks: Ranks | None = None,
    hinted: bool = False,
    images: VisionReader | None = None,
) -> TeacherModel:
    """A teacher from a checkpoint, held as the reference policy of a run is.

    Args:
        model: where it is, its dtype and device.
        top_k: as for `TeacherModel`.
        vocabulary: likewise.
        backend: of the policy. One that divides the policy's weights among the ranks (FSDP2, ZeRO
            3) divides those of the teacher, too, by FSDP2; others keep a copy on every rank.
        ranks: that train together, joined already; None is one process.
        hinted: as for `TeacherModel`.
        images: of the policy, whose images the teacher reads, too; None for a model of text.

    Raises:
        ConfigError: the model cannot be loaded, cannot read the images of the policy, or is not
            computed as its own forward does.
        TrainError: the ranks hold different weights, or one of them is gone.
    """
    divided = backend is not None and backend.divides_weights
    loaded = load_pretrained(model, in_parts=divided).model
    if images is not None:
        share_reader(loaded, images, who=f"algorithm.distill.teacher.path {model.path!r}")
    if backend is not None and divided:
        assert backend.kind != "torch"
        assert ranks is not None, "a backend that divides weights has ranks"
        frozen: FrozenPolicy = SlicedFrozenPolicy(
            loaded, ranks=ranks, offload=backend.offload, mask_keys=TRAINED
        )
    else:
        # Ranks in lock-step compute one micro-batch at a time.
        asked = None
        if backend is not None:
            asked = backend.lanes if backend.kind == "torch" else 1
        world_size = 1 if ranks is None else ranks.world_size
        lanes = lane_count(loaded, asked, ranks=world_size)
        frozen = FrozenPolicy(loaded, mask_keys=TRAINED, lanes=lanes)
    frozen.prove(who=f"the teacher {model.path!r}")
    return TeacherModel(frozen, top_k=top_k, vocabulary=vocabulary, hinted=hinted)
