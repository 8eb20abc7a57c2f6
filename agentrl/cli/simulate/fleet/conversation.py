"""The environment and the tool of a simulated run: each turn calls the tool, which returns text."""

from __future__ import annotations

import json
import random
from functools import cache

from agentrl.env import Action, AgentInstance, Observation, StepResult
from agentrl.types import Task

_LONGEST = 1 << 20
_WORDS = (
    "the of and to in for is on that by this with you it not or be are from at as your all have "
    "new more an was we will home can us about if page my has search free but our one other do no "
    "information time they site he up may what which their news out use any there see only so his "
    "when contact here business who web also now help get view online first been would how were "
    "services some these click its like service than find def return import class self None True"
)


class SimulatedConversation(AgentInstance):
    """Ends after a number of turns; the reward is drawn, so that groups teach something."""

    def __init__(self, turns: int) -> None:
        self._left = turns

    async def reset(self, task: Task) -> Observation:
        """Observe the prompt of the task."""
        return Observation(content=task.prompt)

    async def step(self, action: Action) -> StepResult:
        """Count a turn, and end after the last."""
        self._left -= 1
        if self._left:
            return StepResult()
        return StepResult(rewards=float(random.random() < 0.5), done=True)


async def read(characters: int) -> str:
    """Read a part of a long text.

    Args:
        characters: length of the part.
    """
    text = _long_text()
    start = random.randrange(len(text) - characters)
    return text[start : start + characters]


def call_of(characters: int) -> str:
    """Text of a turn that reads so many characters, as a Hermes parser understands it."""
    call = json.dumps({"name": "read", "arguments": {"characters": characters}})
    return f"I will read on in the text.\n<tool_call>\n{call}\n</tool_call>"


@cache
def _long_text() -> str:
    """Words with numbers and line breaks in between, as results of tools have them."""
    rng, words = random.Random(0), _WORDS.split()
    parts: list[str] = []
    length = 0
    while length < _LONGEST:
        part = rng.choice(words) if rng.random() < 0.9 else str(rng.randrange(100_000))
        parts.append(part + rng.choice("  " + "    ,.:\n"))
        length += len(parts[-1])
    return "".join(parts)
