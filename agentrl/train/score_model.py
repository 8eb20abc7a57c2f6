"""A reward model that is asked and never trained: one score for each row of tokens.

The score is read at the last token of a row, as a `ForSequenceClassification` model reads it. Rows
lie side by side without padding, and those of one prompt share its tokens; neither changes what a
row scores.

Legend: `_N` rows, `_O` outputs, `_K` heads, `_R` response positions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from agentrl.batch.examples import ScoredTokens, score_key, score_rows
from agentrl.batch.records import FloatArray, MicroBatch
from agentrl.config.schema import CriticSection, ModelSection
from agentrl.errors import ConfigError
from agentrl.models.proof import ModelProof
from agentrl.models.source import check_model_path, stored_config
from agentrl.reward.posterior import HeadPosterior
from agentrl.train.frozen_policy import FrozenPolicy
from agentrl.train.logprob_worker import by_row
from agentrl.train.model.value_head import (
    GAUSSIAN_LABELS,
    ValueModel,
    head_labels,
    heads_of,
    load_value_model,
)
from agentrl.train.purm import purm_deviation

BATCH_TOKENS = 8192
"""Most packed tokens of a pass by default."""


class ScoreModel:
    """A frozen `ValueModel` that scores token rows; one call at a time."""

    def __init__(
        self,
        model: ValueModel,
        *,
        batch_tokens: int = BATCH_TOKENS,
        posterior: HeadPosterior | None = None,
    ) -> None:
        """Freeze a model.

        Args:
            model: with 1 output, the reward, or 2: mean and deviation before `purm_deviation`; or
                with the rewards of several heads.
            batch_tokens: most packed tokens of a pass; a row takes one more than it has.
            posterior: of the head that gives the reward; its deviation takes the place of any
                other. Only without several heads.
        """
        self._model, self._posterior = model, posterior
        self.batch_tokens = batch_tokens
        """Most packed tokens of a pass."""
        # In one lane a pass has all cores of the thread that calls.
        self._passes = FrozenPolicy(model, lanes=1)

    @property
    def proof(self) -> ModelProof | None:
        """Comparison of the model with its own forward pass; None where it was not asked."""
        return self._passes.proof

    def prove(self, *, who: str) -> None:
        """`prove` as in `FrozenPolicy.prove`."""
        self._passes.prove(who=who)

    @property
    def outputs(self) -> int:
        """O: 1, or 2 where a deviation comes with the reward."""
        if self._posterior is not None:
            return 2
        return self._model.value_head.out_features // self.heads

    @property
    def heads(self) -> int:
        """K: 1, or more where the model is an ensemble by itself."""
        return self._model.heads

    @property
    def reward_weight(self) -> FloatArray:
        """[E] Weights of the head that gives the reward; of several, those of the first."""
        return self._model.value_head.weight[0].detach().double().cpu().numpy()

    @property
    def vocabulary(self) -> int:
        """Number of token ids that the model reads."""
        return len(self._model.body.get_input_embeddings().weight)

    @torch.no_grad()
    def scores(self, rows: Sequence[ScoredTokens]) -> FloatArray:
        """[N, K O] Raw reward of each row, and the deviation of it where the model gives one.

        Of several heads, the reward that each of them gives.

        A number that is not finite is returned as it is: one row must not cost the others theirs.

        Raises:
            DataError: a row without tokens, or one that does not fit into a batch.
        """
        if not rows:
            return np.zeros((0, self.heads * self.outputs))
        if self._posterior is None:
            return self._asked(rows, lambda values_RO, _: self._outputs(values_RO))
        # One pass gives both, the reward in the first column.
        both = self._asked(
            rows, lambda values, read: torch.cat([values[:, :1], read.to(values)], 1)
        )
        return np.stack([both[:, 0], self._posterior.deviations(both[:, 1:])], axis=1)

    @torch.no_grad()
    def features(self, rows: Sequence[ScoredTokens]) -> FloatArray:
        """[N, E] Numbers that the head reads at the end of each row.

        Args:
            rows: at least one.

        Raises:
            DataError: as `scores`.
        """
        # numpy has no bfloat16.
        return self._asked(
            rows, lambda _, read: read.to(torch.promote_types(read.dtype, torch.float32))
        )

    def _asked(
        self, rows: Sequence[ScoredTokens], of: Callable[[Tensor, Tensor], Tensor]
    ) -> FloatArray:
        """[N, X] `of` the values [R, O] and the features [R, E] of each row."""
        micro_batches = score_rows(rows, micro_batch_tokens=self.batch_tokens)

        def ask(_: Any, micro: MicroBatch) -> Tensor:
            return of(*self._model.values_and_features(self._passes.to_tensors(micro)))

        with self._passes.running():
            found = by_row(micro_batches, self._passes.run_each(micro_batches, ask))
        # One response position a row.
        numbers = [found[score_key(index)][0] for index in range(len(rows))]
        return np.stack(numbers).astype(np.float64)

    def _outputs(self, values_RO: Tensor) -> Tensor:
        """[R, K O] As `scores` gives them, from the model's outputs."""
        if values_RO.shape[1] == 1 or self.heads > 1:
            return values_RO
        return torch.stack([values_RO[:, 0], purm_deviation(values_RO[:, 1])], dim=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardHead:
    """Facts of a reward model that are known before a weight is loaded."""

    outputs: int
    """O: 1, or 2 where a deviation comes with the reward."""
    heads: int
    """K: 1, or more where the model is an ensemble by itself."""
    dtype: Literal["bfloat16", "float32"]
    """Arithmetic: bfloat16 where it was saved so, else float32."""
    context: int | None
    """Most tokens of a row; None where the model names no limit."""
    vocabulary: int
    """Number of token ids that the model reads."""


def reward_head(path: str) -> RewardHead:
    """Read the configuration of a checkpoint.

    Args:
        path: folder or hub name.

    Raises:
        ConfigError: it cannot be read, gives no score, or more than one that we know.
    """
    check_model_path(path, key="reward model")
    try:
        config = stored_config(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"the reward model {path!r} cannot be read: {error}") from None
    kind = (config.architectures or ["model without a name"])[0]
    if not kind.endswith("ForSequenceClassification"):
        raise ConfigError(
            f"the reward model {path!r} is a {kind}, expected a ...ForSequenceClassification; "
            "train one with agentrl fit and objective: rm"
        )
    labels = {int(number): str(name) for number, name in (config.id2label or {}).items()}
    heads = heads_of(config)
    if len(labels) != 1 and heads == 1 and labels != GAUSSIAN_LABELS:
        raise ConfigError(
            f"the reward model {path!r} has {len(labels)} outputs "
            f"({', '.join(list(labels.values())[:4])}), expected 1, the 2 of a purm fit "
            f"({', '.join(GAUSSIAN_LABELS.values())}), or the heads of an ensemble "
            f"({', '.join(head_labels(2).values())} ...); give a model trained with num_labels=1"
        )
    return RewardHead(
        outputs=len(labels) // heads,
        heads=heads,
        dtype="bfloat16" if config.dtype == torch.bfloat16 else "float32",
        context=getattr(config, "max_position_embeddings", None),
        vocabulary=int(config.get_text_config().vocab_size),
    )


def load_score_model(
    path: str,
    *,
    device: str = "auto",
    batch_tokens: int = BATCH_TOKENS,
    posterior: HeadPosterior | None = None,
) -> ScoreModel:
    """The reward model of a checkpoint, with its raw scores.

    Args:
        path: folder or hub name of a `...ForSequenceClassification` checkpoint.
        device: as `model.device`.
        batch_tokens: most packed tokens of a pass.
        posterior: gives the deviation of each score; None leaves that to the model.

    Raises:
        ConfigError: it cannot be loaded, is no reward model, is not computed as its own forward
            does, or the device is not there; or a posterior that is not of this model.
    """
    head = reward_head(path)
    section = ModelSection(path=path, dtype=head.dtype, device=device)
    model = load_value_model(
        CriticSection(path=path), section, outputs=head.heads * head.outputs, heads=head.heads
    )
    made = ScoreModel(model, batch_tokens=batch_tokens, posterior=posterior)
    made.prove(who=f"the reward model {path!r}")
    if posterior is not None and (
        head.heads > 1 or not np.array_equal(posterior.weight_E, made.reward_weight)
    ):
        raise ConfigError(
            f"the posterior beside {path!r} is of another head than the model has: it was fitted "
            "again since; write the posterior again with `agentrl rm posterior`"
        )
    return made
