"""The objective of a reward model over packed rows: scores of answers, by one head or several.

    loss = 1/K sum over heads k of ( 1/P sum over pairs of b_k L(r_k) + bsr_coef (S_k / n)^2 ... )

Each of the K heads of an ensemble has the whole loss of a reward model on its own scores r_k, with
its own sums S_k over the update; b_k are its bootstrap weights. All come from one forward pass.

Legend: `_N` rows, `_P` pairs, `_K` heads, `_O` outputs of a head.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from agentrl.batch.examples import Example
from agentrl.batch.records import MicroBatch
from agentrl.batch.tensors import TensorBatch
from agentrl.batch.update_terms import CENTERED
from agentrl.config.fit import RewardObjective
from agentrl.errors import TrainError
from agentrl.fit.losses.fitter import MicroLoss
from agentrl.fit.losses.pair_rows import PairIndex, row_weights
from agentrl.fit.losses.reward_losses import (
    RewardInputs,
    bsr_row_factor,
    bsr_value,
    center_term,
    reward_metrics,
    reward_pair_loss,
)
from agentrl.metrics.bag import MetricBag
from agentrl.train.backends.contract import ModelPasses
from agentrl.train.logprob_worker import check_finite


class RewardLoss:
    """loss = 1/P sum of the pair losses on scores, and what keeps scores around 0."""

    def __init__(self, objective: RewardObjective, examples: Mapping[str, Example]) -> None:
        """Train a reward model.

        Args:
            objective: its numbers.
            examples: by id, for margins, label probabilities and weights of heads.
        """
        self._objective, self._examples = objective, examples
        self.needs_totals = objective.bsr_coef > 0 or objective.center_set_coef > 0
        """`needs_totals` as in `FitLoss.needs_totals`."""

    def micro_loss(
        self, model: ModelPasses, micro: MicroBatch, totals: Sequence[float]
    ) -> MicroLoss:
        """`micro_loss` as in `FitLoss.micro_loss`."""
        batch = model.to_tensors(micro)
        scores_NKO = self._scores(model.values(batch), micro)
        if not micro.rows:  # padding, whose loss is connected to every weight
            return MicroLoss(loss=scores_NKO.sum(), metrics=MetricBag())
        loss, metrics = self._pair_loss(scores_NKO, micro, batch)
        if self.needs_totals:
            heads = self._objective.heads
            of_pairs, centered = totals[: heads + 1], totals[heads + 1 :]
            bsr, center = self._objective.bsr_coef, self._objective.center_set_coef
            centered_N = torch.tensor([key.row_index == CENTERED for key in micro.rows])
            r_NK, centered_N = scores_NKO[:, :, 0], centered_N.to(scores_NKO.device)
            if bsr:
                loss = loss + _mean_square(r_NK[~centered_N], of_pairs, bsr, "bsr", metrics)
            if center and centered[-1]:  # an update may have no such rows
                own_NK = r_NK[centered_N]
                loss = loss + _mean_square(own_NK, centered, center, "center_set", metrics)
                total = float(own_NK.detach().double().sum()) / heads
                metrics.mean("rm/center_set_mean", total, count=len(own_NK))
        return MicroLoss(loss=loss, metrics=metrics)

    def _pair_loss(
        self, scores_NKO: Tensor, micro: MicroBatch, batch: TensorBatch
    ) -> tuple[Tensor, MetricBag]:
        """Loss of the pairs of a micro-batch, which may have none."""
        objective = self._objective
        pairs = PairIndex.of(micro.rows, scores_NKO.device)
        if not pairs.names:
            return 0.0 * scores_NKO.sum(), MetricBag()
        chosen_PKO, rejected_PKO = scores_NKO[pairs.chosen_P], scores_NKO[pairs.rejected_P]
        margin_P = self._known(pairs, "margin", scores_NKO) if objective.margin_scale else None
        label_P = self._known(pairs, "label_probability", scores_NKO, default=1.0)

        def inputs(chosen_O: Tensor, rejected_O: Tensor, times: int) -> RewardInputs:
            return RewardInputs(
                chosen_PO=chosen_O,
                rejected_PO=rejected_O,
                margin_P=None if margin_P is None else margin_P.repeat_interleave(times),
                label_probability_P=label_P.repeat_interleave(times),
                objective=objective,
            )

        # Every head of every pair is a pair of its own; then the heads of a pair are averaged.
        heads = objective.heads
        every = inputs(chosen_PKO.flatten(0, 1), rejected_PKO.flatten(0, 1), heads)
        loss = reward_pair_loss(every)
        if objective.center_coef:
            centered = center_term(every.reward_chosen_P, every.reward_rejected_P)
            loss = loss + objective.center_coef * centered
        loss_PK = self._counted(loss.unflatten(0, (-1, heads)), pairs)
        weights_P = row_weights(micro, batch)[pairs.chosen_P].to(loss.dtype)
        metrics = reward_metrics(inputs(chosen_PKO.mean(dim=1), rejected_PKO.mean(dim=1), 1))
        if heads > 1:
            gap_PK = (chosen_PKO - rejected_PKO)[:, :, 0].detach().double()
            total = float(gap_PK.std(dim=1).sum())
            metrics.mean("rm/std_between", total, count=len(gap_PK))
        return (weights_P * loss_PK.mean(dim=1)).sum(), metrics

    def _counted(self, loss_PK: Tensor, pairs: PairIndex) -> Tensor:
        """[P, K] The loss of each pair as often as each head counts it."""
        known = [self._examples[name].head_weights for name in pairs.names]
        if not any(known):
            return loss_PK
        return loss_PK * torch.tensor(known, dtype=loss_PK.dtype, device=loss_PK.device)

    def totals(self, model: ModelPasses, micro: MicroBatch) -> tuple[float, ...]:
        """[2 (K + 1)] Sum of each head's rewards of pairs and number of rows, then the same of what
        centers rewards."""
        scores_NKO = self._scores(model.values(model.to_tensors(micro)), micro)
        centered = np.array([key.row_index == CENTERED for key in micro.rows], dtype=np.bool_)
        found: list[float] = []
        for of_kind in (~centered, centered):
            rows = torch.as_tensor(np.flatnonzero(of_kind), device=scores_NKO.device)
            found += [*scores_NKO[rows, :, 0].double().sum(dim=0).tolist(), float(len(rows))]
        return tuple(found)

    def derive(self, metrics: MetricBag) -> None:
        """`derive` as in `FitLoss.derive`: nothing follows from others."""

    def _known(
        self, pairs: PairIndex, name: str, like: Tensor, *, default: float | None = None
    ) -> Tensor:
        """[P] A number of each example."""
        values = [getattr(self._examples[pair], name) for pair in pairs.names]
        for pair, value in zip(pairs.names, values, strict=True):
            if value is None and default is None:
                raise TrainError(
                    f"pair {pair!r} has no {name}, which objective.{name}_scale needs; map its "
                    f"column with data.columns, or set objective.{name}_scale: 0"
                )
        filled = [default if value is None else value for value in values]
        return torch.tensor(filled, dtype=like.dtype, device=like.device)

    def _scores(self, values: Tensor, micro: MicroBatch) -> Tensor:
        """[N, K, O] Scores of the rows, each of which has one response position, in their order.

        Raises:
            TrainError: a score that is not finite; names the rows.
        """
        scores_NO = values if values.dim() == 2 else values[:, None]
        for column in scores_NO.unbind(1):
            check_finite(column, micro, policy="reward model", what="score")
        return scores_NO.unflatten(1, (self._objective.heads, -1))


def _mean_square(
    r_NK: Tensor, totals: Sequence[float], coef: float, name: str, metrics: MetricBag
) -> Tensor:
    """What rows add to a loss that has value and gradient of coef (S / n)^2 over the whole update,
    as a mean over heads.

    Args:
        r_NK: rewards of these rows, with gradient.
        totals: [K + 1] S of each head, and n of the update.
        coef: weight.
        name: of the part, for `rm/loss/NAME`.
        metrics: gets the value.
    """
    rows, own = int(totals[-1]), len(r_NK)
    found = r_NK.new_zeros(())
    for r_N, total in zip(r_NK.unbind(1), totals[:-1], strict=True):
        value = bsr_value(total, rows, coef)
        metrics.mean(f"rm/loss/{name}", value * own / rows, count=own / rows)
        factor = bsr_row_factor(total, rows, coef)
        found = found + (factor * (r_N - r_N.detach()) + value / rows).sum()
    return found / r_NK.shape[1]
