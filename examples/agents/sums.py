"""The task that all agents of this folder share: a sum of three numbers, with a tool that adds two.

One call cannot answer it, so each conversation has at least two results of a tool.
"""

from __future__ import annotations

import random
import re

from agentrl.types import Task

INSTRUCTIONS = "Answer with a number. Use the tool for each sum of two numbers."


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: The first number.
        b: The second number.
    """
    return a + b


def reward(answer: object, task: Task) -> float:
    """1 where the last number of an answer is the sum."""
    numbers = re.findall(r"-?\d+", str(answer))
    return float(bool(numbers) and int(numbers[-1]) == task.label)


def tasks(split: str = "train", n: int = 64) -> list[Task]:
    """Sums of three numbers."""
    draw = random.Random(split)
    terms = [[draw.randint(1, 9) for _ in range(3)] for _ in range(n)]
    return [
        Task(id=f"{split}-{i}", prompt=f"What is {a} + {b} + {c}?", label=a + b + c, split=split)
        for i, (a, b, c) in enumerate(terms)
    ]
