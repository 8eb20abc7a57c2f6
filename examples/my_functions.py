"""A function that is a tool, one that pays, and no class: the model may look up a price."""

import re

from agentrl import Task, ToolContext, ToolError, Trajectory

PRICES = {"apple": 40, "bread": 320, "cheese": 590, "eggs": 280, "milk": 110}


async def price(item: str, rollout: ToolContext) -> str:
    """Look up the price of an item in cents.

    Args:
        item: one word, as "milk"
    """
    if item not in PRICES:
        raise ToolError(f"no {item!r} here; there are {', '.join(PRICES)}")
    rollout.state["asked"] = rollout.state.get("asked", 0) + 1  # kept for this rollout alone
    return str(PRICES[item])


def right(trajectory: Trajectory, task: Task) -> float:
    numbers = re.findall(r"\d+", trajectory.turns[-1].text)
    return float(numbers[-1:] == [str(task.label)])


def rows(split: str = "train") -> list[dict[str, object]]:
    pairs = [(a, b) for a in PRICES for b in PRICES if a != b]
    text = "How many cents are {} and {} together? Look the prices up."
    return [{"question": text.format(a, b), "answer": PRICES[a] + PRICES[b]} for a, b in pairs]
