"""Every key a fit file may have: training on data that is there already, before or beside RL."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from agentrl.config.base import FiniteSection, KindSection, Names, OneOf, Section
from agentrl.config.presets import LossAggMode
from agentrl.config.schema import (
    ChatSection,
    CheckpointSection,
    LogSection,
    ModelSection,
    RunSection,
)
from agentrl.config.training import FitTrainSection


class FitDataSection(Section):
    """Source of conversations or preference pairs, and what is left out of it."""

    source: Annotated[str, Names.SOURCE]
    """A `.jsonl`, `.json`, `.csv` or `.parquet` file, a directory of them, `hf:NAME` for a Hugging
    Face dataset, `run:FOLDER` for the stored rollouts of a run (for `sft` and `kto`; make pairs of
    them with `agentrl prefs make`), or the import string of a function."""
    split: str = "train"
    """Split to take, where the source has splits."""
    columns: dict[str, str] = Field(default_factory=dict)
    """Maps the names of a layout (`prompt`, `chosen`, `messages` ...) to columns."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of a function."""
    limit: int | None = Field(default=None, ge=1)
    """Take only the first so many examples."""
    max_tokens: int | None = Field(default=None, ge=16)
    """Longer rows (a prompt with one answer) are left out and counted, and so are examples of which
    all rows together do not fit into `train.micro_batch_tokens`."""
    min_score: float | None = None
    """Of `run:` sources: rollouts with a lower score are left out (rejection sampling); for loss
    `kto` they are those that are not desirable."""


class FitTrainData(FitDataSection):
    """Data that is trained on."""

    examples_per_step: int = Field(default=32, ge=1)
    """Examples (conversations, pairs) of one optimizer step, whatever the number of ranks."""
    epochs: int = Field(default=1, ge=1)
    """Passes over the data, each in another order; `train.steps` may end it earlier."""


class FitCenterData(FitDataSection):
    """Answers whose mean reward is held at 0: pairs or conversations."""

    answers_per_step: int = Field(default=32, ge=1)
    """Answers of one optimizer step, taken in turn; both answers of a pair count."""


class SftObjective(KindSection):
    """Supervised fine-tuning: the likelihood of the assistants' messages."""

    kind: Literal["sft"] = "sft"
    """Objective: `sft` the likelihood of the assistants' messages."""
    loss_agg_mode: LossAggMode = "token-mean"
    """How the losses of tokens are averaged over an update, as `algorithm.loss_agg_mode`."""
    horizon: int = Field(default=1024, ge=1)
    """H of `seq-mean-token-sum-norm`, in tokens."""


class DpoObjective(FiniteSection, KindSection):
    """Preference optimisation: the policy itself prefers what was chosen."""

    kind: Literal["dpo"] = "dpo"
    """`dpo` preference pairs, without a reward model."""
    loss: Annotated[str, Names.CODE] = "sigmoid"
    """Pair loss: `sigmoid`, `robust`, `ipo`, `hinge`, `simpo`, `orpo`, or the import string of
    one's own. `kto` learns from single answers with a verdict (`prompt`, `completion`, `label`).
    A `label_probability` beside a pair or verdict counts for `sigmoid` and `kto`."""
    beta: float = Field(default=0.1, gt=0)
    """Strength of the pull towards the reference; factor of the log-ratios (of the length-averaged
    log-probabilities for `simpo`, of the odds term for `orpo`)."""
    label_smoothing: float = Field(default=0.0, ge=0, lt=0.5)
    """Probability that a label is wrong, for `sigmoid` and `robust`."""
    length_normalized: bool = False
    """Divide each log-probability, also of the reference, by its number of tokens."""
    gamma: float = Field(default=0.0, ge=0)
    """Margin that `simpo` asks for."""
    nll_coef: float = Field(default=0.0, ge=0)
    """Weight of the chosen answer's negative log-likelihood a token, which is added. `orpo` has it
    with weight 1 by itself."""
    desirable_weight: float = Field(default=1.0, gt=0)
    """Weight of the answers of `kto` that are desirable. Times their number it should be 1 to 1.5
    times what the others have."""
    undesirable_weight: float = Field(default=1.0, gt=0)
    """Weight of the answers of `kto` that are not."""
    reference: Annotated[str, Names.REFERENCE] = "model"
    """`model` what the fit begins with, `none`, or a checkpoint. Its log-probabilities are
    computed once and kept beside the run; `kto` needs those of one more answer for each row and
    epoch."""

    @property
    def unpaired(self) -> bool:
        """True where the data is single answers with a verdict."""
        return self.loss == "kto"

    @model_validator(mode="after")
    def _read_by_the_loss(self) -> DpoObjective:
        if self.unpaired and self.reference == "none":
            raise ValueError(
                "reference is none, but loss kto compares with one; set reference: model, or a "
                "checkpoint"
            )
        read = _READ.get(self.loss)
        if read is None:
            return self  # a loss of one's own may read everything
        for key in sorted(set().union(*_READ.values()) - read):
            unread = (type(self).model_fields[key].default, "none")
            if getattr(self, key) not in unread:
                raise ValueError(
                    f"{key} is {getattr(self, key)!r}, but loss {self.loss} does not look at it; "
                    f"leave it out, or choose one that does"
                )
        return self


