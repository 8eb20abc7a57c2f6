"""Shaping of rewards before advantages are formed."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from agentrl.config.base import FiniteSection, Section
from agentrl.config.presets import Bounds

LengthUnit = Literal["response", "sampled"]
"""Tokens that a length counts: all of the response, or those of the policy."""


class RewardFunction(Section):
    """One function that scores a finished rollout."""

    target: str
    """Import string of a function `(trajectory, task) -> float`, plain or async; or of one written
    for verl, TRL or OpenRLHF."""
    weight: float = Field(default=1.0, allow_inf_nan=False)
    """Factor of its value in the reward."""
    args: dict[str, Any] = Field(default_factory=dict)
    """More keyword arguments."""


class RewardModelSection(FiniteSection):
    """A reward model that scores finished rollouts, or an ensemble; plain text is `path`."""

    bare: ClassVar[str] = "path"

    path: tuple[str, ...] = Field(min_length=1)
    """Run directory of a fit, checkpoint folder or hub name; several are an ensemble. Relative
    folders start at the folder of this file."""
    weight: float = 1.0
    """Factor of its value in the reward."""
    scale: Literal["stored", "temperature", "none"] = "stored"
    """`stored` whitens scores by the `reward_scale.json` that `agentrl rm report --store` writes
    beside the checkpoint; `temperature` divides by its temperature alone; `none` takes raw scores.
    """
    disagreement: float = Field(default=0.0, ge=0)
    """Taken off: so many standard deviations between the members of an ensemble."""
    uncertainty: float = Field(default=0.0, ge=0)
    """Taken off: so many of the deviations that a model fitted with `objective.loss: purm` gives;
    the mean over an ensemble."""
    device: str = "auto"
    """As `model.device`; each process with rollout workers loads a copy of its own there."""
    batch_tokens: int = Field(default=8192, ge=32)
    """Most packed tokens of a forward pass; a rollout has to fit, with one token more."""

    @field_validator("path", mode="before")
    @classmethod
    def _one_or_several(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _members(self) -> RewardModelSection:
        if len(set(self.path)) < len(self.path):
            raise ValueError(f"path names one model twice: {list(self.path)}")
        if self.disagreement and len(self.path) == 1:
            raise ValueError(
                f"disagreement is {self.disagreement:g}, but one reward model cannot disagree; "
                "give path a list of at least 2, or set it to 0"
            )
        if len(self.path) > 1 and self.scale != "stored":
            raise ValueError(
                f"scale is {self.scale}, but members of an ensemble are whitened before their "
                "mean, or the one with the largest scores decides alone; set scale: stored"
            )
        return self


class OverlongSection(Section):
    """DAPO's penalty for responses near the end of their budget; a number alone is `buffer_len`."""

    bare: ClassVar[str] = "buffer_len"

    buffer_len: int = Field(ge=1)
    """A penalty grows linearly over the last so many tokens of the response budget."""
    penalty_factor: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """The penalty at the end of that buffer."""
    length_unit: LengthUnit = "response"
    """Unit of the length and of its budget: `response` counts every response token, those of tools
    too, against `rollout.max_response_tokens`, which ends a rollout in the same unit; `sampled`
    counts what the policy wrote against `max_sampled_tokens`."""
    max_sampled_tokens: int | None = Field(default=None, ge=1)
    """Budget of `length_unit: sampled`, which needs it."""

    @model_validator(mode="after")
    def _budget_of_the_unit(self) -> OverlongSection:
        if self.length_unit == "sampled" and self.max_sampled_tokens is None:
            raise ValueError(
                "length_unit sampled counts tokens of the policy, and rollout.max_response_tokens "
                "counts those of tools too; set max_sampled_tokens, a budget of sampled tokens"
            )
        if self.length_unit == "response" and self.max_sampled_tokens is not None:
            raise ValueError(
                f"max_sampled_tokens is {self.max_sampled_tokens}, but length_unit response counts "
                "every response token against rollout.max_response_tokens; set length_unit: "
                "sampled, or remove it"
            )
        budget = self.max_sampled_tokens
        if budget is not None and self.buffer_len > budget:
            raise ValueError(
                f"buffer_len ({self.buffer_len}) is larger than max_sampled_tokens ({budget}), so "
                "that the shortest response would be penalised; lower the first"
            )
        return self


class DynamicFilter(Section):
    """DAPO's filter of groups that teach nothing; two numbers alone are `keep`."""

    bare: ClassVar[str] = "keep"

    keep: Bounds
    """Train only on groups whose mean score lies strictly between these."""
    rounds: int = Field(default=2, ge=0)
    """Times a step asks for more groups in place of filtered ones."""

    @field_validator("keep")
    @classmethod
    def _ordered(cls, keep: Bounds) -> Bounds:
        return in_order("keep", keep)


class RewardSection(Section):
    """Shaping of a rollout's reward before advantages are formed, in the order of the keys."""

    functions: dict[str, RewardFunction] = Field(default_factory=dict)
    """Name to function; their weighted values are added to the environment's reward."""
    models: dict[str, RewardModelSection] = Field(default_factory=dict)
    """Name to reward model; their weighted values are added as those of functions are."""
    env_weight: float = Field(default=1.0, allow_inf_nan=False)
    """Factor of the environment's own reward; 0 leaves only `functions` and `models`."""
    overlong: OverlongSection | None = None
    """DAPO's penalty for long responses; None takes nothing off."""
    stop_properly_penalty_coef: float | None = Field(default=None, le=1, allow_inf_nan=False)
    """ProRL, truncated rollouts only: 0 to 1 multiplies the reward, below 0 replaces it."""
    missing_eos_penalty: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Taken off where the last turn ended without a stop token."""
    clip_raw: Bounds | None = None
    """Bounds of the reward after the penalties and before `normalize`, for single broken rewards,
    which would move the running statistics; in the units of the environment."""
    normalize: bool = False
    """Divide by the running standard deviation of all rewards so far, after taking off their
    running mean."""
    clip: Bounds | None = None
    """Bounds of the reward after `normalize`, in standard deviations where that is on: whiten, then
    clip. `[-10, 10]` bounds the step of an outlier."""
    clip_shaped: Bounds | None = None
    """Bounds of what the group baseline leaves of a rollout's reward."""
    dynamic_filtering: DynamicFilter | None = None
    """DAPO's filter of groups that teach nothing; None trains on all."""

    @model_validator(mode="after")
    def _names_differ(self) -> RewardSection:
        if twice := sorted(self.functions.keys() & self.models.keys()):
            raise ValueError(
                f"models and functions both have a {twice[0]!r}, and a part of the reward has one "
                "name; rename one of them"
            )
        return self

    @field_validator("clip_raw", "clip", "clip_shaped")
    @classmethod
    def _ordered(cls, bounds: Bounds | None, info: ValidationInfo) -> Bounds | None:
        return bounds if bounds is None else in_order(str(info.field_name), bounds)


def in_order(name: str, bounds: Bounds) -> Bounds:
    """The bounds, if the first is below the second.

    Raises:
        ValueError: they are equal or the wrong way round.
    """
    if not bounds[0] < bounds[1]:
        raise ValueError(f"{name} is {list(bounds)}, expected [low, high] with low < high")
    return bounds
