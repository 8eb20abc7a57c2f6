"""The facts that the checks of one preflight find out and share with those after them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import isfinite
from typing import TYPE_CHECKING, Any

from agentrl.rollout.coerce import as_reward_range
from agentrl.types.finding import Finding, warn

if TYPE_CHECKING:
    from agentrl.chat import ChatFormat
    from agentrl.models.vision.reader import VisionReader
    from agentrl.preflight.reward.known_answers import TriedAnswer
    from agentrl.preflight.reward.leaks import AnswerLeak, ShownText
    from agentrl.runtime.assembly.parts import TaskSets
    from agentrl.tool import Tool


@dataclass(slots=True, kw_only=True)
class PreflightFacts:
    """The parts of a run that earlier checks have made; None where a check failed."""

    tokenizer: Any = None
    """Tokenizer of the policy."""
    images: VisionReader | None = None
    """Image processor of the policy; None for one that reads text only."""
    chat: ChatFormat | None = None
    """Chat format made from the tokenizer."""
    make_env: Callable[[], Any] | None = None
    """Makes a fresh environment."""
    tasks: TaskSets | None = None
    """Every task of the run."""
    tools: dict[str, Tool] = field(default_factory=dict)
    """Offered in the first prompts of a sample of tasks, by name."""
    sandbox_used: bool | None = None
    """Whether an episode opened a sandbox; None while there was none."""
    answers: list[TriedAnswer] = field(default_factory=list)
    """Answers tried on the reward code, and what each earned, every grading of each."""
    shown: dict[str, list[ShownText]] = field(default_factory=dict)
    """Texts that a model sees first of a sample of tasks, by task id."""
    leak: AnswerLeak | None = None
    """Answers that stand in those texts; filled by the reward test."""
    held_up_s: float = 0.0
    """Seconds in which the event loop stood still for a grading; filled by the reward test."""

    def reward_bounds(self) -> tuple[float, float] | None:
        """Smallest and largest reward of the environment, as declared or seen; None if unknown.

        Raises:
            EnvError: what is declared is no range.
        """
        if self.make_env is not None:
            declared = getattr(self.make_env(), "reward_range", None)
            if declared is not None:
                low, high = as_reward_range(declared)
                if isfinite(low) and isfinite(high):
                    return low, high
        rewards = [answer.reward for answer in self.answers if answer.reward is not None]
        return (min(rewards), max(rewards)) if rewards and max(rewards) > min(rewards) else None


def not_checked(name: str, found: PreflightFacts) -> Finding:
    """A warning that a check needs what an earlier one could not make."""
    missing = {"chat": found.chat, "tasks": found.tasks, "environment": found.make_env}
    names = ", ".join(name for name, value in missing.items() if value is None)
    return warn(name, f"not checked: {names} failed above", "mend what failed above")
