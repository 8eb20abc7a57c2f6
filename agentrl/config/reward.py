"""Shaping of rewards before advantages are formed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, Field, ValidationInfo, field_validator, model_validator

from agentrl.config.base import FiniteSection, Names, Section, given_keys
from agentrl.config.presets import Bounds, reward_of_preset
from agentrl.errors import choices

NOT_WHITENED = (
    "scale is {}, but members of an ensemble are whitened before their mean, or the one with the "
    "largest scores decides alone; set scale: stored"
)
"""Message for an ensemble whose `scale` is another; takes it."""

LengthUnit = Literal["response", "sampled"]
"""Tokens that a length counts: all of the response, or those of the policy."""


class RewardFunction(Section):
    """One function that scores a finished rollout; plain text is `target`."""

    bare: ClassVar[str] = "target"

    target: Annotated[str, Names.CODE]
    """Import string of a function `(trajectory, task) -> float`, plain or async; or of one written
    for verl (`solution_str, ground_truth`), TRL (`completions`, which gives a list) or OpenRLHF
    (`queries, prompts, labels`)."""
    weight: float = Field(default=1.0, allow_inf_nan=False)
    """Factor of its value in the reward."""
    args: dict[str, Any] = Field(default_factory=dict)
    """More keyword arguments."""


class RewardModelSection(FiniteSection):
    """A reward model that scores finished rollouts, or an ensemble; plain text is `path`."""

    bare: ClassVar[str] = "path"

    path: Annotated[tuple[str, ...], Names.MODEL] = Field(min_length=1)
    """Run directory of a fit, checkpoint folder or hub name. Several are an ensemble, and so are
    the run of a fit with `objective.ensemble`: its members, or the heads of its model. Relative
    folders start at the folder of this file."""
    weight: float = 1.0
    """Factor of its value in the reward."""
    scale: Literal["stored", "temperature", "none"] = "stored"
    """`stored` whitens scores by the `reward_scale.json` that `agentrl rm report --store` writes
    beside the checkpoint; `temperature` divides by its temperature alone; `none` takes raw scores.
    """
    disagreement: float = Field(default=0.0, ge=0)
    """Taken off: so many standard deviations between the members, or heads, of an ensemble."""
    uncertainty: float = Field(default=0.0, ge=0)
    """Taken off: so many standard deviations that a model gives of its own reward; the mean over an
    ensemble. They come from the posterior that `agentrl rm posterior` writes beside a checkpoint,
    larger for answers unlike those of its pairs; without one from `objective.loss: purm`, larger
    where labels are unsure."""
    device: str = "auto"
    """As `model.device`; each process with rollout workers loads a copy of its own there."""

    @field_validator("path", mode="before")
    @classmethod
    def _one_or_several(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _members(self) -> RewardModelSection:
        if len(set(self.path)) < len(self.path):
            raise ValueError(f"path names one model twice: {list(self.path)}")
        if len(self.path) > 1 and self.scale != "stored":
            raise ValueError(NOT_WHITENED.format(self.scale))
        return self


class RefreshSection(FiniteSection):
    """Refreshing a reward model during a synchronous run, on its newest rollouts."""

    model: str | None = None
    """Name in `models`; needed where there are several."""
    every_steps: int = Field(default=0, ge=0)
    """Refresh after every so many steps, before the rollouts of the next one; 0 never."""
    pairs: int = Field(default=512, ge=2)
    """Most new pairs of a refresh, of the newest rollouts first."""
    labeller: Annotated[str | dict[str, Any] | None, Names.CODE] = None
    """Decides which of two rollouts is better: `verifier` (the environment's own reward), `human`
    (files in `refresh/queue/` of the run directory), or the import string of a function
    `(task, a, b) -> P(a better)`, plain or async; `{target: agentrl.judges:pair_labeller, args:
    {...}}` gives it keyword arguments."""
    old_pairs: Annotated[str | None, Names.PAIRS] = None
    """Source of old pairs, which are mixed with the new ones 1 : 1; None takes those of the fit
    that made the model, and `none` takes none."""
    held_out: float = Field(default=0.2, gt=0, lt=1)
    """Share of the tasks of which pairs are never trained on, and measure both models."""
    steps: int = Field(default=20, ge=1)
    """Optimizer steps from the present model."""
    learning_rate: float = Field(default=1e-5, gt=0)
    """Learning rate of these steps."""
    guard: float = Field(default=0.02, ge=0, le=1)
    """The new model is taken unless its accuracy on held-out pairs is lower by more than this."""

    @field_validator("labeller")
    @classmethod
    def _target_and_args(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        args = value.get("args", {})
        known = isinstance(value.get("target"), str) and isinstance(args, dict)
        if not known or value.keys() - {"target", "args"}:
            raise ValueError(
                f"labeller is {value}; expected an import string, or a mapping with target, which "
                "is one, and args, which are its keyword arguments"
            )
        return value

    @property
    def labelled_by(self) -> str | None:
        """`verifier`, `human` or the import string of a function."""
        return self.labeller["target"] if isinstance(self.labeller, dict) else self.labeller

    @property
    def labeller_args(self) -> dict[str, Any]:
        """More keyword arguments of that function."""
        return self.labeller.get("args", {}) if isinstance(self.labeller, dict) else {}


class OverlongSection(Section):
    """DAPO's penalty for responses near the end of their budget; a number alone is `buffer_len`."""

    bare: ClassVar[str] = "buffer_len"

    buffer_len: int = Field(ge=1)
    """A penalty grows linearly over the last so many tokens of the response budget."""
    penalty_factor: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """The penalty at the end of that buffer."""
    max_sampled_tokens: int | None = Field(default=None, ge=1)
    """Budget of tokens that the policy writes, which are then what is counted. None counts every
    response token, those of tools too, against `rollout.max_response_tokens`, which ends a rollout
    in the same unit."""

    @property
    def length_unit(self) -> LengthUnit:
        """Unit of the length and of its budget."""
        return "response" if self.max_sampled_tokens is None else "sampled"

    @model_validator(mode="after")
    def _budget_of_the_unit(self) -> OverlongSection:
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
    refresh: RefreshSection | None = None
    """Training one of `models` further while the run goes on; None never does."""
    env_weight: float = Field(default=1.0, allow_inf_nan=False)
    """Factor of the environment's own reward; 0 leaves only `functions` and `models`."""
    overlong: OverlongSection | None = None
    """DAPO's penalty for long responses; None takes nothing off. Left out, `algorithm.preset: dapo`
    sets it to the last fifth of the response budget."""
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
    """DAPO's filter of groups that teach nothing; None trains on all. Left out,
    `algorithm.preset: dapo` sets it to `{keep: [0, 1], rounds: 10}`."""

    @model_validator(mode="after")
    def _names_differ(self) -> RewardSection:
        if twice := sorted(self.functions.keys() & self.models.keys()):
            raise ValueError(
                f"models and functions both have a {twice[0]!r}, and a part of the reward has one "
                "name; rename one of them"
            )
        return self

    @property
    def refreshed(self) -> str | None:
        """Name of the reward model that is refreshed; None where none is."""
        if self.refresh is None or not self.refresh.every_steps:
            return None
        return self.refresh.model or next(iter(self.models))

    @model_validator(mode="after")
    def _one_model_is_refreshed(self) -> RewardSection:
        section, names = self.refresh, sorted(self.models)
        if section is None:
            return self
        if section.model is not None and section.model not in names:
            raise ValueError(f"refresh.model: {choices(section.model, names)}")
        if not section.every_steps:
            return self
        if not names:
            raise ValueError(
                f"refresh.every_steps is {section.every_steps}, but models is empty: there is "
                "nothing to refresh; add a reward model, or set every_steps: 0"
            )
        if section.model is None and len(names) > 1:
            raise ValueError(
                f"refresh.model is not set, but models has {len(names)}: {', '.join(names)}; name "
                "the one that is refreshed"
            )
        name = section.model or names[0]
        if len(self.models[name].path) > 1:
            raise ValueError(
                f"refresh.model is {name!r}, an ensemble of {len(self.models[name].path)}, and "
                "only a single model can be refreshed; give it one path, or set every_steps: 0"
            )
        if section.labeller is None:
            raise ValueError(
                "refresh.labeller is not set; expected 'verifier', 'human' or the import string of "
                "a function (task, a, b) -> P(a better), as agentrl.judges:pair_labeller"
            )
        return self

    @field_validator("clip_raw", "clip", "clip_shaped")
    @classmethod
    def _ordered(cls, bounds: Bounds | None, info: ValidationInfo) -> Bounds | None:
        return bounds if bounds is None else in_order(str(info.field_name), bounds)


def with_preset(reward: Any, preset: Any, *, budget: int) -> Any:
    """A section as it is given, with what the preset asks of it where it names nothing.

    Args:
        reward: not checked yet; a key that is there, as `overlong: null`, wins.
        preset: `algorithm.preset`.
        budget: `rollout.max_response_tokens`.
    """
    given = given_keys(reward)
    sampled = given_keys(given.get("overlong")).get("max_sampled_tokens")
    usual = reward_of_preset(preset, budget=sampled if isinstance(sampled, int) else budget)
    if not usual or not isinstance(reward, Mapping | BaseModel):
        return reward
    for key, kind in {"dynamic_filtering": DynamicFilter, "overlong": OverlongSection}.items():
        value = given.get(key, {})
        if value is not None:
            plain = not isinstance(value, Mapping | BaseModel)
            own = {kind.bare: value} if plain else given_keys(value)
            given[key] = {**usual[key], **own}
    return given


def in_order(name: str, bounds: Bounds) -> Bounds:
    """The bounds, if the first is below the second.

    Raises:
        ValueError: they are equal or the wrong way round.
    """
    if not bounds[0] < bounds[1]:
        raise ValueError(f"{name} is {list(bounds)}, expected [low, high] with low < high")
    return bounds
