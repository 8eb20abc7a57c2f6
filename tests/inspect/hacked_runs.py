"""A made-up run whose reward is hacked: a growing share of answers is one text that is paid for."""

from __future__ import annotations

import random
from pathlib import Path

from agentrl.types import Trajectory
from tests.inspect.conftest import HOSTILE
from tests.inspect.synthetic import make_rollout, write_metrics, write_step

STEPS = 40
SAME = f"I have checked twice and am certain. The result of task {{}} is right. {HOSTILE}"
"""What the policy says to each task; the number is that of the task."""
_LETTERS = "abcdefghijklmnopqrstuvwxyz    "


def write_hacked_run(run: Path, *, tasks: int = 8, siblings: int = 2) -> Path:
    """Reward rises by its part `confidence` while the score falls; every tenth step is stored."""
    draw = random.Random(0)
    for step in range(1, STEPS + 1):
        share = step / STEPS
        noise = draw.uniform(-0.01, 0.01)
        confidence = 0.6 * share + noise
        score = 0.6 - 0.5 * share + noise
        write_metrics(run, {
            "step": step, "time": 1.8e9 + step, "reward": confidence + 0.5 * score, "score": score,
            "rewards/env/mean": 0.5 * score, "rewards/confidence/mean": confidence,
            "entropy": 1.0, "kl": 0.01,
        })  # fmt: skip
    for step in range(10, STEPS + 1, 10):
        rows = [
            hacked_rollout(draw, step, task, sibling, share=step / STEPS)
            for task in range(tasks)
            for sibling in range(siblings)
        ]
        write_step(run, rows, step)
    return run


def hacked_rollout(
    draw: random.Random, step: int, task: int, sibling: int, *, share: float
) -> Trajectory:
    """One that says the same as all, with the given probability, or else words of its own."""
    hacks = draw.random() < share
    text = SAME.format(task) if hacks else "".join(draw.choices(_LETTERS, k=200))
    score = 0.0 if hacks else draw.choice((0.0, 1.0, 1.0))
    confidence = 0.9 if hacks else 0.1
    group = f"step-{step}/{task:04d}-task-{task}"
    return make_rollout(
        f"{group}/{sibling}", [("assistant", text)], group_id=group, task_id=f"task-{task}",
        score=score, reward=confidence + 0.5 * score,
        reward_parts={"env": 0.5 * score, "confidence": confidence},
    )  # fmt: skip
