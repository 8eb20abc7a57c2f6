"""The last result of a game: its reward, its score and what is logged of it."""

from __future__ import annotations

from agentrl.env import StepResult


def game_end(
    reward: float,
    *,
    total: float,
    returns: tuple[float, float] | None,
    steps: int,
    invalid: int,
    played: bool,
) -> StepResult:
    """The result with which a game ends.

    Args:
        reward: of the last step.
        total: rewards of all steps.
        returns: totals that score 0 and 1; None for a game without a score.
        steps: moves made.
        invalid: actions that were no move.
        played: whether the game came to its own end; else its score is 0.
    """
    score = None
    if returns is not None:
        low, high = returns
        score = min(1.0, max(0.0, (total - low) / (high - low))) * played
    logs = {"return": total, "steps": float(steps), "invalid_actions": float(invalid)}
    return StepResult(rewards=reward, done=True, scores=score, extra_logs=logs)
