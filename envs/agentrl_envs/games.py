"""Parts that games of other make share: the counts of an episode, and tasks that are seeds."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

from agentrl.env import StepResult
from agentrl.errors import ConfigError
from agentrl.types import Task


class GameCounts:
    """Counts of one episode, from which its score and its logs are made.

    Args:
        game: the environment, for errors.
        returns: totals that score 0 and 1; None for a game without a score.

    Raises:
        ConfigError: `returns` are not in order.
    """

    def __init__(self, game: str, returns: tuple[float, float] | None) -> None:
        if returns is not None and not returns[0] < returns[1]:
            raise ConfigError(
                f"{game}: returns must be [low, high] with low < high, got {list(returns)}"
            )
        self._returns = returns
        self.begin()

    def begin(self) -> None:
        """Count anew: rewards of all steps, moves made, and actions that were no move."""
        self.total, self.steps, self.invalid = 0.0, 0, 0

    def end(self, reward: float, *, played: bool) -> StepResult:
        """The result with which a game ends.

        Args:
            reward: of the last step.
            played: whether the game came to its own end; else its score is 0.
        """
        score = None
        if self._returns is not None:
            low, high = self._returns
            score = min(1.0, max(0.0, (self.total - low) / (high - low))) * played
        logs = {"return": self.total, "steps": self.steps, "invalid_actions": self.invalid}
        logs = {name: float(value) for name, value in logs.items()}
        return StepResult(rewards=reward, done=True, scores=score, extra_logs=logs)


def seeded_tasks(
    game: str, split: str, n: int, seed: int, prompt: str, more: Mapping[str, Any] | None = None
) -> list[Task]:
    """Episodes by their seeds, `n` of them; splits share none, `train` and any other name.

    Raises:
        ConfigError: n below 1.
    """
    if n < 1:
        raise ConfigError(f"{game} make_tasks: n must be at least 1, got {n}")
    # The lowest bit separates the splits, so that no seed is in two.
    bit = 0 if split == "train" else 1
    return [
        Task(
            id=f"{split}/{seed}/{number}",
            prompt=prompt,
            metadata={"seed": 2 * value + bit, **(more or {})},
            split=split,
        )
        for number, value in enumerate(Random(f"{seed}").sample(range(2**30), n))
    ]