_READ = {
    "sigmoid": {"label_smoothing", "length_normalized", "reference", "nll_coef"},
    "robust": {"label_smoothing", "length_normalized", "reference", "nll_coef"},
    "ipo": {"length_normalized", "reference", "nll_coef"},
    "hinge": {"length_normalized", "reference", "nll_coef"},
    "simpo": {"gamma", "nll_coef"},
    "orpo": {"nll_coef"},
    "kto": {"desirable_weight", "undesirable_weight", "reference"},
}
"""Keys that only some of the pair losses read."""


class RewardObjective(FiniteSection, KindSection):
    """A reward model: one number for a whole answer."""

    kind: Literal["rm"] = "rm"
    """`rm` a reward model."""
    loss: Literal["bt", "purm"] = "bt"
    """`bt` Bradley-Terry; `purm` a Gaussian over the reward, mean and deviation."""
    margin_scale: float = Field(default=0.0, ge=0)
    """The chosen answer shall be better by this much times the pair's margin."""
    center_coef: float = Field(default=0.0, ge=0)
    """Weight of (r_chosen + r_rejected)^2 a pair, which keeps rewards around 0."""
    center_set_coef: float = Field(default=0.0, ge=0)
    """Weight of the square of the mean reward over the answers that a step takes of `center_data`;
    evaluations take those of the first step."""
    center_data: FitCenterData | None = None
    """Source of those answers, as `data`: rewards get their zero from answers like those of RL."""
    bsr_coef: float = Field(default=0.0, ge=0)
    """Weight of the square of the mean reward of the whole update (batch-sum regularisation)."""
    quadrature: int = Field(default=32, ge=2, le=256)
    """Nodes of the integral of `purm`."""
    ensemble: int = Field(default=1, ge=1, le=64)
    """Models, or heads of one model, whose mean is the reward and whose deviation is how unsure it
    is; number k has the seed `run.seed` + k."""
    ensemble_mode: Literal["members", "heads"] = "members"
    """`members` trains so many models one after the other, in `members/0`, `members/1` ... of the
    run directory, each with an order, a head and (`train.lora`) adapters of its own. `heads` trains
    one model with so many heads, at the cost of one; they differ less than members."""
    bootstrap: bool = True
    """With `ensemble_mode: heads` each head counts each pair 0, 1, 2 ... times (Poisson of mean 1,
    drawn from its seed), the same in every epoch; false has all heads see all pairs once."""
    head_std: float = Field(default=0.0, ge=0)
    """Deviation of the weights that the head begins with where `model.path` is a language model,
    drawn from `run.seed`; 0 begins with scores of 0, and in an ensemble stands for 0.01."""

    @property
    def heads(self) -> int:
        """Heads of the model, K; 1 for a model that is no ensemble by itself."""
        return self.ensemble if self.ensemble_mode == "heads" else 1

    @property
    def outputs(self) -> int:
        """Numbers that the model gives an answer: one for each head; mean and deviation of purm."""
        return 2 if self.loss == "purm" else self.heads

    @model_validator(mode="after")
    def _heads_are_several(self) -> RewardObjective:
        if self.ensemble_mode == "heads" and self.ensemble == 1:
            raise ValueError("ensemble_mode is heads, but ensemble is 1; set the number of heads")
        if self.ensemble_mode == "heads" and self.loss == "purm":
            raise ValueError(
                "ensemble_mode is heads, but loss purm gives a deviation of its own beside each "
                "score, which heads do not have; set loss: bt, or ensemble_mode: members"
            )
        if not self.bootstrap and self.ensemble_mode == "members":
            raise ValueError(
                "bootstrap is false, but ensemble_mode members draws no pairs: each member sees "
                "all of them; leave bootstrap out, or set ensemble_mode: heads"
            )
        return self

    @model_validator(mode="after")
    def _centered_on_something(self) -> RewardObjective:
        if self.center_set_coef and self.center_data is None:
            raise ValueError(
                f"center_set_coef is {self.center_set_coef:g}, but there is no center_data; name "
                "answers that rewards are centered on (center_coef centers on the pairs)"
            )
        if self.center_data is not None and not self.center_set_coef:
            raise ValueError("center_data is set, but center_set_coef is 0; give it a weight")
        return self


