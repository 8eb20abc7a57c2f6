"""On-policy distillation: a teacher that judges each token the policy sampled.

    reverse KL   KL(policy | teacher) at every trained token, at the sampling temperature

Two forms: `top_k: 0` takes the sampled token alone, as an advantage of that token; `top_k: K` is
the KL over the teacher's K likeliest tokens and one bin for all others.
"""

from __future__ import annotations

from string import Formatter
from typing import Annotated, Literal

from pydantic import Field, field_validator

from agentrl.config.base import FiniteSection, KindSection, Names, OneOf


class CheckpointTeacher(KindSection):
    """A teacher that the ranks of the trainer load, as they load a reference policy."""

    kind: Literal["checkpoint"] = "checkpoint"
    """Source of the teacher's log-probabilities: `checkpoint` loads a model beside the policy."""
    path: Annotated[str, Names.MODEL]
    """Checkpoint folder, run directory (its latest checkpoint when this run begins) or hub
    name, of the policy's tokenizer. Relative folders start at the folder of this file."""


class ServedTeacher(FiniteSection, KindSection):
    """A teacher behind a server that answers `prompt_logprobs`, as vLLM does."""

    kind: Literal["served"] = "served"
    """`served` asks a vLLM server for `prompt_logprobs`; these know temperature 1 only."""
    url: str
    """Address of the server, as `http://HOST:8000/v1`."""
    model: str
    """Its name there."""
    api_key_env: str = ""
    """Environment variable that holds the key; empty for a server without keys."""


class HintTeacher(KindSection):
    """The policy itself as teacher, with a hint in its prompt that the student does not see."""

    kind: Literal["hint"] = "hint"
    """`hint` is the policy itself, which reads a hint at the end of the message before its turn."""
    hint: str
    """Text of the hint; `{NAME}` stands for a metadata column of the task, `{label}` for its
    label."""
    weights: Literal["current", "start"] = "current"
    """The policy before each step, or the model the run began with, which is loaded besides."""

    @field_validator("hint")
    @classmethod
    def _readable(cls, value: str) -> str:
        try:
            names = hint_columns(value)
        except ValueError as error:
            raise ValueError(
                f"{value!r} cannot be filled in: {error}; write {{{{ and }}}} for braces"
            ) from None
        if "" in names or any(name.isdigit() for name in names):
            raise ValueError(
                f"{value!r} has a place without a name; name a metadata column in it, as "
                "{solution}, or {label}"
            )
        if not value.strip():
            raise ValueError("is empty; expected a text, as 'Solution: {solution}'")
        return value


def hint_columns(hint: str) -> tuple[str, ...]:
    """Names in braces in a hint, in their order.

    Example:
        >>> hint_columns("Solution: {solution}. Tests: {tests}")
        ('solution', 'tests')

    Raises:
        ValueError: a brace that is not closed or not opened.
    """
    return tuple(name for _, name, _, _ in Formatter().parse(hint) if name is not None)


Teacher = Annotated[
    CheckpointTeacher | ServedTeacher | HintTeacher,
    OneOf(CheckpointTeacher, ServedTeacher, HintTeacher),
]
"""The source of a teacher's log-probabilities."""


class DistillSection(FiniteSection):
    """Block H: the reverse KL from a teacher, at every trained token."""

    teacher: Teacher
    """The teacher."""
    coef: float = Field(default=1.0, gt=0)
    """Weight of the reverse KL, in nats a token."""
    top_k: int = Field(default=0, ge=0, le=1024)
    """0 takes the log-probabilities of the sampled token: its advantage is log p(teacher) - log p,
    under the policy loss with its ratio and bounds. K is the KL itself over the teacher's K
    likeliest tokens and one bin for the rest, added to the loss as it is."""
    with_reward: bool = False
    """Whether advantages of rewards are trained on besides; if not, rewards are only measured."""
