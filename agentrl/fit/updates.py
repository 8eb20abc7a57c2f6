"""The updates of a fit: which rows each step trains on, and which are only measured for it.

Everything is a function of config, data and the number of the step, so every rank and every
resumed process has the same updates without being told.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from agentrl.batch.examples import Example, likelihood_update, pair_update, score_update
from agentrl.batch.halves import within_images
from agentrl.batch.records import PackedBatch
from agentrl.batch.update_terms import (
    Mismatch,
    centered_update,
    mismatch_update,
    mismatches_of,
)
from agentrl.config.fit import FitConfig
from agentrl.errors import DataError
from agentrl.fit.data.order import ExampleOrder
from agentrl.fit.sets import FitSets


@dataclass(frozen=True, slots=True, kw_only=True)
class FitUpdate:
    """The rows of one update over all ranks."""

    trained: PackedBatch
    """Rows with a loss."""
    measured: PackedBatch | None = None
    """Rows that are asked first for what the loss needs of the update; None where those are the
    trained ones, or none are needed."""


class FitUpdates:
    """Makes the updates of a fit."""

    def __init__(self, config: FitConfig, sets: FitSets) -> None:
        """Take the data of a fit.

        Args:
            config: its objective, seed and sizes.
            sets: encoded data.
        """
        self._config, self._sets = config, sets
        seed, per_step = config.run.seed, config.data.examples_per_step
        self._order = ExampleOrder(sets.train.examples, per_step=per_step, seed=seed)
        self.steps_per_epoch = self._order.steps_per_epoch
        """Steps after which each example was trained once."""
        self._centered: ExampleOrder | None = None
        objective = config.objective
        if objective.kind == "rm" and objective.center_data is not None and sets.centered:
            self._centered = ExampleOrder(
                sets.centered.examples,
                per_step=objective.center_data.answers_per_step,
                seed=f"{seed}/center_data",
            )

    def step(self, step: int) -> FitUpdate:
        """The update of a step, counted from 0."""
        examples = self._order.step(step)
        if self._centered is not None:
            return self._centered_update(examples, self._centered.step(step))
        return self._update(examples)

    def evaluation(self, name: str) -> FitUpdate:
        """All data of a set of `eval.datasets` as one update.

        Answers that center rewards are those of the first step, every time, so that the loss is of
        the same parts as in training and evaluations can be compared.
        """
        examples = self._sets.evals[name].examples
        if self._centered is not None:
            return self._centered_update(examples, self._centered.step(0))
        return self._update(examples)

    def shown(self, name: str) -> PackedBatch:
        """The first examples of a set of `eval.datasets`, whose tokens are kept."""
        return make_update(self._config, self._sets.evals[name].examples[: self._config.eval.shown])

    def mismatches(self, steps: int) -> list[Mismatch]:
        """Mismatched answers that the first steps and all evaluations need, each once.

        Args:
            steps: of the fit. All steps of their last epoch count, so that a fit which is later
                given more steps of it finds theirs.

        Raises:
            DataError: an update whose rows have one prompt; says which.
        """
        objective = self._config.objective
        if objective.kind != "dpo" or not objective.unpaired:
            return []
        found: dict[str, Mismatch] = {}
        epochs = -(-steps // self.steps_per_epoch)
        for step in range(epochs * self.steps_per_epoch):
            try:
                made = self._mismatched(self._order.step(step))
            except DataError as error:
                raise DataError(f"step {step + 1}: {error}") from None
            found |= {each.key.rollout_id: each for each in made}
        for name, data in self._sets.evals.items():
            try:
                made = self._mismatched(data.examples)
            except DataError as error:
                raise DataError(f"eval.datasets.{name}: {error}") from None
            found |= {each.key.rollout_id: each for each in made}
        return list(found.values())

    def _mismatched(self, examples: Sequence[Example]) -> tuple[Mismatch, ...]:
        return mismatches_of(examples, longest=self._config.train.micro_batch_tokens)

    def _centered_update(
        self, examples: Sequence[Example], centered: Sequence[Example]
    ) -> FitUpdate:
        objective, train = self._config.objective, self._config.train
        assert objective.kind == "rm"
        tokens, sharing = train.micro_batch_tokens, train.prefix_sharing
        trained = centered_update(
            examples, centered, micro_batch_tokens=tokens, prefix_sharing=sharing
        )
        if objective.bsr_coef:  # which is of all rows
            return FitUpdate(trained=trained)
        measured = centered_update((), centered, micro_batch_tokens=tokens, prefix_sharing=sharing)
        return FitUpdate(trained=trained, measured=measured)

    def _update(self, examples: Sequence[Example]) -> FitUpdate:
        objective, train = self._config.objective, self._config.train
        trained = make_update(self._config, examples)
        if objective.kind == "dpo" and objective.unpaired:
            measured = mismatch_update(
                self._mismatched(examples),
                micro_batch_tokens=train.micro_batch_tokens,
                prefix_sharing=train.prefix_sharing,
            )
            return FitUpdate(trained=trained, measured=measured)
        return FitUpdate(trained=trained)


def make_update(config: FitConfig, examples: Sequence[Example]) -> PackedBatch:
    """The trained rows of some examples, as the objective wants them."""
    train, objective = config.train, config.objective
    tokens, sharing = train.micro_batch_tokens, train.prefix_sharing
    if objective.kind == "sft":
        update = likelihood_update(
            examples,
            mode=objective.loss_agg_mode,
            horizon=objective.horizon,
            micro_batch_tokens=tokens,
            prefix_sharing=sharing,
        )
        parts = within_images(update.micro_batches, train.micro_batch_image_tokens)
        return replace(update, micro_batches=parts)
    make = pair_update if objective.kind == "dpo" else score_update
    return make(examples, micro_batch_tokens=tokens, prefix_sharing=sharing)