FitObjective = Annotated[
    SftObjective | DpoObjective | RewardObjective,
    OneOf(SftObjective, DpoObjective, RewardObjective),
]


class RolloutEval(Section):
    """Rollouts of the policy that is being fitted."""

    config: Annotated[str, Names.FOLDER]
    """Run file of the rollouts: its environment, its limits and its `eval.datasets`."""
    n_samples: int | None = Field(default=None, ge=1)
    """Rollouts a task, k of pass@k; None is that of the run file."""
    limit: int | None = Field(default=None, ge=1)
    """Only the first so many tasks of each dataset."""


class FitEvalSection(Section):
    """Losses and accuracies on data that is not trained on, and scores of rollouts."""

    datasets: dict[str, FitDataSection] = Field(default_factory=dict)
    """Name to data of the same kind; the name labels the numbers."""
    rollouts: RolloutEval | None = None
    """Also roll the policy out, as `agentrl eval` does: `eval/NAME/score`, `eval/NAME/pass@k`. With
    `checkpoint.keep_best: {eval/NAME/pass@k: 1}` they decide which checkpoint is kept. The
    model is loaded a second time for it."""
    every_steps: int = Field(default=0, ge=0)
    """Evaluate after every so many steps; 0 only before and after training."""
    shown: int = Field(default=16, ge=0, le=1000)
    """Examples of each dataset whose tokens are kept at every evaluation, in `examples/` of the run
    directory: `agentrl inspect` shows the answers of a pair side by side. 0 keeps none."""


class FitConfig(Section):
    """A whole fit file."""

    run: RunSection = RunSection(name="fit")
    model: ModelSection = ModelSection()
    chat: ChatSection = ChatSection()
    data: FitTrainData
    ranks: int = Field(default=1, ge=1)
    """Processes of this machine that train together, each on a part of every step; on GPUs each has
    one."""
    objective: FitObjective = SftObjective()
    train: FitTrainSection = FitTrainSection()
    eval: FitEvalSection = FitEvalSection()
    checkpoint: CheckpointSection = CheckpointSection()
    log: LogSection = LogSection()

    @field_validator("log", mode="before")
    @classmethod
    def _no_token_record(cls, value: Any) -> Any:
        """What RL keeps of every token does not exist here."""
        return {"tokens": False, **value} if isinstance(value, dict) else value

    def _check_best(self) -> None:
        """Something has to choose the best checkpoint, and has to be higher for a better one."""
        names, by = sorted(self.eval.datasets), self.checkpoint.best_by
        if self.checkpoint.best_count and not names:
            raise ValueError(
                f"checkpoint.keep_best is {self.checkpoint.best_count}, but eval.datasets is "
                "empty: nothing says which checkpoint is best; add a dataset, or set keep_best: 0"
            )
        fallen = by.endswith(("loss", "nll", "perplexity"))
        if by and (fallen or not any(by.startswith(f"eval/{name}/") for name in names)):
            raise ValueError(
                f"checkpoint.keep_best names {by!r}; expected a metric that is higher for a better "
                "model, as in eval/NAME/score (minus the loss) or eval/NAME/pref/accuracy with a "
                f"NAME of eval.datasets: {', '.join(names) or 'none'}"
            )

    @model_validator(mode="after")
    def _combinations(self) -> FitConfig:
        if self.eval.rollouts is not None and self.objective.kind == "rm":
            raise ValueError(
                "eval.rollouts is set, but a reward model (objective: rm) is no policy to roll out;"
                " remove it, and measure the model with `agentrl rm report`"
            )
        if self.data.min_score is not None and not self.data.source.startswith("run:"):
            raise ValueError(
                f"data.min_score is {self.data.min_score:g}, but {self.data.source!r} has no "
                "scores of rollouts; it belongs to sources run:FOLDER"
            )
        self._check_best()
        return self
