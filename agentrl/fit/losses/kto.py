"""KTO over packed rows: answers that are each called good or bad.

The reference point z0 is one number for the whole update. A pass without gradients over mismatched
answers gives it, and the rows that are trained use it as a constant, whatever micro-batch or rank
they are in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from agentrl.batch.examples import Example
from agentrl.batch.records import MicroBatch, RowKey
from agentrl.batch.tensors import TensorBatch
from agentrl.batch.update_terms import MISMATCHED
from agentrl.config.fit import DpoObjective
from agentrl.errors import TrainError
from agentrl.fit.losses.fitter import MicroLoss
from agentrl.fit.losses.pair_losses import kto_loss, kto_z0
from agentrl.fit.losses.pair_metrics import WeightedMeans, share_above
from agentrl.fit.losses.pair_rows import reference_of, row_sums, row_weights
from agentrl.metrics.bag import MetricBag
from agentrl.train.backends.contract import ModelPasses
from agentrl.train.logprob_worker import check_finite


class KtoLoss:
    """loss = 1/K sum of the losses of K answers, with z0 of the whole update."""

    needs_totals = True

    def __init__(
        self,
        objective: DpoObjective,
        *,
        reference: Mapping[RowKey, float],
        examples: Mapping[str, Example],
    ) -> None:
        """Train with verdicts.

        Args:
            objective: its numbers.
            reference: summed log-probability of each row under the reference, mismatched ones too.
            examples: by id, for their verdicts.
        """
        self._objective, self._reference, self._examples = objective, reference, examples

    def micro_loss(
        self, model: ModelPasses, micro: MicroBatch, totals: Sequence[float]
    ) -> MicroLoss:
        """`micro_loss` as in `FitLoss.micro_loss`."""
        batch = model.to_tensors(micro)
        log_probs_R, sums_K = _sums(model, micro, batch)
        if not micro.rows:  # padding, whose loss is connected to every weight
            return MicroLoss(loss=log_probs_R.sum(), metrics=MetricBag())
        objective, z0 = self._objective, kto_z0(totals[0], int(totals[1]))
        desirable_K = torch.tensor([self._desirable(key) for key in micro.rows]).to(sums_K.device)
        ratio_K = sums_K - reference_of(self._reference, micro, like=sums_K)
        loss_K = kto_loss(
            ratio_K,
            desirable_K,
            z0,
            beta=objective.beta,
            desirable_weight=objective.desirable_weight,
            undesirable_weight=objective.undesirable_weight,
            label_probability_K=self._probabilities(micro, like=sums_K),
        )
        tokens_K = row_sums(torch.ones_like(log_probs_R), micro, batch)
        metrics = kto_metrics(ratio_K, sums_K, tokens_K, desirable_K, z0, beta=objective.beta)
        return MicroLoss(loss=(row_weights(micro, batch) * loss_K).sum(), metrics=metrics)

    def totals(self, model: ModelPasses, micro: MicroBatch) -> tuple[float, ...]:
        """Sum of r over mismatched rows, and their number.

        Raises:
            TrainError: a row that is not mismatched; z0 would be another number.
        """
        wrong = [str(key) for key in micro.rows if key.row_index != MISMATCHED]
        if wrong:
            raise TrainError(f"z0 of KTO was asked of row {wrong[0]}, which is no mismatched one")
        _, sums_K = _sums(model, micro, model.to_tensors(micro))
        ratio_K = sums_K - reference_of(self._reference, micro, like=sums_K)
        return float(ratio_K.sum()), float(len(micro.rows))

    def derive(self, metrics: MetricBag) -> None:
        """`derive` as in `FitLoss.derive`: `pref/margin`, once both kinds have their means."""
        known = metrics.result()
        names = ("pref/reward_chosen", "pref/reward_rejected")
        chosen, rejected = (known.get(name) for name in names)
        if chosen is not None and rejected is not None:
            metrics.mean("pref/margin", chosen - rejected)

    def _probabilities(self, micro: MicroBatch, *, like: Tensor) -> Tensor | None:
        known = [self._examples[key.rollout_id].label_probability for key in micro.rows]
        if all(p is None for p in known):
            return None
        return like.new_tensor([1.0 if p is None else p for p in known])

    def _desirable(self, key: RowKey) -> bool:
        verdict = self._examples[key.rollout_id].desirable
        if verdict is None:
            raise TrainError(f"row {key} has no verdict, which loss kto needs")
        return verdict


def _sums(model: ModelPasses, micro: MicroBatch, batch: TensorBatch) -> tuple[Tensor, Tensor]:
    """[R] log-probabilities, and [K] those of each row's trained tokens in sum.

    Raises:
        TrainError: one is not finite; names the rows.
    """
    out = model.log_probs(batch)
    check_finite(out.log_probs_R, micro)
    return out.log_probs_R, row_sums(out.log_probs_R, micro, batch)


def kto_metrics(
    ratio_K: Tensor,
    sums_K: Tensor,
    tokens_K: Tensor,
    desirable_K: Tensor,
    z0: float,
    *,
    beta: float,
) -> MetricBag:
    """Metrics of the answers of a micro-batch; `_chosen` are the desirable ones.

        pref/accuracy               share of answers on the right side of z0; a tie counts 1/2
        pref/reward_chosen          beta r, and `_rejected`; `pref/margin` is their difference
        pref/logp_chosen            l, nats an answer, and `_rejected`
        pref/logp_chosen_per_token  sum of l / sum of N, nats a token, and `_rejected_...`
        pref/kl_chosen              r of the desirable answers
        pref/z0                     reference point of the update

    Args:
        ratio_K: [K] r = l - lr.
        sums_K: [K] l.
        tokens_K: [K] N, trained tokens.
        desirable_K: [K] bool.
        z0: of the whole update.
        beta: strength of the pull towards the reference.
    """
    sign_K = desirable_K.double() * 2.0 - 1.0
    bag = MetricBag()
    every = WeightedMeans(torch.ones_like(sums_K))
    every.add("pref/accuracy", share_above(sign_K * (ratio_K - z0)))
    every.add("pref/z0", torch.full_like(sums_K, z0))
    every.into(bag)
    for name, of_kind_K in (("chosen", desirable_K), ("rejected", ~desirable_K)):
        if not bool(of_kind_K.any()):
            continue
        means = WeightedMeans(of_kind_K.double())
        means.add(f"pref/reward_{name}", beta * ratio_K)
        means.add(f"pref/logp_{name}", sums_K)
        means.add(f"pref/logp_{name}_per_token", sums_K, over_P=tokens_K)
        if name == "chosen":
            means.add("pref/kl_chosen", ratio_K)
        means.into(bag)
    return bag
